"""However often a run is interrupted, it ends with the bits of one that never was."""

import signal
from collections import Counter
from functools import partial

import pytest
from train_ranks import (
    begins_step,
    differing,
    events_of,
    final_state,
    small_config,
    train_on,
    train_signalled,
    train_until,
)

from hpcddp.run_dir import RunDir, read_json_lines
from hpcddp.train.checkpoint_diff import diff_states

# All that could hide state between two steps: batch norm, dropout, momentum, an average of the
# weights, augmentation, accumulation, several buckets.
MAX_STEPS = 6
SETTINGS = (
    "train.model=mobilenet_v3_small",
    "train.model_options={dropout: 0.3}",
    f"train.max_steps={MAX_STEPS}",
    "train.ema_decay=0.99",
    "train.eval_every_epochs=1",
    "data.augment=shift",
    "ddp.bucket_cap_mib=1",
)
STOPS = (1, 2, 4)  # three in the first epoch

# World size -> loader workers of the four starts; the uninterrupted run has none.
NONE = (0, 0, 0, 0)
WORKERS = {1: (2, 0, 1, 0), 2: (0, 1, 0, 2), 3: NONE, 4: NONE, 8: NONE}


def settings_of(world_size, *more):
    """Two passes in each step, whatever the world size; an epoch is 5 steps."""
    global_batch = 24 if world_size <= 4 else 6 * world_size
    return (
        *SETTINGS,
        f"train.global_batch={global_batch}",
        f"train.micro_batch={global_batch // (2 * world_size)}",
        f"data.synthetic_samples={5 * global_batch}",
        *more,
    )


def curve_of(run_dir):
    """(kind, step) -> what must be equal to the bit; of two records of a step the later one."""
    timeless = {"loss", "lr", "epoch", "accuracy", "eval_loss", "samples", "weights"}
    return {
        ("evaluated" if "accuracy" in record else "trained", record["step"]): {
            key: value for key, value in record.items() if key in timeless
        }
        for record in read_json_lines(RunDir(run_dir).metrics)
    }


def records_of(run_dir):
    """How many training records each step has."""
    records = read_json_lines(RunDir(run_dir).metrics)
    return Counter(record["step"] for record in records if "loss" in record)


def assert_same(through, broken):
    first, second = final_state(through), final_state(broken)
    sections = [section.name for section in diff_states(first, second)]
    assert {"model", "optimizer", "ema", "step"} < set(sections)
    assert differing(first, second) == []
    expected = curve_of(through)
    assert len(expected) == MAX_STEPS + 2  # evaluated after 5 steps and after 6
    assert curve_of(broken) == expected


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, pytest.param(8, marks=pytest.mark.slow)])
def test_interrupted_three_times_in_one_epoch_or_never_the_bits_are_the_same(world_size, tmp_path):
    interrupt_and_compare(world_size, tmp_path)


@pytest.mark.parametrize(
    "settings", [("train.replicas=dp", "train.dp_devices=3"), ("train.precision=fp16",)]
)
def test_nor_do_other_replicas_or_a_scaled_loss_change_them(settings, tmp_path):
    scaler = interrupt_and_compare(1, tmp_path, *settings)["scaler"]
    assert bool(scaler) == ("train.precision=fp16" in settings)


def interrupt_and_compare(world_size, tmp_path, *settings):
    """Train with three stops in the first epoch and without; the state that both end with."""
    through, broken = tmp_path / "same" / "run", tmp_path / "other" / "run"
    config = small_config(*settings_of(world_size, *settings))
    assert set(train_on(world_size, through, config)) == {0}
    for workers, stop in zip(WORKERS[world_size], (*STOPS, None), strict=True):
        config = small_config(*settings_of(world_size, f"data.workers={workers}", *settings))
        function = None if stop is None else partial(train_until, stop)
        assert set(train_on(world_size, broken, config, function)) == {75 if stop else 0}
    assert_same(through, broken)
    assert records_of(broken) == Counter(range(1, MAX_STEPS + 1))  # none missing, none twice
    resumed = [event["step"] for event in events_of(broken) if event["event"] == "resumed"]
    assert resumed == list(STOPS)
    return final_state(broken)


def train_killed(step, config, layout, run_dir):
    """In a child: SIGKILL this process, if it is the last one, when it begins the update to `step`.

    Without any notice to anybody, as when a node fails.
    """
    is_last = layout.global_rank == layout.world_size - 1
    return train_signalled(
        *(config, layout, run_dir),
        is_due=lambda session: is_last and begins_step(step, session),
        signum=signal.SIGKILL,
    )


@pytest.mark.parametrize("world_size", [1, 3])
def test_killed_without_notice_or_never_the_bits_are_the_same(world_size, tmp_path):
    through, broken = tmp_path / "same" / "run", tmp_path / "other" / "run"
    config = small_config(*settings_of(world_size, "checkpoint.every_steps=2"))
    train_on(world_size, through, config)
    for step in (4, 6):
        with pytest.raises(AssertionError, match=r"died silently|failed"):
            train_on(world_size, broken, config, partial(train_killed, step))
    assert set(train_on(world_size, broken, config)) == {0}
    assert_same(through, broken)
    counts = records_of(broken)
    assert sorted(counts) == list(range(1, MAX_STEPS + 1))
    assert max(counts.values()) > 1  # the steps after the last checkpoint were done again
