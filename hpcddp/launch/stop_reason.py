"""Why Slurm stops a job, read from what `scontrol show job` says of it.

Source: the states of Slurm 22.05 and 25.11, observed in both; tests/slurm checks 22.05.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hpcddp.cluster.job_names import requeue_target, restart_count
from hpcddp.launch.scheduler import JobInfo, leaves_grace, requeues_preempted, show_job
from hpcddp.launch.slurm_tool import is_silence

_ENDING = ("COMPLETING", "CANCELLED", "PREEMPTED", "TIMEOUT")
_TIMES_DIFFER_S = 2.0  # of two answers of the controller about one moment
_EARLY_S = 60  # Slurm may send the `--signal` warning up to this much before its time


class StopReason(Enum):
    """The value is what people read in `status` and events."""

    PREEMPTED = "preempted"
    TIME_LIMIT = "time limit"
    NODE_FAILURE = "node failure"
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
    if job.reason == "NodeDown":
        return StopReason.NODE_FAILURE
    if job.state in _ENDING:
        return StopReason.PREEMPTED if _ended_when_preempted(job) else StopReason.CANCELLED
    if job.preempt_time is not None:
        return StopReason.PREEMPTED
    ends_soon = job.end_time is not None and job.end_time - now <= warn_before_s + _EARLY_S
    return StopReason.TIME_LIMIT if ends_soon else StopReason.SIGNALLED


def _ended_when_preempted(job: JobInfo) -> bool:
    """Preempted without grace by cancelling: Slurm notes both times in one go."""
    if job.preempt_time is None or job.end_time is None:
        return False
    return abs(job.end_time - job.preempt_time) <= 1


@dataclass(frozen=True, slots=True)
class SlurmSays:
    """The reason as of one moment, and when the job is to end as far as Slurm knows.

    `is_silent` where its controller did not answer, which is not the same as an unknown job.
    `is_preemptible` where a job that Slurm has requeued was probably preempted: it does not say.
    """

    reason: StopReason
    end_time: float | None = None
    is_silent: bool = False
    is_preemptible: bool = False

    @property
    def hints(self) -> Mapping[str, Any]:
        """Fields of an event for who reads the story."""
        return {"preemptible": True} if self.is_preemptible else {}


def ask_stop_reason(environ: Mapping[str, str], warn_before_s: int) -> SlurmSays:
    """Ask Slurm about the job this process is a part of."""
    job = show_job(requeue_target(environ))
    reason = stop_reason(job, restart_count(environ), warn_before_s, time.time())
    looks_so = reason is StopReason.PREEMPTED and job.state in ("COMPLETING", "CANCELLED")
    if looks_so and leaves_grace(job.partition, job.qos):
        reason = StopReason.CANCELLED  # in the second of the preemption, which ends nothing yet
    return SlurmSays(
        reason,
        job.end_time,
        is_silent=not job.state and is_silence(job.reason),
        is_preemptible=(
            reason is StopReason.REQUEUED and requeues_preempted(job.partition, job.qos)
        ),
    )


def settle_reason(now: SlurmSays, early: Mapping[str, Any]) -> StopReason:
    """The reason that counts, of the one now and the one when the signal came (an event).

    During the final kill Slurm may say nothing. A preempted job whose grace is over looks as if
    its user had cancelled it; one that has ended before that, its user did cancel. Only Slurm's
    own times tell them apart, as a cancelled job may take KillWait to leave.
    """
    known = next((reason for reason in StopReason if reason.value == early.get("reason")), None)
    if known is None:
        return now.reason
    if now.reason in (StopReason.UNKNOWN, StopReason.SIGNALLED):
        return known
    ended, promised = now.end_time, early.get("end_time")
    looks_ended = now.reason in (StopReason.PREEMPTED, StopReason.CANCELLED)
    if known is StopReason.PREEMPTED and looks_ended and None not in (ended, promised):
        return StopReason.CANCELLED if ended < promised - _TIMES_DIFFER_S else known
    return now.reason
