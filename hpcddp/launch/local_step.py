"""A stand-in for srun on one machine: start every process of every emulated node.

Each process gets its own log and the variables that `hpcddp.cluster.layout` reads. One that
fails ends the others, as `srun --kill-on-bad-exit=1` does.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from hpcddp.cluster.layout import process_environment
from hpcddp.stop_flag import STOP_SIGNALS

_GRACE_S = 10.0  # a process that saves and leaves on its own is not cut off
_POLL_S = 0.05


def run_step(command: Sequence[str], *, nodes: int, processes_per_node: int, logs: Path) -> int:
    """Run all processes to their end; 0, or the exit code of the first that failed."""
    processes: list[subprocess.Popen[bytes]] = []
    _forward_signals_to(processes)
    for global_rank in range(nodes * processes_per_node):
        environ = process_environment(
            os.environ,
            nodes=nodes,
            processes_per_node=processes_per_node,
            global_rank=global_rank,
        )
        with (logs / f"rank-{global_rank:04d}.log").open("ab") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environ))
    return _wait_for(processes, processes_per_node)


def _wait_for(processes: Sequence[subprocess.Popen[bytes]], per_node: int) -> int:
    """The code of the process that failed first; those we end because of it do not count."""
    first_failure = 0
    deadline = float("inf")
    while None in (codes := [process.poll() for process in processes]):
        if any(codes) and not first_failure:
            first_failure = _highest(codes)
            _tell(codes, per_node)
            deadline = time.monotonic() + _GRACE_S
            _signal_living(processes, signal.SIGTERM)
        if time.monotonic() > deadline:
            _signal_living(processes, signal.SIGKILL)
        time.sleep(_POLL_S)
    if not first_failure and any(codes):  # all ended between two looks
        _tell(codes, per_node)
    return first_failure or _highest(codes)


def _tell(codes: Sequence[int | None], per_node: int) -> None:
    """Say in the batch log which process failed, in srun's words (`hpcddp.launch.last_words`)."""
    rank = next(r for r, code in enumerate(codes) if code and _highest([code]) == _highest(codes))
    code = codes[rank] or 0
    end = f"Exited with exit code {code}" if code > 0 else signal.strsignal(-code) or "Killed"
    print(f"local_step: error: node{rank // per_node}: task {rank}: {end}", file=sys.stderr)


def _highest(codes: Sequence[int | None]) -> int:
    """The highest exit code, 128 + signal for a killed process."""
    return max(128 - code if code < 0 else code for code in codes if code is not None)


def _signal_living(processes: Sequence[subprocess.Popen[bytes]], signum: int) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(signum)


def _forward_signals_to(processes: list[subprocess.Popen[bytes]]) -> None:
    """What Slurm would send to the step's processes, sent to us, goes on to them."""

    def forward(signum: int, frame: FrameType | None) -> None:
        _signal_living(list(processes), signum)

    for signum in STOP_SIGNALS:
        signal.signal(signum, forward)


def main(words: Sequence[str] | None = None) -> int:
    """Entry of `python -m hpcddp.launch.local_step`."""
    parser = argparse.ArgumentParser(prog="hpcddp.launch.local_step")
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--processes-per-node", type=int, required=True)
    parser.add_argument("--logs", type=Path, required=True)
    parser.add_argument("command", nargs="+")
    typed = parser.parse_args(words)
    return run_step(
        typed.command,
        nodes=typed.nodes,
        processes_per_node=typed.processes_per_node,
        logs=typed.logs,
    )


if __name__ == "__main__":
    sys.exit(main())
