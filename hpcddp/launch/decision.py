"""Whether a run starts again: pure rules over how its attempt ended and the run's history."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcddp.config.layout import EXIT_AGAIN, EXIT_DONE
from hpcddp.config.schema import RequeueConfig
from hpcddp.launch.stop_reason import StopReason
from hpcddp.stop_flag import STOP_SIGNALS

Event = Mapping[str, Any]
# Slurm has ended the attempt for reasons of its own, and its user wants it to go on.
_GOES_ON = (
    StopReason.PREEMPTED, StopReason.TIME_LIMIT, StopReason.NODE_FAILURE, StopReason.REQUEUED,
)  # fmt: skip
_TAKEN = (StopReason.PREEMPTED.value, StopReason.REQUEUED.value)
_BY_ITSELF = (StopReason.UNKNOWN.value, StopReason.SIGNALLED.value)
# Of one that has hardly begun the limit is no reason: it is too short to get anywhere. And nodes
# that are lost at each start would be so for ever.
_NO_EXCUSE = (*_BY_ITSELF, StopReason.TIME_LIMIT.value, StopReason.NODE_FAILURE.value)
_SHORT_S = 60.0
_ENDS = ("finished", "requeued", "cancelled", "failed", "ended")


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended: srun's exit code, Slurm's reason, and whether Slurm has sent SIGTERM
    to the batch script itself, as it does when it ends the whole job.

    `culprit` names the tasks that ended first, where srun told; `began` and `time`, which is now,
    are Unix seconds.
    """

    exit_code: int
    attempt: int = 0
    why: StopReason = StopReason.UNKNOWN
    terminated: bool = False
    out_of_memory: bool = False
    culprit: str = ""
    unreached: tuple[str, ...] = ()  # nodes on which srun could start nothing
    unstarted: str = ""  # why srun could start nothing at all, in words
    no_space: str = ""  # where nothing else tells why: that there is no room, in words
    unended: tuple[int, ...] = ()  # the attempts before it whose end the full disk has not taken
    is_own_program: bool = False  # a user's command, whose checkpoints nobody here can see
    began: float = 0.0
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to happen: the event to record, why, and the exit code of the job."""

    event: str  # finished, requeued, failed or cancelled
    reason: str
    exit_code: int


def tells_end(event: Event) -> bool:
    """True for what says how an attempt ended, and not only one of its processes."""
    return event["event"] in _ENDS and "global_rank" not in event


def decide(ending: Ending, events: Sequence[Event], budget: RequeueConfig) -> Decision:
    """Pure: how the attempt ended, and the history since the user sent the run.

    Exit codes are kept, so that a requeue never turns a failure into success. Slurm would also
    requeue a cancelled job if it were asked, so where this shell was told to end and nobody knows
    why, the answer is no.
    """
    exit_code, why = ending.exit_code, ending.why
    if exit_code == EXIT_DONE:
        return Decision("finished", "", EXIT_DONE)
    if why is StopReason.CANCELLED or (ending.terminated and why not in _GOES_ON):
        return cancelled(ending)
    stopped_early = _stopped_early(ending, events)
    if why is StopReason.REQUEUED:  # whatever the code says: the next attempt is queued already
        return Decision("requeued", why.value, EXIT_AGAIN if stopped_early else exit_code)
    if stopped_early:
        return _after_stop(ending, events, budget)
    return _after_failure(ending, events, budget)


def cancelled(ending: Ending) -> Decision:
    """Its user wants it to end."""
    return Decision("cancelled", StopReason.CANCELLED.value, ending.exit_code)


def _stopped_early(ending: Ending, events: Sequence[Event]) -> bool:
    """The attempt left because it was told to, having saved whatever there was to save.

    The first process to leave with 75 makes kill-on-bad-exit end slower ones, so the code may be
    another one although all is saved. And until Python has installed its handlers a stop signal
    simply ends it; a user's own program may have none at all.
    """
    if ending.exit_code == EXIT_AGAIN or ending.unstarted:
        return True
    if ending.why is StopReason.NODE_FAILURE:
        return True  # whatever the processes that are left made of a lost one
    kinds = {event["event"] for event in events if event.get("attempt") == ending.attempt}
    if ending.exit_code > 128 and ending.why in _GOES_ON and not kinds & {"started", "failed"}:
        return True  # Slurm was quicker than its start, which had nothing to save
    if ending.exit_code > 128 and "failed" not in kinds and _may_be_aborted(ending, events):
        return True
    if ending.exit_code - 128 in STOP_SIGNALS:
        return not kinds & {"started", "failed"} or "stopped" in kinds or ending.why in _GOES_ON
    return ending.exit_code > 128 and "stopped" in kinds


def _may_be_aborted(ending: Ending, events: Sequence[Event]) -> bool:
    """The attempt before was lost with a node. Where that comes back, the srun on it aborts the
    step of its number, which by then is this attempt's (Slurm 22.05). Once only: the next attempt
    has another predecessor. Who is killed before it has looked cannot have told of that loss.
    """
    before = [event for event in events if event.get("attempt") == ending.attempt - 1]
    has_looked = any(event.get("attempt") == ending.attempt for event in events)
    is_lost = any(event.get("lost_nodes") for event in before)
    may_be_lost = bool(before) and not has_looked and not any(map(tells_end, before))
    return not ending.out_of_memory and (is_lost or may_be_lost)


def _after_stop(ending: Ending, events: Sequence[Event], budget: RequeueConfig) -> Decision:
    if ending.is_own_program:
        idle, at_limit = _short_attempts(ending, events), ending.why is StopReason.TIME_LIMIT
        how = "of their start, this one at its time limit" if at_limit else "by themselves"
        what = f"ended within {_SHORT_S:.0f} s {how}"
    else:
        idle, what = _attempts_without_progress(ending, events), "made no progress"
    if idle >= budget.max_without_progress > 0:
        reason = f"{idle} attempts in a row {what} (requeue.max_without_progress)"
        return Decision("failed", f"{_cause(ending)}{reason}", EXIT_AGAIN)
    told = ending.unstarted or ending.no_space
    is_told = told and ending.why.value in _BY_ITSELF
    return Decision("requeued", told if is_told else ending.why.value, EXIT_AGAIN)


def _after_failure(ending: Ending, events: Sequence[Event], budget: RequeueConfig) -> Decision:
    recorded = sum(event["event"] == "requeued" and "failure" in event for event in events)
    failures = recorded + len(ending.unended) + 1
    what = _cause(ending)
    if failures <= budget.max_failures:
        reason = f"{what}failure {failures} of at most {budget.max_failures} (requeue.max_failures)"
        return Decision("requeued", reason, ending.exit_code)
    where = f" of {ending.culprit}" if ending.culprit else ""
    return Decision("failed", f"{what}exit code {ending.exit_code}{where}", ending.exit_code)


def _cause(ending: Ending) -> str:
    """What stands before the rest of the reason, "" where nobody knows."""
    cause = "out of memory" if ending.out_of_memory else ending.no_space
    return f"{cause}, " if cause else ""


def _attempts_without_progress(ending: Ending, events: Sequence[Event]) -> int:
    """Attempts in a row, this one included, that saved no new step; some do not even start, and of
    some there is no event.
    """
    saved, resumed, count, has_started, started = -1, -1, 0, False, set()
    for event in events:
        if event["event"] == "started":
            count, has_started = count + 1, True
            started.add(event.get("attempt"))
        elif event["event"] == "requeued":
            count, has_started = count + (not has_started), False
        elif event["event"] == "resumed":
            step = event.get("step", resumed)
            if step > resumed:  # else what was saved since has been torn
                saved = min(saved, step)
            resumed = step
        elif event["event"] == "checkpoint" and event.get("step", -1) > saved:
            saved, count = event["step"], 0
    return count + len({ending.attempt, *ending.unended} - started)


def _short_attempts(ending: Ending, events: Sequence[Event]) -> int:
    """Attempts in a row, this one included, that left at once though Slurm had no reason to stop
    them, or did not begin at all, however long that took: a program that always asks for one more
    start would come back for ever.
    """
    own = [event for event in events if "attempt" in event and "time" in event]
    began = {event["attempt"]: event["time"] for event in own if event["event"] == "started"}
    ended = dict.fromkeys(ending.unended, (0.0, StopReason.UNKNOWN.value))
    for event in own:
        if event["event"] == "requeued":
            has_begun = event["attempt"] in began
            seconds = event["time"] - began[event["attempt"]] if has_begun else 0.0
            why = event.get("reason")
            is_excused = has_begun or why in _TAKEN
            ended[event["attempt"]] = (seconds, why if is_excused else _BY_ITSELF[0])
    has_begun = not ending.unstarted and not ending.unreached
    seconds = ending.time - ending.began if has_begun else 0.0
    ended[ending.attempt] = (seconds, ending.why.value)
    newest_first = sorted(ended.items(), reverse=True)
    is_short = [seconds < _SHORT_S and why in _NO_EXCUSE for _, (seconds, why) in newest_first]
    return [*is_short, False].index(False)
