"""One word for what a run is doing, and why, from all evidence. Pure: reads nothing, asks nobody.

Evidence are the run's own events since its newest submission and what the scheduler says of the
job, if it says anything. A run that wrote `finished` or `cancelled` is believed.
"""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

from hpcddp.launch.history import Record
from hpcddp.launch.scheduler import JobInfo
from hpcddp.launch.watch.failure import exit_words, failure_log, failure_words, is_rank_failure
from hpcddp.launch.watch.job_words import who_cancelled, why_it_waits, why_not_launched
from hpcddp.run_dir import RunDir

ENDED_STATES = ("finished", "failed", "cancelled")
# A run that wrote within this time is believed to live when nobody else can tell: training
# records come every few seconds, and an evaluation or a save between them takes a minute or two.
_FRESH_S = 120.0
_WROTE = "; it wrote "
# Between `scancel` and the end of a job lie KillWait and the site's epilog.
_CANCEL_SETTLES_S = 600.0

_WAITING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "CONFIGURING"}
_ACTIVE = {"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"}
_LEAVING = {"COMPLETING", "STAGE_OUT"}
_ENDED = {
    "COMPLETED": "",
    "FAILED": "",
    "CANCELLED": "",
    "TIMEOUT": "the time limit was reached (TIMEOUT)",
    "NODE_FAIL": "a node failed (NODE_FAIL)",
    "OUT_OF_MEMORY": "out of memory (OUT_OF_MEMORY): ask for more with resources.mem",
    "PREEMPTED": "preempted, and this partition does not requeue (PREEMPTED)",
    "BOOT_FAIL": "a node did not boot (BOOT_FAIL)",
    "DEADLINE": "its deadline passed (DEADLINE)",
    "REVOKED": "moved to another cluster (REVOKED)",
    "LAUNCH_FAILED": "Slurm could not start it (LAUNCH_FAILED)",
}
_TURNS = ("started", "signal", "stopped", "requeued", "failed")


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of a run: `events` of its newest submission, `job` if there is one.

    `now`, `last_write_time` (of the run's files) and `prepared_time` (of its script, where nothing
    was written since) are Unix seconds.
    """

    run_dir: RunDir
    events: Sequence[Record]
    job: JobInfo | None
    now: float
    last_write_time: float
    has_log: bool = True  # False where no batch script has run
    prepared_time: float = 0.0
    complaint: str = ""  # of the batch script, which could not record it

    @property
    def turn(self) -> Record | None:
        """The newest event that changes what the run is doing; not that of an older attempt, whose
        copy a node has kept and let go on.
        """
        return self._newest(*_TURNS)

    @property
    def told_reason(self) -> str:
        """Why Slurm stops the newest attempt, asked when the signal came; "" where it did not."""
        return str((self._newest("stop_reason") or {}).get("reason", ""))

    def _newest(self, *kinds: str) -> Record | None:
        newest = max((e["attempt"] for e in self.events if e.get("attempt") is not None), default=0)
        found = (e for e in reversed(self.events) if e["event"] in kinds)
        return next((e for e in found if e.get("attempt", newest) >= newest), None)

    @property
    def phase(self) -> str:
        """The kind of that event, "" before any."""
        return self.turn["event"] if self.turn else ""

    def has(self, kind: str) -> bool:
        return self.last(kind) is not None

    def last(self, kind: str) -> Record | None:
        return next((e for e in reversed(self.events) if e["event"] == kind), None)

    @property
    def num_nodes(self) -> int:
        """What the run was submitted with, 1 where that is not known."""
        return (self.last("submitted") or {}).get("nodes", 1)

    @property
    def is_cancelled(self) -> bool:
        """Its user cancelled it, and Slurm was told: that is tried only once it is recorded."""
        tries = [e["event"] for e in self.events if e["event"] in ("cancelled", "cancel_failed")]
        return tries[-1:] == ["cancelled"]


def is_settled(events: Sequence[Record], now: float) -> bool:
    """True when the run's own events tell its end, so that no scheduler need be asked."""
    for event in reversed(events):
        if is_finish(event):
            return True
        if event["event"] == "cancelled":
            return now - event.get("time", now) > _CANCEL_SETTLES_S
        if event["event"] in (*_TURNS, "submitted", "cancel_failed"):
            return event["event"] == "failed" and not is_rank_failure(event)
    return False


def is_finish(event: Record) -> bool:
    return event["event"] == "finished"


def decide_state(seen: Evidence) -> tuple[str, str]:
    """The state of the run and the reason for it, "" where there is nothing to add."""
    if seen.has("finished"):
        return "finished", ""
    if seen.job is None or not seen.job.state:
        return _state_without_scheduler(seen)
    job = seen.job
    if _has_started_since(seen, job):  # the start of a job that waits is an estimate
        job = dataclasses.replace(job, state="RUNNING", start_time=None)
    return _state_with_scheduler(seen, job)


def _has_started_since(seen: Evidence, job: JobInfo) -> bool:
    """Slurm was asked before the newest start: by its answer the job still waits for that one."""
    told = (seen.last("launched") or {}).get("restart_count", 0)
    has_started = seen.has("launched") or seen.has("started")
    is_old = job.restarts is not None and job.restarts <= told
    return job.state in _WAITING and is_old and has_started and seen.phase != "requeued"


