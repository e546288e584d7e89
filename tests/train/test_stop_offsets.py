"""A signal at any time of a run: what is saved and what is told are of one and the same step."""

import dataclasses
import os
import random
import signal
import threading

from train_ranks import (
    before_call,
    events_of,
    final_state,
    losses_of,
    small_config,
    train_here,
    train_on,
)

OFFSETS = 30
LONGEST_S = 0.25  # some steps, with saves in between
PASSES = 2  # of a step, so that the model does not count as the loop does
SETTINGS = (
    "train.max_steps=100000",
    "train.global_batch=4",
    f"train.micro_batch={4 // PASSES}",
    "data.image_size=16",
    "checkpoint.every_steps=2",
)


def train_often(config, layout, run_dir):
    """In a child: start the run so often, each time with SIGUSR1 to this very process some time
    after its first step began; the steps that everything counts after each start.
    """
    from hpcddp.train import loop

    timers, updates, rows, chance = [], [], [], random.Random(7)

    def begin(_):
        if timers:
            timers.pop().start()

    before_call(loop, "train_step", begin)
    before_call(loop, "_update_weights", updates.append)
    for attempt in range(OFFSETS):
        offset_s = chance.uniform(0, LONGEST_S)
        timers.append(threading.Timer(offset_s, os.kill, (os.getpid(), signal.SIGUSR1)))
        assert train_here(config, dataclasses.replace(layout, attempt=attempt), run_dir) == 75
        rows.append(counted(run_dir) | {"updates": len(updates)})
    return rows


def counted(run_dir):
    """The newest step by all that a run keeps of it."""
    state, losses = final_state(run_dir), losses_of(run_dir)
    passes = {int(v) for k, v in state["model"].items() if k.endswith("num_batches_tracked")}
    told = {e["event"]: e["step"] for e in events_of(run_dir) if "step" in e}
    return {
        "passes of each batch norm": {count / PASSES for count in passes},
        "state": state["step"],
        "samples": state["samples_seen"] / 4,
        "last line of the metrics": list(losses)[-1],
        "lines of the metrics": len(losses),
        **{kind: told[kind] for kind in ("signal", "checkpoint", "stopped")},
    }


def test_signals_at_thirty_moments_leave_the_same_step_everywhere(tmp_path):
    [rows] = train_on(1, tmp_path, small_config(*SETTINGS), train_often)
    for row in rows:
        [passes] = row.pop("passes of each batch norm")
        assert set(row.values()) == {passes}, row
    steps = [row["stopped"] for row in rows]
    assert steps == sorted(set(steps))  # a step that has begun is done
