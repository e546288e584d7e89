"""Loader worker processes: how they start, what they must not hear, how they end. Knows no data.

They come from a fork server, not from a fork of the training process, which may hold network
connections, GPU state and signal handlers that a copy must not have.
"""

import atexit
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import connection, context, forkserver, resource_tracker, util
from typing import Any

import torch.utils.data

from hpcddp.stop_flag import STOP_SIGNALS

PREFETCHED_PER_WORKER = 2
_folders: set[str] = set()  # below TMPDIR, with the fork server's socket


def worker_batches(
    fetch: Any,  # noqa: ANN401
    order: Iterable[Any],
    workers: int,
    pin_memory: bool,
) -> Iterable[Any]:
    """`fetch[item]` for each item of `order`, in order, computed ahead by worker processes.

    Can be iterated again, one iteration at a time, with the same workers.
    """
    return torch.utils.data.DataLoader(
        fetch,
        batch_size=None,  # an item is a batch already
        sampler=order,
        num_workers=workers,
        collate_fn=_unchanged,
        pin_memory=pin_memory,
        worker_init_fn=_tie_to_owner,
        multiprocessing_context=_worker_context(),
        generator=torch.Generator(),  # else each iteration advances the global generator
        prefetch_factor=PREFETCHED_PER_WORKER,
        persistent_workers=True,
    )


class _Worker(context.ForkServerProcess):
    """A worker process that can be ended although it does not hear SIGTERM.

    SIGTERM is what torch and, at its exit, Python send to workers that have not left by themselves,
    after an error for example; then Python waits for ever.
    """

    def start(self) -> None:
        super().start()
        atexit.register(self.terminate)  # before Python's own attempt, which came first

    def terminate(self) -> None:
        if self.is_alive():
            self.kill()


class _WorkerContext(context.ForkServerContext):
    Process = _Worker


def _tie_to_owner(worker_id: int) -> None:
    threading.Thread(target=_end_with_owner, daemon=True).start()


def _end_with_owner() -> None:
    """Leave when the training process is gone, however it died.

    torch's own watchdog looks at the parent, and that is the fork server, which in turn lives as
    long as any worker does: after a SIGKILL both would stay for ever.
    """
    connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def remove_folders() -> None:
    """For a process that will end without multiprocessing's own clean-up: start no more workers."""
    while _folders:
        shutil.rmtree(_folders.pop(), ignore_errors=True)


def _worker_context() -> context.BaseContext:
    """The fork server, with the data code imported and deaf to stop signals, as its children are.

    Slurm signals every process of a step. A blocked signal stays blocked across fork and exec, so
    workers are safe from their first instruction on; in this process a signal that comes meanwhile
    is only delayed.
    """
    worker_context = _WorkerContext()
    _folders.add(util.get_temp_dir())
    worker_context.set_forkserver_preload(["hpcddp.data.datasets"])
    with _stop_signals_blocked():
        resource_tracker.ensure_running()
    with _stop_signals_blocked():  # again: starting the tracker unblocks SIGTERM
        forkserver.ensure_running()
    return worker_context


@contextmanager
def _stop_signals_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _unchanged(batch: Any) -> Any:  # noqa: ANN401
    return batch
