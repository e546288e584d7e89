"""A run of weeks saves thousands of times: one process after 50 saves and after 200."""

import gc
import os
import threading
import time

import psutil
from train_ranks import start

from hpcddp.run_dir import RunDir

# 0.26 MB of weights and as much momentum: one state kept for each save would be 79 MB more.
WIDTH = 256
# What an allocator may still take after 50 saves. A kept manifest of 1 kB each would be 0.2 MB,
# which nobody would notice in a process of hundreds.
TOLERANCE_BYTES = 16 << 20
SAVES = (50, 200)


def save_many_times(folder):
    """In a child: open files, threads and resident bytes after so many saves, and at the end."""
    import torch

    from hpcddp.checkpoint_kept import Best
    from hpcddp.train.state import TrainState

    os.fsync = lambda _: None  # how fast the disk is does not matter here
    model = torch.nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = TrainState(model, optimizer, torch.amp.GradScaler("cpu", enabled=False))
    saver, counted = saver_in(RunDir(folder)), []
    for step in range(1, SAVES[-1] + 1):
        model(torch.ones(1, WIDTH)).sum().backward()
        optimizer.step()
        state.step = step
        saver.save_if_due(state)
        if step % 10 == 0:
            saver.save_if_best(state, Best(step, step / 1000, 1.0))
        if step in SAVES:
            saver.drain()
            counted.append(held(*counted))
    saver.save_last(state)
    threads = [thread.name for thread in threading.enumerate()]
    return counted, threads, sorted(path.name for path in saver.folder.iterdir())


def saver_in(run_dir):
    """One that saves after every step, and owns the run."""
    from hpcddp.config.layout import ProcessLayout
    from hpcddp.train.cadence import Cadence
    from hpcddp.train.checkpoint import Retention
    from hpcddp.train.journal import Journal
    from hpcddp.train.ownership import Ownership
    from hpcddp.train.process_group import LoneProcess
    from hpcddp.train.saving import Saver

    owner = Ownership(run_dir, ProcessLayout())
    owner.claim()
    return Saver(
        folder=run_dir.checkpoints,
        extra={},
        retention=Retention(keep_last=2),
        cadence=Cadence(1, 3600, 600, step=0),
        ranks=LoneProcess(),
        journal=Journal(run_dir, ProcessLayout()),
        is_main=True,
        saved_step=0,
        owner=owner,
        keep_best=True,
    )


def held(most=(0, 0, 0)):
    """Open files, threads and resident bytes of this process, as soon as the first two are not
    more than `most`: a thread that has been joined may still be about to end.
    """
    gc.collect()
    process, deadline = psutil.Process(), time.monotonic() + 30 * any(most)
    while True:
        found = process.num_fds(), process.num_threads(), process.memory_info().rss
        if time.monotonic() > deadline or (found[0] <= most[0] and found[1] <= most[1]):
            return found
        time.sleep(0.05)


def test_nothing_grows_with_the_number_of_saves(tmp_path):
    [(counted, threads, left)] = start(save_many_times, [(tmp_path,)]).results()
    (files, tasks, size), (files_later, tasks_later, size_later) = counted
    assert files_later <= files
    assert tasks_later <= tasks
    assert size_later - size < TOLERANCE_BYTES
    assert "checkpoint-writer" not in threads
    assert [name for name in left if name.startswith("step_")] == [
        "step_000000199",
        "step_000000200",
    ]
    assert not [name for name in left if name.endswith(".partial")]
