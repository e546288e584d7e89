"""`cancel`: end a run for good."""

import getpass
import os
import shutil
import sys
import time

import click

from hpcddp.config.layout import EXIT_FAILED
from hpcddp.errors import HpcddpError
from hpcddp.launch.phrases import command_line
from hpcddp.launch.runs import find_run
from hpcddp.launch.slurm_tool import tell
from hpcddp.launch.supervisor import STOP_GRACE_S, stop_supervisor, supervisor_alive
from hpcddp.launch.watch.observer import Observer
from hpcddp.launch.watch.status import RunStatus
from hpcddp.run_dir import RunDir, runs_root

_SCANCEL_TIMEOUT_S = 30.0  # it gives up on a dead controller by itself after 9 s (22.05)
_START_TIMEOUT_S = 10.0


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN ...")
def command(runs: tuple[str, ...]) -> None:
    """End RUN for good: its job is cancelled and nothing starts it again.

    A run that has ended already is left alone, with exit code 0: what was wanted is the case. Of
    several runs each is tried, and the exit code is 1 where one could not be cancelled.
    """
    are_cancelled = [_try_to_cancel(run, is_only=len(runs) == 1) for run in dict.fromkeys(runs)]
    if not all(are_cancelled):
        sys.exit(EXIT_FAILED)


def _try_to_cancel(run: str, *, is_only: bool) -> bool:
    """False where that did not work, and was told. What goes wrong with the only run is raised."""
    try:
        return _cancel(find_run(runs_root(os.environ), run))
    except (HpcddpError, OSError) as error:
        if is_only:
            raise
        click.echo(f"Error: run {run}: {error}", err=True)
        return False


def _cancel(run_dir: RunDir) -> bool:
    """False where Slurm refused. Raises HpcddpError where nobody here can cancel it."""
    [status] = Observer([run_dir]).look()
    if status.has_ended:
        click.echo(f"Run {run_dir.name} is {status.state} already; nothing to cancel.")
        return True
    if status.launcher == "slurm":
        return _cancel_job(run_dir, status)
    if status.launcher == "local":
        _stop_local(run_dir, status)
        return True
    if status.launcher is None:
        raise _not_sent(run_dir, status)
    raise HpcddpError(
        f"Run `{run_dir.name}` was not sent by `submit` (launcher: {status.launcher}, "
        f"{status.job_id}), so there is no job to cancel. Stop it where you started it."
    )


def _not_sent(run_dir: RunDir, status: RunStatus) -> HpcddpError:
    """What is known where nobody recorded how the run was sent, or that was removed since."""
    what = f"{run_dir.events} does not say how run `{run_dir.name}` was sent"
    if not status.job_id:
        return HpcddpError(f"{what}, and names no job: there is none to cancel.")
    if not status.job_id[:1].isdigit():
        return HpcddpError(f"{what}. It names {status.job_id}: stop that where you started it.")
    return HpcddpError(
        f"{what}, as if it had been removed while its job ran. It names job {status.job_id}: look "
        f"whose that is (squeue --jobs={status.job_id}), then type: scancel {status.job_id}"
    )


def _cancel_job(run_dir: RunDir, status: RunStatus) -> bool:
    if shutil.which("scancel") is None:
        raise HpcddpError(
            f"`scancel` was not found on PATH. Run this on a login node of cluster "
            f"{status.cluster}, or type there: scancel {status.job_id}"
        )
    is_recorded = _record_cancelled(run_dir)
    problem = tell(["scancel", str(status.job_id)], _SCANCEL_TIMEOUT_S)
    if problem is None:
        click.echo(f"Run {run_dir.name}: job {status.job_id} cancelled.")
        return True
    _record(run_dir, "cancel_failed", reason=problem)
    promise = "The run will not start again by itself, but the" if is_recorded else "The"
    click.echo(
        f"Error: job {status.job_id} was not cancelled: {problem}. {promise} job may go on; try "
        f"again: {command_line('cancel', run_dir.name)}",
        err=True,
    )
    return False


def _stop_local(run_dir: RunDir, status: RunStatus) -> None:
    if supervisor_alive(run_dir) is not None:  # else it is on another host, and untouched
        _wait_for_start(run_dir, status)
        _record_cancelled(run_dir)
    click.echo(
        f"Run {run_dir.name}: stopping {status.job_id}, which takes up to {STOP_GRACE_S:.0f} s."
    )
    stop_supervisor(run_dir)
    click.echo("All its processes have ended.")


def _wait_for_start(run_dir: RunDir, status: RunStatus) -> None:
    """A supervisor that is just starting has not written down yet who it is."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    observer = Observer([run_dir])
    while status.state == "pending" and time.monotonic() < deadline:
        time.sleep(0.1)
        [status] = observer.look()


def _record_cancelled(run_dir: RunDir) -> bool:
    """Say so before Slurm does it: what ends by our signal must not be started again."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without this user's name
        user = f"user id {os.getuid()}"
    return _record(run_dir, "cancelled", by=user)


def _record(run_dir: RunDir, kind: str, **fields: str) -> bool:
    """False where the disk is full: the run is cancelled all the same."""
    if problem := run_dir.try_event(kind, **fields):
        click.echo(f"Warning: `{kind}` is not recorded: {problem}: {run_dir.events}", err=True)
    return not problem
