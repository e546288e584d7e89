"""Values of sbatch options, read as Slurm reads them. Knows no option combinations, no Slurm."""

import re
from dataclasses import dataclass

from hpcddp.cluster.variables import short
from hpcddp.errors import HpcddpError

# hpcddp's own handlers; any other signal ends a process at once, without a checkpoint.
HANDLED_SIGNALS = ("USR2", "USR1", "TERM")
_SIGNALS = {
    "HUP": 1, "INT": 2, "QUIT": 3, "ABRT": 6, "KILL": 9, "USR1": 10, "USR2": 12, "ALRM": 14,
    "TERM": 15, "CONT": 18, "STOP": 19, "TSTP": 20, "TTIN": 21, "TTOU": 22, "URG": 23,
}  # fmt: skip
_DEFAULT_LEAD_S, _MAX_LEAD_S = 60, 65_535
_MIB_PER_UNIT = {"M": 1, "G": 1024, "T": 1024 * 1024}
_TIME = re.compile(r"(?:(\d{1,9})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?", re.ASCII)
_MEMORY = re.compile(r"(\d{1,15})(?:([KMGT])B?)?", re.ASCII | re.IGNORECASE)
_SIGNAL = re.compile(
    r"(?:([RB]{1,2}):)?(?:SIG)?([A-Z0-9]{1,9})(?:@(\d{1,9}))?", re.ASCII | re.IGNORECASE
)
_GPUS = re.compile(r"(?:[^:,=]+[:=])?(\d{1,9})|[^\d:,=][^:,=]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class WarningSignal:
    """The signal Slurm sends before the time limit: its name without SIG, and how early."""

    name: str
    lead_s: int


def parse_time_limit(text: str | int) -> int:
    """A Slurm time limit in whole minutes; seconds round up, as in Slurm.

    Forms: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S. Raises HpcddpError `bad_value`, also for
    UNLIMITED: without an end there is no signal before it, and the scheduler cannot fit such a
    job in anywhere.
    """
    match = _TIME.fullmatch(str(text))
    seconds = _seconds(*match.groups()) if match else 0
    if not seconds:
        raise HpcddpError(
            f"time={short(str(text))!r} is no time limit. Needed is a limited time in one of "
            "Slurm's forms: 90 (minutes), 30:00 (M:S), 72:00:00 (H:M:S), 2-12 (days-hours) or "
            "2-12:30:00."
        )
    return -(-seconds // 60)


def _seconds(days: str | None, *parts: str | None) -> int:
    given = [int(part) for part in parts if part is not None]
    if days is not None:
        hours, minutes, seconds = (*given, 0, 0)[:3]
    elif len(given) == 3:
        hours, minutes, seconds = given
    else:
        hours, (minutes, seconds) = 0, (*given, 0)[:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def parse_memory(text: str | int, option: str = "mem") -> int:
    """Memory in MiB (Slurm's unit where none is given); 0 means all of a node."""
    match = _MEMORY.fullmatch(str(text))
    if not match:
        raise HpcddpError(
            f"{option}={short(str(text))!r} is no amount of memory. Give a whole number with K, M, "
            "G or T, for example 16G; units are powers of 1024 (GiB is not a Slurm unit)."
        )
    number, unit = int(match[1]), (match[2] or "M").upper()
    return -(-number // 1024) if unit == "K" else number * _MIB_PER_UNIT[unit]


def parse_signal(text: str | int) -> WarningSignal:
    """`USR2@120` as its parts. Raises HpcddpError: `bad_value`, or `conflict` for a `B:` signal."""
    match = _SIGNAL.fullmatch(str(text))
    name = _signal_name(match[2].upper()) if match else None
    lead_s = int(match[3] or _DEFAULT_LEAD_S) if match else 0
    if not match or name is None or lead_s > _MAX_LEAD_S:
        raise HpcddpError(
            f"signal={short(str(text))!r} is not understood. Needed is NAME@SECONDS with at most "
            f"{_MAX_LEAD_S} seconds, for example USR2@120."
        )
    if "B" in (match[1] or "").upper():
        raise HpcddpError(
            f"signal={short(str(text))}: with `B:` Slurm signals only the batch shell, so the "
            f"training processes get no notice and cannot save. Use signal={name}@{lead_s}.",
            "conflict",
        )
    return WarningSignal(name, lead_s)


def _signal_name(text: str) -> str | None:
    if text.isdigit():
        return next((name for name, number in _SIGNALS.items() if number == int(text)), None)
    return text if text in _SIGNALS else None


def parse_gpus(text: str | int, option: str) -> int:
    """The number in `4`, `a100:4`, `a100` (one) or `a100:2,v100:2`; the type does not matter."""
    matches = [_GPUS.fullmatch(item) for item in str(text).split(",")]
    if not all(matches):
        raise HpcddpError(f"{option}={short(str(text))!r} is no number of GPUs. Use 4 or a100:4.")
    return sum(int(match[1] or 1) for match in matches if match)


def parse_gres_gpus(text: str) -> int | None:
    """GPUs in a gres request such as `gpu:a100:4,nvme:1`; None if it asks for none."""
    kinds = [item.removeprefix("gres:").partition(":") for item in text.split(",")]
    counts = [parse_gpus(rest or "1", "gres") for kind, _, rest in kinds if kind == "gpu"]
    return sum(counts) if counts else None
