"""`wait`: block until a run has ended, and exit with its code."""

import math
import os
import sys
import time

import click

from hpcddp.launch.runs import find_run
from hpcddp.launch.watch.display import LineDisplay
from hpcddp.launch.watch.observer import Observer
from hpcddp.launch.watch.words import outcome_line
from hpcddp.run_dir import runs_root

EXIT_TIMED_OUT = 124  # as timeout(1) has it
_POLL_S = 2.0


@click.command()
@click.argument("run")
@click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="S", help="give up after S seconds"
)
def command(run: str, timeout: float | None) -> None:
    """Wait until RUN has ended, through all its restarts; stderr says what it waits for.

    Exit code: 0 finished; its own code, or 1, where it failed; 1 where it was cancelled or where
    its end is not known; 124 where --timeout came first.
    """
    observer, display = Observer([find_run(runs_root(os.environ), run)]), LineDisplay(sys.stderr)
    deadline = time.monotonic() + (math.inf if timeout is None else timeout)
    while True:
        [status] = observer.look()
        display.status(status)
        if observer.is_over:
            click.echo(outcome_line(status))
            sys.exit(status.run_exit_code)
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            click.echo(f"Run {run} is still {status.state} after {timeout:g} s.", err=True)
            sys.exit(EXIT_TIMED_OUT)
        time.sleep(min(_POLL_S, remaining_s))
