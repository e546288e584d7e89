"""`report`: write the page of what a run has measured, once more."""

import os
from pathlib import Path
from typing import Any

import click

from hpcddp.errors import HpcddpError
from hpcddp.launch.measuring import read_report, report_path
from hpcddp.launch.runs import find_run
from hpcddp.run_dir import RunDir, runs_root

_NAMES = ("compare", "allreduce")


@click.command()
@click.argument("run")
def command(run: str) -> None:
    """Write reports/*.html of RUN from what it has measured, and say where they are.

    A page is one file without scripts that loads nothing: it can be sent and printed.
    """
    run_dir = find_run(runs_root(os.environ), run)
    there = [name for name in _NAMES if report_path(run_dir, name).exists()]
    for name in there or _NAMES[:1]:
        click.echo(draw_report(run_dir, name, read_report(run_dir, name)))


def draw_report(run_dir: RunDir, name: str, document: dict[str, Any]) -> Path:
    """Write the page of one report; its path. Raises HpcddpError without matplotlib."""
    try:
        from hpcddp.report.pages import write_page
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != "matplotlib":
            raise
        raise HpcddpError(
            "Figures need matplotlib, which is not installed. Type `pip install -e '.[report]'`, "
            f"then `python -m hpcddp report {run_dir.name}`.",
            "no_matplotlib",
        ) from None
    return write_page(name, document, run_dir.reports)
