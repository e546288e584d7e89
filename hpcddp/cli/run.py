"""`run`: train in this process. What batch scripts, srun and torchrun start on the nodes."""

import os
from pathlib import Path
from typing import Any

import click

from hpcddp.cli.options import RequestCommand, build_request, request_options
from hpcddp.errors import HpcddpError
from hpcddp.launch.job import run_job
from hpcddp.run_dir import RunDir


@click.command(cls=RequestCommand)
@request_options
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="a run that exists, with its config.yaml; nothing else may be given",
)
@click.pass_context
def command(context: click.Context, run_dir: Path | None, **typed: Any) -> None:  # noqa: ANN401
    """Train in this process: alone, as one task of srun, or as one worker of torchrun."""
    submitted = None
    if run_dir is None:
        from hpcddp.launch.direct import open_run  # only for people who start ranks themselves

        opened, submitted = open_run(build_request(context, typed), typed["name"], os.environ)
        run_dir = opened.path
    elif typed["words"] or context.obj:
        raise HpcddpError("--run-dir takes its settings from config.yaml: give nothing else.")
    run_job(RunDir(run_dir.absolute()), os.environ, submitted)
