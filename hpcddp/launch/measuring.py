"""A verb that measures: right here in a process of a job, else by a job of its own. Measures
nothing itself and knows no report's content.
"""

import dataclasses
import functools
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hpcddp.cluster.layout import choose_launcher, layout_from_environ
from hpcddp.cluster.ports import ephemeral_range
from hpcddp.cluster.slurm_step import not_in_step
from hpcddp.config.layout import EXIT_DONE, ProcessLayout
from hpcddp.errors import HpcddpError
from hpcddp.launch.failure import fail
from hpcddp.launch.job import with_network
from hpcddp.launch.request import Request, ResolvedRequest, resolve_request
from hpcddp.launch.submission import Submission, check_run_name, prepare_in
from hpcddp.leave import leave
from hpcddp.run_dir import RunDir, runs_root, write_atomically


def is_in_job(environ: Mapping[str, str], verb: str) -> bool:
    """True in a process that srun, torchrun or the local executor has started: measure here.

    Raises HpcddpError `not_in_step` in a batch script or a salloc shell, with the line to type.
    """
    try:
        launcher, source = choose_launcher(environ)
    except HpcddpError as error:
        if error.code == "not_in_step":
            raise not_in_step(environ, verb) from None
        raise
    return launcher != "single" or source in environ


def measure_here(
    work: Callable[[ProcessLayout], int | None],
    run_dir: RunDir | None,
    environ: Mapping[str, str],
) -> NoReturn:
    """Do this process's part and leave with the exit code it gives (None: done); a failure is
    recorded in the run.

    Leaves through `os._exit`, as `run_job` does and for its reason.
    """
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO, stream=sys.stderr)
    layout: ProcessLayout | None = None
    try:
        layout = layout_from_environ(environ, ephemeral=ephemeral_range())
        layout, network = with_network(layout, environ)
        os.environ.update(network.variables)  # before torch is loaded
        code = work(layout) or EXIT_DONE
    except BaseException as error:
        code = fail(error, run_dir, layout, environ)
    leave(code)


def prepare_measuring(
    words: Sequence[str], request: Request, name: str | None, environ: Mapping[str, str]
) -> Submission:
    """The job whose every process runs `python -m hpcddp WORDS --run-dir RUN`; writes nothing.

    The verb finds its JOB and overrides in the run's config.yaml, and leaves its report in the
    run's reports/. Raises HpcddpError as `submit` does.
    """
    verb = "-".join(word for word in words[:2] if word.isalpha())
    run_name = check_run_name(name or f"{verb}-{time.strftime('%Y%m%d-%H%M%S')}")
    run_dir = RunDir(runs_root(environ) / run_name)

    def resolve(python: str) -> ResolvedRequest:
        command = (python, "-m", "hpcddp", *words, "--run-dir", str(run_dir.path))
        return resolve_request(dataclasses.replace(request, command=command), environ)

    resolved = resolve(sys.executable)
    if resolved.config.resources.container:
        resolved = resolve(resolved.profile.container.python)
    submission = prepare_in(resolved, run_dir, environ)
    if name:
        return submission
    again = functools.partial(prepare_measuring, words, request, environ=environ)
    return dataclasses.replace(submission, renamed=lambda other: again(name=other))


def report_path(run_dir: RunDir, name: str) -> Path:
    """Where the report of that name lies, such as `compare`."""
    return run_dir.reports / f"{name}.json"


def write_report(
    run_dir: RunDir, name: str, document: Mapping[str, Any], *, is_printed: bool = True
) -> None:
    """Leave a report in the run directory, whole or not at all. For the main process.

    Raises HpcddpError `report_not_written`; it says of one that `is_printed` that it was.
    """
    path = report_path(run_dir, name)
    try:
        run_dir.reports.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise HpcddpError(
            f"The report {'was printed and ' if is_printed else ''}cannot be kept in {path}: "
            f"{error.strerror}.",
            "report_not_written",
        ) from None


def read_report(run_dir: RunDir, name: str) -> dict[str, Any]:
    """The report that a run has left. Raises HpcddpError where there is none, or a damaged one."""
    path = report_path(run_dir, name)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HpcddpError(
            f"Run `{run_dir.name}` has no report {path.name} in {path.parent}. Has it measured "
            f"that, and finished? `python -m hpcddp logs {run_dir.name}` shows what it did."
        ) from None
    except ValueError as error:
        raise HpcddpError(f"{path} is damaged ({error}). Measure again.") from None
    if not isinstance(document, dict):
        raise HpcddpError(f"{path} holds no report: found a {type(document).__name__}.")
    return document
