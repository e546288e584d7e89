"""Why Slurm stops a job, read from what `scontrol show job` says of it. Pure; asks nothing.

Source: the states of Slurm 22.05 and 25.11, observed in both; tests/slurm checks 22.05.
"""

from enum import Enum

from hpcddp.launch.scheduler import JobInfo

_ENDING = ("COMPLETING", "CANCELLED", "PREEMPTED", "TIMEOUT")
_EARLY_S = 60  # Slurm may send the `--signal` warning up to this much before its time


class StopReason(Enum):
    """The value is what people read in `status` and events."""

    PREEMPTED = "preempted"
    TIME_LIMIT = "time limit"
    CANCELLED = "cancelled by its user"
    REQUEUED = "requeued by Slurm"
    SIGNALLED = "signalled"
    UNKNOWN = "stopped early"


def stop_reason(job: JobInfo, restart_count: int, warn_before_s: int, now: float) -> StopReason:
    """`restart_count` is that of the attempt which asks; `now` in Unix seconds."""
    if not job.state:
        return StopReason.UNKNOWN
    if job.restarts is not None and job.restarts > restart_count:
        return StopReason.REQUEUED
    if job.reason == "TimeLimit" or job.state == "TIMEOUT":
        return StopReason.TIME_LIMIT
    if job.preempt_time is not None:
        return StopReason.PREEMPTED
    if job.state in _ENDING:
        return StopReason.CANCELLED
    ends_soon = job.end_time is not None and job.end_time - now <= warn_before_s + _EARLY_S
    return StopReason.TIME_LIMIT if ends_soon else StopReason.SIGNALLED
