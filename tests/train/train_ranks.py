"""Real processes with gloo between them, for the tests of this folder.

They come from a fork server that has torch loaded, so one more costs milliseconds.
"""

import importlib
import multiprocessing
import os
import random
import signal
import socket
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection
from pathlib import Path

from hpcddp.config.layout import ProcessLayout
from hpcddp.config.load import Layer, command_line_layer, resolve
from hpcddp.run_dir import RunDir, read_json_lines

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["hpcddp.train.loop"])
DEADLINE_S = 300
# By default Linux gives none of these to a client, and hpcddp none to a job.
_PORTS = iter(random.SystemRandom().sample(range(10_000, 20_000), 10_000))

BASE = {
    "train": {
        "model": "shufflenet_v2_x0_5",  # 0.35 M parameters, with batch norm
        "global_batch": 12,
        "max_steps": 4,
        "eval_every_epochs": None,
        "device": "cpu",
        "rendezvous_timeout_s": 120,
    },
    "data": {"name": "synthetic", "synthetic_samples": 60, "image_size": 32},
    "optim": {"lr": 0.05},
    "checkpoint": {"every_steps": 1000},
    "log": {"every_steps": 1},
}


def small_config(*overrides):
    """A run of seconds; `overrides` as on the command line."""
    return resolve([Layer("test", BASE), command_line_layer(overrides)]).config


def free_ports(count):
    """Ports on which nobody listens; none is given twice."""
    found = []
    while len(found) < count:
        port = next(_PORTS)
        with suppress(OSError), socket.create_server(("", port)):
            found.append(port)
    return tuple(found)


def layouts(world_size, *, ports=None, job_key="test", **fields):
    """One layout per rank, all on this machine."""
    port, *more = ports or free_ports(2)
    return [
        ProcessLayout(
            global_rank=rank,
            world_size=world_size,
            local_rank=rank,
            local_world_size=world_size,
            master_port=port,
            more_ports=tuple(more),
            launcher="local",
            job_key=job_key,
            **fields,
        )
        for rank in range(world_size)
    ]


@dataclass
class Started:
    """Processes that run; `pipes` bring what they return."""

    processes: list
    pipes: list

    def results(self):
        """What each returned, in order; what one of them raised is raised here at once."""
        found = {}
        deadline = time.monotonic() + DEADLINE_S
        try:
            while len(found) < len(self.pipes):
                waiting = [pipe for pipe in self.pipes if pipe not in found]
                ready = connection.wait(waiting, deadline - time.monotonic())
                assert ready, f"{len(waiting)} processes sent nothing in {DEADLINE_S} s"
                found |= {pipe: self._receive(pipe) for pipe in ready}
        finally:
            for process in self.processes:
                process.kill()
                process.join()
        return [found[pipe] for pipe in self.pipes]

    def _receive(self, pipe):
        try:
            value, error = pipe.recv()
        except EOFError:
            raise AssertionError(f"process {self.pipes.index(pipe)} died silently") from None
        if error is not None:
            raise AssertionError(f"process {self.pipes.index(pipe)} failed:\n{error}")
        return value


def start(function, calls):
    """Run `function(*call)` in a process of its own for each of `calls`."""
    started = Started([], [])
    for call in calls:
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=_child, args=(theirs, function, call))
        process.start()
        theirs.close()
        started.processes.append(process)
        started.pipes.append(ours)
    return started


def _child(pipe, function, call):
    import torch

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # as hpcddp.launch.job does on one host
    try:
        pipe.send((function(*call), None))
    except BaseException:
        pipe.send((None, traceback.format_exc()))
    pipe.close()
    os._exit(0)


def train_on(world_size, run_dir, config, function=None, **layout_fields):
    """Train with `world_size` processes; what each returned (the exit code, unless `function`)."""
    run_dir.mkdir(parents=True, exist_ok=True)
    calls = [(config, layout, run_dir) for layout in layouts(world_size, **layout_fields)]
    return start(function or train_here, calls).results()


def train_here(config, layout, run_dir):
    """In a child: train as a job does; its exit code."""
    from hpcddp.stop_flag import StopFlag
    from hpcddp.train.loop import train

    return train(config, layout, RunDir(run_dir), StopFlag.install())


def before_call(module, name, act):
    """Let `act` come before each call of a function of `module`."""
    original = getattr(module, name)

    def wrapped(*arguments, **options):
        act(*arguments)
        return original(*arguments, **options)

    setattr(module, name, wrapped)


def train_signalled(
    config, layout, run_dir, *, is_due, signum=signal.SIGTERM, where="train_step", module="loop"
):
    """In a child: train, and signal this very process before each call of `where` of the module
    for whose arguments `is_due` holds.
    """

    def act(*arguments):
        if is_due(*arguments):
            os.kill(os.getpid(), signum)

    before_call(importlib.import_module(f"hpcddp.train.{module}"), where, act)
    return train_here(config, layout, run_dir)


def train_until(steps, config, layout, run_dir):
    """In a child: stop by a signal to this very process during step `steps`; -1: never."""
    is_due = partial(begins_step, steps)
    return train_signalled(config, layout, run_dir, is_due=is_due)


def begins_step(step, session):
    """True for a session that is about to do this step."""
    return session.state.step == step - 1


def events_of(run_dir):
    return RunDir(run_dir).read_events()


def kinds_of(run_dir):
    """What a run has told, in order, but for the time of its first step."""
    kinds = [event["event"] for event in events_of(run_dir)]
    return [kind for kind in kinds if kind != "first_step"]


def losses_of(run_dir):
    """step -> training loss; of two records of one step the later one."""
    records = read_json_lines(RunDir(run_dir).metrics)
    return {record["step"]: record["loss"] for record in records if "loss" in record}


def evaluations_of(run_dir):
    records = read_json_lines(RunDir(run_dir).metrics)
    return {record["step"]: record for record in records if "accuracy" in record}


def final_state(run_dir: Path):
    """The newest checkpoint's state."""
    from hpcddp.train.checkpoint import load_newest

    return load_newest(RunDir(run_dir).checkpoints).state


def differing(first, second):
    """Names of the sections in which two states differ in any bit."""
    from hpcddp.train.checkpoint_diff import diff_states

    return [section.name for section in diff_states(first, second) if not section.identical]
