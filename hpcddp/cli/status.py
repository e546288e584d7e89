"""`status`: what all runs, or one, are doing."""

import dataclasses
import json
import math
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import click

from hpcddp.errors import HpcddpError
from hpcddp.launch.runs import find_run, list_runs
from hpcddp.launch.watch.observer import Observer
from hpcddp.launch.watch.status import RunStatus
from hpcddp.launch.watch.words import status_details, status_table
from hpcddp.run_dir import runs_root

# The run's files lie on a file system that many share; a person reads no faster than this.
_REFRESH_S = 2.0
_CLEAR_SCREEN = "\x1b[H\x1b[2J"


@click.command()
@click.argument("run", required=False)
@click.option("--json", "as_json", is_flag=True, help="print one object (RUN) or a list")
@click.option("--watch", is_flag=True, help="refresh until the end of RUN, or until Ctrl-C")
def command(run: str | None, as_json: bool, watch: bool) -> None:
    """What the runs are doing: all, newest first, or only RUN with details.

    The answer comes from Slurm (squeue, then sacct where there is accounting) and from the run's
    own files. Runs lie in ./runs, or where HPCDDP_RUNS_DIR says.
    """
    if as_json and watch:
        raise HpcddpError("--json prints one document and ends: leave out --json or --watch.")
    root = runs_root(os.environ)
    run_dirs = [find_run(root, run)] if run else list_runs(root)
    observer = Observer(run_dirs)
    if watch:
        _watch(observer, root, single=run is not None)
        return
    statuses = _newest_first(observer.look())
    if as_json:
        documents = [_document(status) for status in statuses]
        click.echo(json.dumps(documents[0] if run else documents, indent=2))
        return
    click.echo("\n".join(_lines(statuses, root, single=run is not None)))


def _document(status: RunStatus) -> dict[str, Any]:
    """The status as JSON can say it: there is no NaN in JSON, and a loss may be one."""
    values = dataclasses.asdict(status).items()
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values}


def _newest_first(statuses: list[RunStatus]) -> list[RunStatus]:
    return sorted(statuses, key=lambda status: status.submitted_time or 0.0, reverse=True)


def _lines(statuses: list[RunStatus], root: Path, *, single: bool) -> list[str]:
    if single:
        return status_details(statuses[0])
    if not statuses:
        return [f"No runs in {root}."]
    lines = status_table(statuses)
    if not sys.stdout.isatty():
        return lines
    width = shutil.get_terminal_size().columns
    return [line if len(line) <= width else f"{line[: width - 1]}…" for line in lines]


def _watch(observer: Observer, root: Path, *, single: bool) -> None:
    """Show the statuses again and again; the end of a single run ends it."""
    clear = _CLEAR_SCREEN if sys.stdout.isatty() else ""
    while True:
        if not single:
            observer.add(list_runs(root))
        statuses = _newest_first(observer.look())
        screen = [time.strftime("%H:%M:%S"), *_lines(statuses, root, single=single)]
        click.echo(clear + "\n".join(screen))
        if single and statuses[0].has_ended:
            return
        time.sleep(_REFRESH_S)
