"""`report`: write the page of what a run has measured, once more."""

import os
from pathlib import Path
from typing import Any

import click

from hpcddp.errors import HpcddpError
from hpcddp.launch.measuring import read_report, report_path
from hpcddp.launch.phrases import command_line
from hpcddp.launch.runs import find_run
from hpcddp.launch.watch.observer import Observer
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
    if not there:
        raise _nothing_to_draw(run_dir)
    for name in there:
        click.echo(draw_report(run_dir, name, read_report(run_dir, name)))


def _nothing_to_draw(run_dir: RunDir) -> HpcddpError:
    status = Observer([run_dir]).look()[0]
    what_next = (
        "What measures: `python -m hpcddp compare` and `python -m hpcddp bench allreduce`."
        if status.state == "finished"
        else f"What it does, or did: {command_line('logs', run_dir.name)}"
    )
    return HpcddpError(
        f"Run `{run_dir.name}` is {status.state} and has left no report that has a page "
        f"({', '.join(f'{name}.json' for name in _NAMES)}) in {run_dir.reports}. {what_next}"
    )


def draw_report(run_dir: RunDir, name: str, document: dict[str, Any]) -> Path:
    """Write the page of one report; its path. Raises HpcddpError without matplotlib, and
    where the page cannot be kept.
    """
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
    try:
        return write_page(name, document, run_dir.reports)
    except OSError as error:
        raise HpcddpError(
            f"The page cannot be kept in {run_dir.reports}: {error.strerror}. Once it can: "
            f"`python -m hpcddp report {run_dir.name}`.",
            "report_not_written",
        ) from None
