"""Typed reads of single environment variables. Knows no Slurm, no torch."""

from collections.abc import Mapping

from hpcddp.errors import HpcddpError

ATTEMPT_VARIABLE = "HPCDDP_ATTEMPT"  # the batch script counts the starts of a run
ATTEMPT_TIME_VARIABLE = "HPCDDP_ATTEMPT_TIME"  # when it began, in Unix seconds
LOCAL_RESTARTS = "HPCDDP_RESTART_COUNT"  # what SLURM_RESTART_COUNT is, without Slurm


def short(text: str) -> str:
    """`text` for a message: a list of a thousand nodes is cut."""
    return text if len(text) <= 80 else f"{text[:77]}..."


def stated(environ: Mapping[str, str], name: str) -> str:
    """`NAME=value` for a message."""
    return f"{name}={short(environ[name])}"


def first_set(environ: Mapping[str, str], *names: str) -> str | None:
    """The first of these names that has a non-blank value, or None."""
    return next((name for name in names if environ.get(name, "").strip()), None)


def read_count(environ: Mapping[str, str], name: str) -> int:
    """The variable as a number of at least 0; raises HpcddpError `inconsistent` or `bad_value`."""
    if not environ.get(name, "").strip():
        raise HpcddpError(f"{name} is not set, so the layout is incomplete.", "inconsistent")
    stripped = environ[name].strip()
    if not (stripped.isascii() and stripped.isdigit() and len(stripped) <= 18):
        raise HpcddpError(
            f"{name}={short(environ[name])!r} is not a number; a count such as 4 is needed."
        )
    return int(stripped)
