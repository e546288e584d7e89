"""`render`: print the batch script. Works without Slurm and without torch."""

import os
from typing import Any

import click

from hpcddp.cli.options import RequestCommand, build_request, request_options
from hpcddp.launch.request import resolve_request
from hpcddp.launch.submission import prepare


@click.command(cls=RequestCommand)
@request_options
@click.pass_context
def command(context: click.Context, **typed: Any) -> None:  # noqa: ANN401
    """Print the batch script that `submit` would send, byte for byte."""
    request = resolve_request(build_request(context, typed), os.environ)
    click.echo(prepare(request, typed["name"], os.environ).script, nl=False)
