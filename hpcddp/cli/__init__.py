"""The command line: one module per verb, loaded only when that verb is used."""

import difflib
import gc
import importlib
import os
import sys

import click

import hpcddp
from hpcddp.config.layout import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from hpcddp.errors import HpcddpError, SubmissionFailed

VERBS = {
    "submit": "send a job to Slurm, or to this machine with --cluster local",
    "render": "print the batch script that submit would send",
    "run": "train in this process; what the batch script calls",
    "status": "what the runs are doing",
    "logs": "print or follow the log of a run",
    "wait": "wait for the end of a run",
    "cancel": "stop a run for good",
    "resume": "send an ended run once more, from its newest checkpoint",
    "env": "which process am I: ranks, sizes, hosts, address and port",
    "cluster": "profiles of clusters: list, show, explain, detect, check",
    "doctor": "what is wrong with this host, and with the nodes of a job",
    "rehearse": "prove that a job survives preemption on this cluster",
    "compare": "DataParallel against DistributedDataParallel, measured side by side",
    "bench": "measure parts of the machine: allreduce",
    "report": "write the page of what a run has measured",
    "checkpoint": "list, verify, compare and export checkpoints",
}


class _Verbs(click.Group):
    """Finds a verb in the module of its name, so that `status` never pays for `submit`."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        gc.disable()  # what modules make stays: to look for garbage in it takes a fifth of a start
        try:
            return importlib.import_module(f"hpcddp.cli.{name}").command
        finally:
            gc.freeze()
            gc.enable()

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = [] if args[0] in VERBS else difflib.get_close_matches(args[0], VERBS, n=1)
        if near:
            context.fail(f"No such command '{args[0]}'. Did you mean '{near[0]}'?")
        return super().resolve_command(context, args)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.command(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(hpcddp.__version__, prog_name="hpcddp")
def group() -> None:
    """Data-parallel PyTorch training on Slurm: send it, watch it, survive preemption."""


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    try:
        code = group.main(standalone_mode=False, prog_name="python -m hpcddp")
    except HpcddpError as error:
        code = _complain(error.message)
    except SubmissionFailed as error:
        click.echo(f"Error: not submitted: {error}", err=True)
        code = EXIT_FAILED
    except click.exceptions.Abort:
        code = EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        code = EXIT_USAGE
    except ModuleNotFoundError as error:
        if str(error.name).startswith("hpcddp"):
            raise
        code = _complain(
            f"Python module `{error.name}` is not installed for {sys.executable}. Activate the "
            "environment that hpcddp was installed in, or install it there: pip install -e ."
        )
    except BrokenPipeError:
        sys.stderr.close()
        code = EXIT_FAILED
    except OSError as error:
        click.echo(f"Error: {_system_words(error)}", err=True)
        code = EXIT_FAILED
    sys.exit(code)


def _system_words(error: OSError) -> str:
    """What the operating system refused, and for which file: a full disk, a missing right."""
    try:
        os.getcwd()
    except OSError:
        return "the folder you are in does not exist any more. Change to another one."
    return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"


def _complain(message: str) -> int:
    click.echo(f"Error: {message}", err=True)
    return EXIT_USAGE
