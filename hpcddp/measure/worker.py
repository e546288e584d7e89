"""One process of a group: builds a session and takes steps when it is told to.

Comes from a fork server that has torch loaded, so that one more costs little. Knows no other group.
"""

import logging
import os
import sys
import textwrap
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from hpcddp.cluster.devices import DEVICE_VARIABLE
from hpcddp.cluster.layout import layout_from_environ
from hpcddp.cluster.network import settle_network
from hpcddp.config.batch import images_per_device, plan_batches
from hpcddp.config.layout import EXIT_DONE, EXIT_FAILED
from hpcddp.config.schema import RunConfig
from hpcddp.errors import HpcddpError
from hpcddp.run_dir import RunDir

READY = "ready"
_NO_MEMORY = ("out of memory", "can't allocate memory")  # of CUDA, of a CPU
_MOST_WORDS = 160  # of torch's, which goes on about allocators


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """What a process is given: its run, its place in the job, its CPUs and its files."""

    config: RunConfig
    environ: Mapping[str, str]
    world_size: int
    cpus: Sequence[int]
    threads: int  # of one device
    run_dir: Path
    log: Path


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a process ends; with the code of an error that a sentence explains."""

    words: str
    code: str | None


def work(task: WorkerTask, driver: Connection) -> NoReturn:
    """Say READY, then answer each order with a Block, until nobody is there to give one.

    What goes wrong is sent as Trouble and ends the process.
    """
    os.environ.clear()
    os.environ.update(task.environ)
    os.sched_setaffinity(0, task.cpus)
    _write_to(task.log)
    try:
        _serve(task, driver)
        code = EXIT_DONE
    except BaseException as error:
        traceback.print_exc()
        code = EXIT_FAILED
        driver.send(trouble_of(error, task))
    sys.stderr.flush()
    os._exit(code)  # the others of the group may be gone: nobody to part from


def trouble_of(error: BaseException, task: WorkerTask) -> Trouble:
    """What to say of an error; of want of memory also what helps."""
    if isinstance(error, HpcddpError):
        return Trouble(error.message, error.code)
    said = str(error)
    if not any(words in said.lower() for words in _NO_MEMORY):
        return Trouble(repr(error), None)
    train = task.config.train
    plan = plan_batches(
        global_batch=train.global_batch, micro_batch=train.micro_batch, world_size=task.world_size
    )
    images = images_per_device(plan.micro_batch, train.dp_devices or 1)
    return Trouble(
        f"out of memory with {images} images per device in one pass: set train.micro_batch to "
        f"fewer ({textwrap.shorten(said, _MOST_WORDS)})",
        "out_of_memory",
    )


def _write_to(log: Path) -> None:
    """All that this process prints goes there."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)


def _serve(task: WorkerTask, driver: Connection) -> None:
    import torch

    from hpcddp.measure.bench import build_bench
    from hpcddp.train.device import open_device
    from hpcddp.train.process_group import open_ranks

    torch.set_num_threads(task.threads)
    train = task.config.train
    if train.device != "auto":
        os.environ[DEVICE_VARIABLE] = train.device
    layout = layout_from_environ(os.environ)
    if layout.world_size != task.world_size:
        raise HpcddpError(
            f"This process is one of {task.world_size} and was taken for one of "
            f"{layout.world_size} ({layout.sources['launcher']} is set). Unset that variable.",
            "inconsistent",
        )
    os.environ.update(settle_network(layout, os.environ).variables)
    device = open_device(train, layout)
    ranks = open_ranks(layout, device, train.rendezvous_timeout_s)
    bench = build_bench(task.config, layout, RunDir(task.run_dir), device, ranks)
    driver.send(READY)
    while True:
        try:
            order = driver.recv()
        except EOFError:
            return
        driver.send(bench.take(**order))
