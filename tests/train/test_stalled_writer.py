"""A writer that stalls in the middle of a save and is killed there, with one checkpoint to keep."""

import os
import time
from itertools import count

import pytest
from train_ranks import (
    DEADLINE_S,
    before_call,
    differing,
    events_of,
    final_state,
    layouts,
    small_config,
    start,
    train_here,
    train_on,
)
from waiting import wait_until

from hpcddp import checkpoint_dir
from hpcddp.checkpoint_dir import list_checkpoints
from hpcddp.run_dir import RunDir
from hpcddp.train import checkpoint
from hpcddp.train.checkpoint import load_newest

SETTINGS = ("checkpoint.every_steps=2", "checkpoint.keep_last=1", "train.max_steps=6")
OWNERS = {"os": os, "file": checkpoint_dir.ChecksummedFile}


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The end of a run that nothing happened to."""
    run_dir = tmp_path_factory.mktemp("calm")
    assert train_on(1, run_dir, small_config(*SETTINGS)) == [0]
    return final_state(run_dir)


def train_and_stall(config, layout, run_dir, owner, name, nth):
    """In a child: train, and wait for ever before that call of the save of step 4."""
    calls = count(1)

    def stall(*_):
        if next(calls) == nth:
            (run_dir / "stalled").touch()
            time.sleep(10 * DEADLINE_S)

    def begin(folder, step, *_):
        if step == 4:
            before_call(OWNERS[owner], name, stall)

    before_call(checkpoint, "write_checkpoint", begin)
    return train_here(config, layout, run_dir)


@pytest.mark.parametrize(
    ("call", "kept"),
    [
        (("file", "write", 9), [2]),  # in the middle of the state
        (("os", "fsync", 1), [2]),  # all is written, and nothing on the disk
        (("os", "rename", 1), [2]),  # all is on the disk, under its hidden name
        (("os", "fsync", 4), [2, 4]),  # it has its name; the folder is not on the disk
        (("os", "rename", 2), [2, 4]),  # the one before is about to go
    ],
    ids=lambda value: "-".join(map(str, value)),
)
def test_a_writer_that_is_killed_where_it_stalls_costs_at_most_its_own_checkpoint(
    tmp_path, calm, call, kept
):
    config, folder = small_config(*SETTINGS), RunDir(tmp_path).checkpoints
    [layout] = layouts(1)
    started = start(train_and_stall, [(config, layout, tmp_path, *call)])
    wait_until((tmp_path / "stalled").exists, DEADLINE_S)
    for process in started.processes:
        process.kill()
        process.join()
    assert [info.step for info in list_checkpoints(folder)] == kept
    assert load_newest(folder).skipped == ()
    assert train_on(1, tmp_path, config) == [0]
    assert [event["step"] for event in events_of(tmp_path) if event["event"] == "resumed"] == kept[
        -1:
    ]
    assert differing(final_state(tmp_path), calm) == []
    assert [entry.name for entry in folder.iterdir()] == ["step_000000006"]
