"""`wait`: block until a run has ended, and exit with its code."""

import os
import sys
import time

import click

from hpcddp.launch.observer import Observer, Patience
from hpcddp.launch.status import find_run
from hpcddp.launch.words import outcome_line
from hpcddp.run_dir import runs_root

EXIT_TIMED_OUT = 124  # as timeout(1) has it
_POLL_S = 2.0


@click.command()
@click.argument("run")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="S", help="give up after S seconds")
def command(run: str, timeout: float | None) -> None:
    """Wait until RUN has ended, through all its restarts.

    Exit code: 0 finished; its own code, or 1, where it failed; 1 where it was cancelled or where
    its end is not known; 124 where --timeout came first.
    """
    observer = Observer([find_run(runs_root(os.environ), run)])
    deadline = None if timeout is None else time.monotonic() + timeout
    patience = Patience()
    while True:
        [status] = observer.look()
        if status.has_ended or patience.is_over(status):
            click.echo(outcome_line(status))
            sys.exit(status.run_exit_code)
        if deadline is not None and time.monotonic() >= deadline:
            click.echo(f"Run {run} is still {status.state} after {timeout:g} s.", err=True)
            sys.exit(EXIT_TIMED_OUT)
        time.sleep(_POLL_S)
