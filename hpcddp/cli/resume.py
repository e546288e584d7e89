"""`resume`: go on with a run that has ended."""

import itertools
import os
from collections.abc import Sequence

import click

from hpcddp.cli.options import RESOURCES
from hpcddp.cli.submit import announce, warn
from hpcddp.launch.resume import alone, lead_warning, resume_run, wait_warning
from hpcddp.launch.runs import find_run
from hpcddp.launch.watch.observer import Observer
from hpcddp.run_dir import runs_root


class _ResumeCommand(click.Command):
    """Answers an option of `submit` with the key=value word for the same."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(context, [*args])
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-").replace("-", "_")
            if name not in RESOURCES:
                raise
            raise click.UsageError(
                f"No such option {error.option_name}. Settings of a run are changed by key=value "
                f"words: resources.{name}={_value_of(error.option_name, args)}"
            ) from None


def _value_of(option: str, args: Sequence[str]) -> str:
    """What was typed for the option, `VALUE` if nothing."""
    for word, following in itertools.pairwise([*args, ""]):
        name, _, value = word.partition("=")
        if name == option:
            return value or following or "VALUE"
    return "VALUE"


@click.command(cls=_ResumeCommand)
@click.argument("run")
@click.argument("overrides", nargs=-1, metavar="[key=value ...]")
def command(run: str, overrides: tuple[str, ...]) -> None:
    """Send an ended RUN once more; it goes on from its newest checkpoint.

    Its settings stay, but for key=value words: `resume RUN resources.time=08:00:00`.
    """
    run_dir = find_run(runs_root(os.environ), run)
    with alone(run_dir):
        no_wait = wait_warning(run_dir)
        [status] = Observer([run_dir]).look()
        submission, job_id = resume_run(run_dir, status, overrides, os.environ)
    warn(submission.warnings)
    short_lead = lead_warning(run_dir, submission.request.config.resources.warn_before_s)
    for warning in filter(None, (short_lead, no_wait)):
        click.echo(warning, err=True)
    announce(submission, job_id)
