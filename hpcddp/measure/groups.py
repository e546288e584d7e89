"""Groups of measuring processes: started once, told to take steps in turn, ended together.

Knows no torch: a group is what answers at the other ends of its pipes.
"""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Mapping, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

from hpcddp.cluster.devices import DEVICE_VARIABLE
from hpcddp.cluster.layout import process_environment
from hpcddp.cluster.ports import PORT_VARIABLE
from hpcddp.cluster.scrub import inherited_names
from hpcddp.config.schema import RunConfig
from hpcddp.errors import HpcddpError
from hpcddp.measure.blocks import Block
from hpcddp.measure.cells import Cell
from hpcddp.measure.worker import Trouble, WorkerTask, work

_END_S = 5.0
_LOG_LINES = 15
_CONTEXT = multiprocessing.get_context("forkserver")


class GroupFailed(HpcddpError):
    """A measuring process failed, ended or does not answer.

    What it could explain is the message, with its code; else the message has the end of its log.
    """


def member_environment(
    environ: Mapping[str, str], group: str, processes: int, global_rank: int
) -> dict[str, str]:
    """The environment of one process of a group: `environ` without the place of its parent.

    Those of torchrun or Slurm would make each process the only one of its group. The devices stay.
    """
    inherited = {*inherited_names(environ, on_this_machine=True)}
    hidden = inherited - {DEVICE_VARIABLE} | {PORT_VARIABLE}
    kept = {name: value for name, value in environ.items() if name not in hidden}
    # A name of its own gives each group ports of its own.
    named = {**kept, "HPCDDP_JOB_ID": f"{os.getpid()}-{group}"}
    return process_environment(
        named, nodes=1, processes_per_node=processes, global_rank=global_rank
    )


class Group:
    """The processes of one cell. Between two calls they wait and use no CPU."""

    def __init__(
        self,
        cell: Cell,
        config: RunConfig,
        cpus: Sequence[Sequence[int]],
        folder: Path,
        environ: Mapping[str, str],
    ) -> None:
        """Start them; `cpus` are those of each process, `folder` is new and theirs alone."""
        self.cell, self.config = cell, config
        self._folder = folder
        self._timeout_s = float(config.train.hang_timeout_s) or float("inf")
        self._start_s = config.train.rendezvous_timeout_s + self._timeout_s
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        folder.mkdir()
        _CONTEXT.set_forkserver_preload(["hpcddp.measure.bench"])
        for global_rank, own in enumerate(cpus):
            place = member_environment(environ, folder.name, cell.processes, global_rank)
            threads = max(1, len(own) * cell.processes // cell.devices)
            log = self._log(global_rank)
            self._start(WorkerTask(config, place, cell.processes, own, threads, folder, log))

    def _start(self, task: WorkerTask) -> None:
        ours, theirs = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=work, args=(task, theirs))
        process.start()
        theirs.close()
        self._processes.append(process)
        self._pipes.append(ours)

    def _log(self, global_rank: int) -> Path:
        return self._folder / f"rank-{global_rank:04d}.log"

    def wait_until_ready(self) -> None:
        """Return when every process has built its session. Raises GroupFailed."""
        self._answers(self._start_s)

    def take(self, steps: int, *, discard: int, sync: bool = True) -> list[Block]:
        """Let all processes take steps; one block each. Raises GroupFailed."""
        for global_rank, pipe in enumerate(self._pipes):
            try:
                pipe.send({"steps": steps, "discard": discard, "sync": sync})
            except OSError:
                raise self._failure(global_rank, self._ending(global_rank)) from None
        return self._answers(self._timeout_s * (discard + steps))

    def _answers(self, timeout_s: float) -> list[Any]:
        """One answer of every process, whoever answers first."""
        deadline = time.monotonic() + timeout_s
        found: dict[Connection, Any] = {}
        while len(found) < len(self._pipes):
            waiting = [pipe for pipe in self._pipes if pipe not in found]
            left_s = None if timeout_s == float("inf") else max(0.0, deadline - time.monotonic())
            ready = connection.wait(waiting, left_s)
            if not ready:
                silent = self._pipes.index(waiting[0])
                raise self._failure(silent, f"has not answered for {timeout_s:.0f} s")
            found |= {pipe: self._receive(pipe) for pipe in ready}
        return [found[pipe] for pipe in self._pipes]

    def _receive(self, pipe: Connection) -> Any:  # noqa: ANN401
        global_rank = self._pipes.index(pipe)
        try:
            answer = pipe.recv()
        except (EOFError, OSError):
            raise self._failure(global_rank, self._ending(global_rank)) from None
        if isinstance(answer, Trouble):
            if answer.code is not None:
                raise GroupFailed(f"{self.cell.name}: {answer.words}", answer.code)
            raise self._failure(global_rank, f"failed: {answer.words}")
        return answer

    def _ending(self, global_rank: int) -> str:
        """That this process has ended, and by which signal where one has ended it."""
        process = self._processes[global_rank]
        process.join(_END_S)
        code = process.exitcode or 0
        if code == -signal.SIGKILL:
            return "was killed (SIGKILL): Linux does that to who takes more memory than there is"
        if code >= 0:
            return "has ended"
        has_name = -code in set(signal.Signals)  # most real-time signals have none
        return f"was ended by {signal.Signals(-code).name if has_name else f'signal {-code}'}"

    def _failure(self, global_rank: int, what: str) -> GroupFailed:
        log, lines = self._log(global_rank), []
        if log.exists():
            lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        end = "\n".join(["", "--- the end of its log", *lines, "---"]) if lines else ""
        place = f"process {global_rank} of {len(self._pipes)}"
        return GroupFailed(f"{self.cell.name}: {place} {what}.{end}", "group_failed")

    def close(self) -> None:
        """End the processes; those that do not end by themselves are killed."""
        for pipe in self._pipes:
            pipe.close()
        deadline = time.monotonic() + _END_S
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(OSError):
                process.kill()
            process.join()

    def __enter__(self) -> "Group":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
