"""What the verbs that measure share: their options, and the way through a job and back."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from hpcddp.cli.options import build_request, job_options
from hpcddp.cli.report import draw_report
from hpcddp.cli.submit import announce, warn
from hpcddp.config.layout import EXIT_DONE
from hpcddp.errors import HpcddpError
from hpcddp.launch.measuring import prepare_measuring, read_report
from hpcddp.launch.submission import Submission, send
from hpcddp.run_dir import RunDir


def measuring_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a job, --json, --follow and --run-dir to a verb."""
    for option in (
        click.option(
            "--run-dir",
            type=click.Path(path_type=Path, file_okay=False),
            help="leave the report in reports/ of this run; what the job itself is started with",
        ),
        click.option("--follow/--no-follow", "follows", default=True,
                     help="wait for the report, or only send the job: it will lie in its run's "
                     "folder"),
        click.option("--json", "as_json", is_flag=True, help="print the report as JSON"),
    ):  # fmt: skip
        function = option(function)
    return job_options(function)


def prepare_job(
    context: click.Context, words: Sequence[str], typed: dict[str, Any], more: tuple[str, ...] = ()
) -> Submission:
    """The job that measures, from the options typed; says what looks odd about it."""
    request = build_request(context, typed, more)
    submission = prepare_measuring(words, request, typed["name"], os.environ)
    warn(submission)
    return submission


def show_report_of_job(
    submission: Submission,
    report: str,
    show: Callable[[dict[str, Any]], None],
    *,
    follows: bool,
    as_json: bool,
) -> None:
    """Send the job, show it to its end and then the report it has left.

    Leaves the program where nobody wants to follow it, or where the job fails, with its code.
    """
    announce(submission, send(submission), err=as_json)
    if not follows:
        sys.exit(EXIT_DONE)
    from hpcddp.launch.watch.follow import follow

    code = follow(submission.run_dir, out=sys.stderr if as_json else sys.stdout)
    if code != EXIT_DONE:
        sys.exit(code)
    document = read_report(submission.run_dir, report)
    show(document)
    _say_where_the_page_is(submission.run_dir, report, document)


def _say_where_the_page_is(run_dir: RunDir, report: str, document: dict[str, Any]) -> None:
    """Draw it here, where somebody is to look at it; whatever is wrong, the numbers are shown."""
    try:
        click.echo(f"Page {draw_report(run_dir, report, document)}", err=True)
    except HpcddpError as error:
        click.echo(f"No page: {error.message}", err=True)
    except Exception as error:  # a full disk, a broken matplotlib, a document nobody thought of
        said = " ".join(str(error).split())
        click.echo(f"No page: {type(error).__name__}: {said}", err=True)
