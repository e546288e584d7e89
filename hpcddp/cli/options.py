"""The options that `submit`, `render` and `run` share, and how they become a Request."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hpcddp.launch.request import Request

RESOURCES = {
    "nodes": "number of nodes",
    "gpus_per_node": "GPUs per node; one process each",
    "partition": "partition(s)",
    "time": "time limit: minutes, HH:MM:SS or D-HH:MM:SS",
    "account": "account to charge",
}
_NUMBERS = ("nodes", "gpus_per_node")


_JOB_WORDS = "[JOB.yaml] [key=value ...]"


def request_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add JOB, the resource options, key=value overrides and `-- COMMAND` to a verb."""
    return job_options(function, metavar=f"{_JOB_WORDS} [-- COMMAND ...]")


def job_options(function: Callable[..., Any], metavar: str = _JOB_WORDS) -> Callable[..., Any]:
    """Add the same to a verb that has its own command."""
    for name, text in reversed(RESOURCES.items()):
        kind = int if name in _NUMBERS else str  # what is too few, `check_sizes` says
        function = click.option(f"--{name.replace('_', '-')}", name, type=kind, help=text)(function)
    function = click.option("--cluster", metavar="NAME", help="profile, `auto` or `local`")(
        function
    )
    function = click.option("--name", metavar="RUN", help="name of the run")(function)
    words = click.argument("words", nargs=-1, metavar=metavar)
    return words(function)


class RequestCommand(click.Command):
    """Keeps what follows `--` apart: click itself drops the marker."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        own, command = args, []
        if "--" in args:
            cut = args.index("--")
            own, command = args[:cut], args[cut + 1 :]
            if not command or not command[0].strip():
                raise click.UsageError("No program follows `--`; put your command there.")
            if command[0].startswith("-"):
                raise click.UsageError(
                    f"`{command[0]}` follows `--`, where your own program comes, and is an option. "
                    "Type it before `--`, or behind a program."
                )
        context.obj = tuple(command)
        try:
            return super().parse_args(context, own)
        except click.NoSuchOption as error:
            if not command:
                error.message += " Your own program comes after `--`, with its options."
            raise


def build_request(
    context: click.Context,
    typed: dict[str, Any],
    more: tuple[str, ...] = (),
    *,
    is_test: bool = False,
) -> Request:
    """The Request in what was typed: a first word without `=`, or a file, is the job.

    `more` are overrides that win over the typed ones.
    """
    words: tuple[str, ...] = typed["words"]
    has_job = bool(words) and ("=" not in words[0] or Path(words[0]).is_file())
    return Request(
        job=words[0] if has_job else None,
        cluster=typed["cluster"],
        resources={name: typed[name] for name in RESOURCES if typed[name] is not None},
        overrides=(*(words[1:] if has_job else words), *more),
        command=context.obj or (),
        is_test=is_test,
    )
