"""Order Slurm to requeue this job, and see to it that the order was carried out."""

import time
from collections.abc import Mapping, Sequence

from hpcddp.cluster.job_names import requeue_target
from hpcddp.launch.decision import Event
from hpcddp.launch.history import since_sent
from hpcddp.launch.slurm_tool import is_silence, tell
from hpcddp.launch.stop_reason import SlurmSays, StopReason, ask_stop_reason, settle_reason
from hpcddp.run_dir import RunDir

PAUSE_S = 5.0  # before an absent controller is asked again
_SCONTROL_TIMEOUT_S = 60
_ENDS_JOB = (StopReason.PREEMPTED, StopReason.TIME_LIMIT, StopReason.NODE_FAILURE)


def requeue_until_heard(
    run_dir: RunDir, attempt: int, environ: Mapping[str, str], deadline: float
) -> tuple[StopReason, str | None]:
    """Why the job ends by now, and Slurm's refusal, or None where nothing is left to do.

    Slurm would also revive a job that is cancelled between a question and the order. `incomplete`
    leaves what has ended as it is, and answers the same; and an order that was not answered may
    have been heard. So each time Slurm is asked what it has made of the job.
    """
    target = requeue_target(environ)
    refusal = _requeue(target, "incomplete")
    while True:
        why, now = ask_why(run_dir, attempt, environ)
        if why in (StopReason.REQUEUED, StopReason.CANCELLED):
            return why, None
        if refusal is None and not now.is_silent:
            if why in _ENDS_JOB:
                refusal = _requeue(target)
            if refusal is None:
                return why, None
        elif time.monotonic() > deadline or (refusal and not is_silence(refusal)):
            return why, refusal
        else:
            time.sleep(PAUSE_S)
            if refusal and not now.is_silent:
                refusal = _requeue(target, "incomplete")


def keep_off(nodes: str, environ: Mapping[str, str]) -> None:
    """Let the next start of this job be on other nodes."""
    _scontrol(["update", f"jobid={requeue_target(environ)}", f"ExcNodeList={nodes}"])


def ask_why(
    run_dir: RunDir, attempt: int, environ: Mapping[str, str]
) -> tuple[StopReason, SlurmSays]:
    """Why the job ends, in view of all that was told, and what Slurm says of it now."""
    now = ask_stop_reason(environ, 0)
    return settled_reason(now, run_dir.read_events(), attempt), now


def settled_reason(now: SlurmSays, events: Sequence[Event], attempt: int) -> StopReason:
    """Of what Slurm says now, what it said early, and `hpcddp cancel`, which records itself before
    it tells Slurm: so `events` are to be read after Slurm was asked.
    """
    if any(event["event"] == "cancelled" for event in since_sent(events)):
        return StopReason.CANCELLED
    return settle_reason(now, _early_reason(events, attempt))


def _early_reason(events: Sequence[Event], attempt: int) -> Event:
    """What the main process was told when the stop signal came, an empty record if nothing."""
    told = [event for event in events if event["event"] == "stop_reason"]
    return next((event for event in reversed(told) if event.get("attempt") == attempt), {})


def _requeue(target: str, *which: str) -> str | None:
    """Requeue this job, allowing it first where the job forbids it; Slurm's refusal, or None."""
    refusal = _scontrol(["requeue", *which, target])
    if refusal is None or is_silence(refusal):
        return refusal
    if _scontrol(["update", f"jobid={target}", "requeue=1"]) is not None:
        return refusal
    return _scontrol(["requeue", *which, target])


def _scontrol(words: Sequence[str]) -> str | None:
    return tell(["scontrol", *words], _SCONTROL_TIMEOUT_S)
