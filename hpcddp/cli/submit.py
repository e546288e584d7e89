"""`submit`: send a job and say how to watch it."""

import os
import sys
from collections.abc import Iterable
from typing import Any

import click

from hpcddp.cli.options import RequestCommand, build_request, request_options
from hpcddp.config.layout import EXIT_DONE, EXIT_FAILED
from hpcddp.config.write import config_text
from hpcddp.launch.advice import advice
from hpcddp.launch.phrases import command_line, count_text
from hpcddp.launch.request import resolve_request, world_size
from hpcddp.launch.sbatch import ask_sbatch
from hpcddp.launch.submission import Submission, prepare, send

_MAY_START_TIMEOUT_S = 3.0  # nobody waits longer for a mere warning


@click.command(cls=RequestCommand)
@request_options
@click.option("--dry-run", is_flag=True, help="show everything, send nothing")
@click.option("--follow", "follows", is_flag=True, help="show progress; exit with the job's code")
@click.option("--afterok", metavar="RUN", help="start once RUN has finished")
@click.pass_context
def command(
    context: click.Context,
    dry_run: bool,
    follows: bool,
    afterok: str | None,
    **typed: Any,  # noqa: ANN401
) -> None:
    """Send a job to Slurm, or to this machine with --cluster local.

    JOB.yaml is a file or the name of a shipped one (default: digits); key=value changes any
    setting; `-- COMMAND` runs your own program with torch's rank variables set.
    """
    request = resolve_request(build_request(context, typed), os.environ)
    submission = prepare(request, typed["name"], os.environ)
    warn(submission.warnings)
    options = _waiting(afterok, submission) if afterok else ()
    if dry_run:
        sys.exit(_show(submission))
    submission, job_id = send(submission, *options)
    announce(submission, job_id)
    if follows:
        from hpcddp.launch.watch.follow import follow

        sys.exit(follow(submission.run_dir))


def _waiting(run: str, submission: Submission) -> tuple[str, ...]:
    """Options of sbatch for a job that is to wait for this run."""
    from hpcddp.launch.dependency import afterok_options
    from hpcddp.launch.runs import find_run
    from hpcddp.launch.watch.observer import Observer
    from hpcddp.run_dir import runs_root

    [before] = Observer([find_run(runs_root(os.environ), run)]).look()
    return afterok_options(before, submission)


def warn(sentences: Iterable[str]) -> None:
    """Say what looks odd about a job."""
    for sentence in sentences:
        click.echo(f"Warning: {sentence}", err=True)


def announce(submission: Submission, job_id: str, *, err: bool = False) -> None:
    """Say what was sent, and what can be typed next; on stderr where stdout is for a document.

    Warns of a job that Slurm has taken although it may never start.
    """
    config, profile = submission.request.config, submission.request.profile
    processes = world_size(config, profile)
    run = submission.run_dir.name
    click.echo(
        f"Run {run}: job {job_id} on cluster {profile.name}, "
        f"{count_text(config.resources.nodes, 'node')}, {count_text(processes, 'process')}\n"
        f"Folder {submission.run_dir.path}\n"
        f"Next:\n"
        f"  {command_line('status', run)}\n"
        f"  {command_line('logs', run, '--follow')}\n"
        f"  {command_line('cancel', run)}",
        err=err,
    )
    if profile.launcher == "slurm":
        _warn_of_too_much(run, job_id)


def _warn_of_too_much(run: str, job_id: str) -> None:
    from hpcddp.launch.scheduler import show_job
    from hpcddp.launch.watch.job_words import too_much

    if words := too_much(show_job(job_id, _MAY_START_TIMEOUT_S)):
        cancel = command_line("cancel", run)
        warn([f"{words}: {cancel}. What there is: sinfo --format='%P %l %D %c %m %G'"])


def _show(submission: Submission) -> int:
    """Print configuration and script, and ask Slurm for its opinion; the exit code."""
    click.echo(f"# config.yaml of run {submission.run_dir.name}, each value with its source")
    click.echo(config_text(submission.request.resolved))
    click.echo(f"# {submission.run_dir.script}")
    click.echo(submission.script, nl=False)
    if submission.request.profile.launcher != "slurm":
        return EXIT_DONE
    opinion = ask_sbatch(submission.script, os.environ)
    if opinion is None:
        click.echo("\n# sbatch --test-only: not asked, no answer from Slurm here")
        return EXIT_DONE
    accepted, words = opinion
    click.echo(f"\n# sbatch --test-only: {words}")
    if not accepted and (more := advice(words)):
        click.echo(f"# {more}")
    return EXIT_DONE if accepted else EXIT_FAILED
