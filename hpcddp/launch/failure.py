"""What a process of a job says and writes down when it fails, and its exit code. Loads no torch."""

import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress

from hpcddp.config.layout import (
    EXIT_AGAIN,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    ProcessLayout,
)
from hpcddp.errors import HpcddpError
from hpcddp.launch.refusal import is_refused, mark_refusal
from hpcddp.run_dir import RunDir

_NOT_THE_USERS_FAULT = (
    "rendezvous", "checkpoint_not_written", "report_not_written", "wrong_sum", "group_failed",
    "owner_not_known", "run_dir_gone",
)  # fmt: skip
_NO_ROOM = "no_space"


def fail(
    error: BaseException,
    run_dir: RunDir | None,
    layout: ProcessLayout | None,
    environ: Mapping[str, str],
) -> int:
    """Say why this process ends, and write it down where the run is its own; its exit code."""
    code = exit_code_of(error)
    with suppress(OSError):  # the log may be on a full disk
        if isinstance(error, HpcddpError):
            print(f"Error: {error.message}", file=sys.stderr)
        elif code != EXIT_INTERRUPTED:
            traceback.print_exception(error)
    if run_dir is not None:
        if is_refused(error, run_dir, layout):  # the run is in other hands, whose story it tells
            mark_refusal(run_dir, code, environ)
        elif code != EXIT_AGAIN:  # what little room there is belongs to the script's last act
            _record_failure(run_dir, layout, error, code)
    return code


def exit_code_of(error: BaseException) -> int:
    """Wrong usage, unless nobody has used anything wrongly; a full disk may have room later."""
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, HpcddpError) and error.code == _NO_ROOM:
        return EXIT_AGAIN
    is_usage = isinstance(error, HpcddpError) and error.code not in _NOT_THE_USERS_FAULT
    return EXIT_USAGE if is_usage else EXIT_FAILED


def _record_failure(
    run_dir: RunDir, layout: ProcessLayout | None, error: BaseException, code: int
) -> None:
    said = str(error).strip().splitlines()
    line = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
    names = () if layout is None else ("global_rank", "attempt", "job_id")
    place = {name: getattr(layout, name) for name in names}
    try:
        run_dir.append_event("failed", **place, exit_code=code, error=line, reason="error")
    except OSError as problem:
        with suppress(OSError):
            print(f"hpcddp: cannot record the failure: {problem}", file=sys.stderr)