def _state_with_scheduler(seen: Evidence, job: JobInfo) -> tuple[str, str]:
    state = job.state
    if state in _ENDED:
        return _state_of_ended_job(seen, job)
    if seen.is_cancelled:
        return "stopping", f"{_cancelled_by(seen)}; the job is still {state}"
    if state in _LEAVING | _ACTIVE and _gave_up(seen):
        return "failed", _failure(seen, None)
    if state in _WAITING:
        again = job.restarts or seen.has("started") or seen.has("requeued")
        return "requeued" if again else "pending", why_it_waits(job)
    if state in _LEAVING:
        return ("requeued" if seen.phase == "requeued" else "stopping"), _why_it_stops(seen)
    if state in _ACTIVE:
        return _state_of_running_job(seen, job)
    return "unknown", f"Slurm calls its state {state}"


def _gave_up(seen: Evidence) -> bool:
    """The batch script's last act was to record a failure; only its exit is still to come."""
    return seen.phase == "failed" and seen.turn is not None and not is_rank_failure(seen.turn)


def _state_of_running_job(seen: Evidence, job: JobInfo) -> tuple[str, str]:
    ends = {"requeued": "requeued", **dict.fromkeys(("signal", "stopped", "failed"), "stopping")}
    turn_time = (seen.turn or {}).get("time", 0)
    # else that was an earlier start, and no process of this one has reported yet
    if seen.phase in ends and (job.start_time is None or job.start_time < turn_time):
        return ends[seen.phase], _why_it_stops(seen)
    if job.state != "RUNNING":
        return "running", f"Slurm calls its state {job.state}"
    return "running", "" if seen.phase == "started" else "no process has reported yet"


def _state_of_ended_job(seen: Evidence, job: JobInfo) -> tuple[str, str]:
    if seen.has("cancelled"):
        return "cancelled", _cancelled_by(seen)
    if job.state == "CANCELLED":
        return "cancelled", who_cancelled(job)
    if job.state != "COMPLETED" or seen.phase == "failed":
        return "failed", _failure(seen, job)
    if seen.phase in ("signal", "stopped", "requeued") and not _has_finished_silently(seen, job):
        step = (seen.last("stopped") or {}).get("step")
        where = "" if step is None else f" at step {step}"
        return "failed", f"stopped early{where} and was not started again"
    return "finished", ""


def _has_finished_silently(seen: Evidence, job: JobInfo) -> bool:
    """The last start was after the one that tells the newest turn, and could write nothing on a
    full disk. Which start that was, it says itself, or those before it that were requeued.
    """
    requeued = sum(e["event"] == "requeued" and e is not seen.turn for e in seen.events)
    told = max(requeued, (seen.last("launched") or {}).get("restart_count", 0))
    return job.exit_code == 0 and (job.restarts or 0) > told


def _state_without_scheduler(seen: Evidence) -> tuple[str, str]:
    if seen.is_cancelled:
        return "cancelled", _cancelled_by(seen)
    if seen.phase == "failed":
        return "failed", _failure(seen, None)
    silent_s = seen.now - seen.last_write_time
    why = seen.job.reason if seen.job else "its job is not one that can be asked about"
    is_gone = seen.job is not None and seen.job.forgotten
    if seen.phase in ("started", "signal", "stopped") and silent_s < _FRESH_S and not is_gone:
        state = "running" if seen.phase == "started" else "stopping"
        return state, f"{why}{_WROTE}{silent_s:.0f} s ago"
    if not seen.events and seen.now - seen.prepared_time < _FRESH_S:
        return "pending", "it is being sent"  # sbatch waits for a controller that is away
    if not seen.events:
        return "unknown", "it was prepared and never sent"
    return "unknown", f"{why}; its last sign of life was {clock_text(seen.last_write_time)}"


def without_age(reason: str) -> str:
    """The reason but for how long ago the run wrote, which is another at every look."""
    return reason.partition(_WROTE)[0]


def _cancelled_by(seen: Evidence) -> str:
    by = [event["by"] for event in seen.events if event["event"] == "cancelled" and "by" in event]
    return f"cancelled by {by[0]}" if by else "cancelled by its user"


def _why_it_stops(seen: Evidence) -> str:
    """What the newest event says about an attempt that is on its way out."""
    event = seen.turn
    if event is None or event["event"] == "started":
        return seen.told_reason
    if event["event"] == "failed":
        return _failure(seen, None)
    if event["event"] == "signal":
        return f"received {event.get('signal', 'a signal')}"
    if event["event"] == "stopped":
        return stopped_words(event)
    return str(event.get("reason", ""))


def _failure(seen: Evidence, job: JobInfo | None) -> str:
    """Why the run failed: Slurm's word, then what its events say, then where to read on."""
    if job and (why := why_not_launched(job, seen.run_dir.batch_log, seen.num_nodes)):
        return why
    parts = [_ENDED.get(job.state, "") if job else "", *failure_words(seen.events)]
    if not any(parts) and job is not None:
        reason = f" ({job.reason})" if job.reason else ""
        parts.append(f"its job is {job.state}{reason}, {exit_words(job.exit_code)}")
        parts.append(seen.complaint)
    if seen.has_log:
        parts.append(f"see {failure_log(seen.run_dir, seen.events)}")
    return "; ".join(filter(None, parts))


def stopped_words(event: Record) -> str:
    """What a `stopped` event says."""
    if event.get("step") is None:
        return "stopped before the first step"
    outcome = "state saved" if event.get("saved", True) else "its state could not be saved"
    return f"stopped at step {event['step']}, {outcome}"


def clock_text(unix_time: float) -> str:
    """A local time of day, with the date unless it is today."""
    moment = time.localtime(unix_time)
    today = moment[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", moment)
