"""`logs`: print or follow what the processes of a run, or its batch script, wrote."""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from hpcddp.errors import HpcddpError
from hpcddp.launch.history import FileTail, read_history
from hpcddp.launch.phrases import command_line
from hpcddp.launch.runs import find_run
from hpcddp.launch.watch.display import LineDisplay
from hpcddp.launch.watch.observer import Observer
from hpcddp.run_dir import RunDir, runs_root

_POLL_S = 1.0
_FILES_PER_SECOND = 50  # opened on a shared file system that serves many


@dataclass(frozen=True, slots=True)
class LogChoice:
    """Which logs: a global rank, `all` or `batch`; of one attempt, or None for the newest."""

    run_dir: RunDir
    rank: str
    attempt: int | None

    def files(self) -> list[Path]:
        """The chosen files that exist; the batch log until a process has one."""
        if self.rank == "batch":
            return _existing([self.run_dir.batch_log])
        attempt = self.newest_attempt() if self.attempt is None else self.attempt
        if attempt is None:
            return _existing([self.run_dir.batch_log])
        if self.rank != "all":
            return _existing([self.run_dir.rank_log(attempt, int(self.rank))])
        return sorted(self.run_dir.attempt_logs(attempt).glob("rank-*.log"))

    def newest_attempt(self) -> int | None:
        """The newest attempt that has a log of any process and was not refused the run."""
        newest_first = reversed(attempts(self.run_dir))
        return next((a for a in newest_first if _is_shown(self.run_dir, a)), None)


def attempts(run_dir: RunDir) -> list[int]:
    """Numbers of the attempts that have a folder for their logs."""
    folders = run_dir.batch_log.parent.glob("attempt-*")
    return sorted(int(f.name[8:]) for f in folders if f.name[8:].isdigit())


def _is_shown(run_dir: RunDir, attempt: int) -> bool:
    has_logs = any(run_dir.attempt_logs(attempt).glob("rank-*.log"))
    return has_logs and not run_dir.refusal(attempt).exists()


def _existing(paths: list[Path]) -> list[Path]:
    return [path for path in paths if path.exists()]


@click.command()
@click.argument("run")
@click.option("--rank", default="0", metavar="R|all|batch", help="global rank; default: 0")
@click.option("--attempt", type=click.IntRange(min=0), help="default: the newest")
@click.option("--follow", "-f", is_flag=True, help="go on over all attempts until RUN has ended")
def command(run: str, rank: str, attempt: int | None, follow: bool) -> None:
    """Print the log of one process of RUN, by default of global rank 0 in the newest attempt.

    Until a process has written anything, the log of the batch script is shown. `--rank all`
    shows every process, each line behind its global rank.
    """
    run_dir = find_run(runs_root(os.environ), run)
    choice = LogChoice(run_dir, _check_rank(run_dir, rank), attempt)
    if _writes_elsewhere(choice):
        raise HpcddpError(
            f"Run `{run_dir.name}` was not sent by `submit`, so its processes write no log here, "
            "but where your own `#SBATCH --output`, srun or torchrun says, or on your terminal. "
            f"`{command_line('status', run_dir.name)}` shows how far it is.",
            "no_log",
        )
    if follow:
        _follow(choice)
        return
    files = choice.files()
    if not files:
        raise HpcddpError(_nothing_to_show(choice), "no_log")
    writer = _Writer(prefixed=rank == "all")
    for path in files:
        writer.show(path, is_last=True)


def _writes_elsewhere(choice: LogChoice) -> bool:
    """There is no log, and none will come: no script of ours starts the processes."""
    run_dir = choice.run_dir
    has_begun = run_dir.events.exists() and not run_dir.script.exists()
    return has_begun and not choice.files() and not attempts(run_dir)


def _check_rank(run_dir: RunDir, rank: str) -> str:
    """The rank as typed, if the run can have it. Raises HpcddpError."""
    if rank in ("all", "batch"):
        return rank
    if not (rank.isascii() and rank.isdigit()):
        raise HpcddpError(f"--rank {rank}: found `{rank}`, needed a global rank, `all` or `batch`.")
    submission = read_history(run_dir).submission
    nodes, per_node = submission.get("nodes"), submission.get("processes_per_node")
    if nodes and per_node and int(rank) >= nodes * per_node:
        raise HpcddpError(
            f"--rank {rank}: run `{run_dir.name}` has {nodes * per_node} processes, global ranks "
            f"0 to {nodes * per_node - 1}."
        )
    return str(int(rank))


def _nothing_to_show(choice: LogChoice) -> str:
    run_dir, known = choice.run_dir, attempts(choice.run_dir)
    if choice.attempt is not None and choice.attempt not in known:
        numbers = ", ".join(map(str, known)) or "none yet"
        return f"--attempt {choice.attempt}: run `{run_dir.name}` has attempts: {numbers}."
    return (
        f"Run `{run_dir.name}` has no such log yet in {run_dir.batch_log.parent}. "
        f"`{command_line('status', run_dir.name)}` says why; `--follow` waits for it."
    )


class _Writer:
    """Shows files piece by piece, each part once."""

    def __init__(self, *, prefixed: bool) -> None:
        self._show: Callable[[FileTail, bool], None] = self._lines if prefixed else self._bytes
        self.tails: dict[Path, FileTail] = {}

    def show(self, path: Path, *, is_last: bool) -> None:
        """Write what is new in the file; `is_last` when nobody will write to it again."""
        self._show(self.tails.setdefault(path, FileTail(path)), is_last)
        sys.stdout.flush()

    def finish(self, path: Path) -> None:
        """Show the end of a file that gave way to a newer one."""
        self.show(path, is_last=True)
        del self.tails[path]

    def _bytes(self, tail: FileTail, is_last: bool) -> None:
        for block in tail.blocks():
            sys.stdout.buffer.write(block)

    def _lines(self, tail: FileTail, is_last: bool) -> None:
        name = tail.path.stem.removeprefix("rank-")
        prefix = f"{int(name)}: ".encode() if name.isdigit() else b"batch: "
        lines = tail.lines()
        if is_last and (rest := tail.rest()):
            lines.append(rest)
        for line in lines:
            sys.stdout.buffer.write(prefix + line + b"\n")


def _follow(choice: LogChoice) -> None:
    """Show what is new again and again; all that is not log goes to stderr."""
    writer = _Writer(prefixed=choice.rank == "all")
    observer, display = Observer([choice.run_dir]), LineDisplay(sys.stderr)
    while not observer.is_over:
        [status] = observer.look()  # first: what a run wrote before its end is then shown
        display.status(status)
        files = choice.files()
        for path in [path for path in writer.tails if path not in files]:
            writer.finish(path)
        if files and files[0] not in writer.tails:
            click.echo(f"==> {files[0].parent if choice.rank == 'all' else files[0]} <==", err=True)
        for path in files:
            writer.show(path, is_last=observer.is_over)
        time.sleep(0 if observer.is_over else max(_POLL_S, len(files) / _FILES_PER_SECOND))
    if not writer.tails:
        raise HpcddpError(_nothing_to_show(choice), "no_log")
