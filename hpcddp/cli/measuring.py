"""What the verbs that measure share: their options, and the way through a job and back."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from hpcddp.cli.options import build_request, job_options
from hpcddp.cli.report import draw_report
from hpcddp.cli.submit import announce, warn
from hpcddp.cluster.filesystems import PROVE_SHARED
from hpcddp.cluster.layout import choose_launcher
from hpcddp.cluster.profile import CLUSTER_VARIABLE
from hpcddp.config.layout import EXIT_DONE
from hpcddp.config.schema import RunConfig
from hpcddp.config.write import read_config
from hpcddp.errors import HpcddpError
from hpcddp.launch.measuring import is_in_job, prepare_measuring, read_report, report_path
from hpcddp.launch.request import resolve_request
from hpcddp.launch.submission import Submission, send
from hpcddp.run_dir import RunDir

OF_A_NEW_JOB = ("nodes", "gpus_per_node", "partition", "time", "account", "name", "follows")


def measuring_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a job, --json, --follow and --run-dir to a verb."""
    for option in (
        click.option(
            "--run-dir",
            type=click.Path(path_type=Path, file_okay=False),
            help="leave the report in reports/ of this run; what the job itself is started with",
        ),
        click.option("--follow/--no-follow", "follows", default=True,
                     help="wait for the report and its page, or only send the job: it leaves its "
                     "report in its run, and `report RUN` writes the page"),
        click.option("--json", "as_json", is_flag=True, help="print the report as JSON"),
    ):  # fmt: skip
        function = option(function)
    return job_options(function)


def measures_here(context: click.Context, verb: str, *, uses: Sequence[str] = ()) -> bool:
    """True in a process of a job, which measures right there and sends none.

    Raises HpcddpError where somebody in a shell of a job has typed what only a new job heeds;
    `uses` are options that this verb heeds all the same.
    """
    if not is_in_job(os.environ, verb):
        if context.params["run_dir"] is not None:
            raise HpcddpError(
                "--run-dir is for the processes of a job: here a job is sent, and its report lies "
                "in its own run. Leave it out, or name the run: --name RUN."
            )
        return False
    typed = typed_options(context, [name for name in OF_A_NEW_JOB if name not in uses])
    if typed and context.params["run_dir"] is None:
        names, (_, source) = ", ".join(typed), choose_launcher(os.environ)
        raise HpcddpError(
            f"`{verb}` measures in this very process, because {source} is set: it is a part of a "
            f"job already, and sends none that {names} could be for. Leave out {names}; or, to "
            "send a job, leave this shell (`exit`) and type the same on a login node."
        )
    return True


def typed_options(context: click.Context, names: Sequence[str]) -> list[str]:
    """Those of these parameters that somebody has typed."""
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in names
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]


def config_here(context: click.Context, run_dir: RunDir | None, typed: dict[str, Any]) -> RunConfig:
    """The configuration of a process of a job: of its run, without one from the words typed."""
    if run_dir is not None:
        return read_config(run_dir)
    environ = {CLUSTER_VARIABLE: "local", **os.environ}
    return resolve_request(build_request(context, typed), environ).config


def prepare_job(
    context: click.Context,
    words: Sequence[str],
    typed: dict[str, Any],
    more: tuple[str, ...] = (),
    *,
    is_test: bool = False,
) -> Submission:
    """The job that measures, from the options typed; says what looks odd about it, and of a test
    why it goes into its queue.
    """
    request = build_request(context, typed, more, is_test=is_test)
    submission = prepare_measuring(words, request, typed["name"], os.environ)
    if submission.request.queue_said:
        click.echo(submission.request.queue_said, err=True)
    proves = list(words) == ["doctor"]  # which nobody who has typed it is told to type
    warn(said for said in submission.warnings if not (proves and PROVE_SHARED in said))
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
    submission, job_id = send(submission)
    announce(submission, job_id, err=as_json)
    if not follows:
        sys.exit(EXIT_DONE)
    from hpcddp.launch.watch.follow import follow

    code = follow(submission.run_dir, out=sys.stderr if as_json else sys.stdout)
    if code != EXIT_DONE:
        _say_what_is_kept(submission.run_dir, report)
        sys.exit(code)
    document = read_report(submission.run_dir, report)
    show(document)
    _say_where_the_page_is(submission.run_dir, report, document)


def _say_what_is_kept(run_dir: RunDir, report: str) -> None:
    """Of a job that has ended before it had measured all."""
    if report_path(run_dir, report).exists():
        click.echo(
            f"What it had measured by then: python -m hpcddp report {run_dir.name}", err=True
        )


def _say_where_the_page_is(run_dir: RunDir, report: str, document: dict[str, Any]) -> None:
    """Draw it here, where somebody is to look at it; whatever is wrong, the numbers are shown."""
    try:
        click.echo(f"Page {draw_report(run_dir, report, document)}", err=True)
    except HpcddpError as error:
        click.echo(f"No page: {error.message}", err=True)
    except Exception as error:  # a full disk, a broken matplotlib, a document nobody thought of
        said = " ".join(str(error).split())
        click.echo(f"No page: {type(error).__name__}: {said}", err=True)
