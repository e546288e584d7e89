"""The story of each attempt, from the run's events alone. Pure: reads nothing, asks nobody."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcddp.launch.decision import tells_end
from hpcddp.launch.history import Record
from hpcddp.launch.stop_reason import StopReason

_NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a run. `end` says why it ended, "" while it goes on.

    `steps_lost` were done and had to be done again: known once a later attempt has done a step,
    and exact to `log.every_steps`. Times are Unix seconds; what is not known is None.
    """

    attempt: int
    job_id: str | None
    end: str
    began_time: float | None = None
    ended_time: float | None = None
    steps_lost: int | None = None
    signal_to_exit_s: float | None = None
    restart_to_first_step_s: float | None = None


def attempts_of(events: Sequence[Record], run_state: str) -> list[Attempt]:
    """All attempts, oldest first; `run_state` is what the newest ended with if it never said."""
    numbers = sorted({event["attempt"] for event in events if event.get("attempt") is not None})
    groups = [[event for event in events if event.get("attempt") == n] for n in numbers]
    found = []
    for index, (number, own) in enumerate(zip(numbers, groups, strict=True)):
        later = groups[index + 1 :]
        has_ended = later or run_state == "cancelled"
        cancelled = _cancel_of(events, own, later) if has_ended else None
        found.append(_attempt(number, own, later, cancelled))
    if found and run_state in ("finished", "failed", "cancelled"):
        end = found[-1].end if run_state == "failed" and found[-1].end else run_state
        found[-1] = dataclasses.replace(found[-1], end=end)
    return found


def _cancel_of(
    events: Sequence[Record], own: Sequence[Record], later: Sequence[Sequence[Record]]
) -> Record | None:
    """What `cancel` wrote between the beginning of this attempt and that of the next."""
    begin = events.index(own[0])
    end = events.index(later[0][0]) if later else len(events)
    kinds = ("cancelled", "cancel_failed")
    tries = [e for e in events[begin:end] if e["event"] in kinds and "attempt" not in e]
    return tries[-1] if tries and tries[-1]["event"] == "cancelled" else None


def _attempt(
    number: int,
    own: Sequence[Record],
    later: Sequence[Sequence[Record]],
    cancelled: Record | None,
) -> Attempt:
    began = _value("began", own, own[0].get("time"))
    ends = [*filter(tells_end, own)] or ([cancelled] if cancelled else [])
    # What the successor found out is the last word, and came too late to tell the time.
    found_out = next((e for e in ends if e["event"] == "ended"), None)
    told = next((e for e in ends if e["event"] != "ended"), None)
    return Attempt(
        attempt=number,
        job_id=_value("job_id", own),
        end=_end(own, found_out or told) or (_early_reason(own) if later else ""),
        began_time=began,
        ended_time=told.get("time") if told else _last_word_time(own),
        steps_lost=_steps_lost(own, later),
        signal_to_exit_s=_seconds(
            _value("signal_time", own, _time_of("signal", own)), _exit_time(own)
        ),
        restart_to_first_step_s=_seconds(began, _time_of("first_step", own)),
    )


def _end(own: Sequence[Record], ended: Record | None) -> str:
    if ended is None:
        return "failed" if any(event["event"] == "failed" for event in own) else ""
    if ended["event"] in ("finished", "cancelled"):
        return str(ended["event"])
    reason = str(ended.get("reason", ""))
    if "out of memory" in reason:
        return "out of memory"
    if ended["event"] == "failed" or "failure" in ended:
        return "failed"
    if reason == StopReason.REQUEUED.value and any(e.get("preemptible") for e in own):
        return StopReason.PREEMPTED.value  # Slurm does not say so, but what else
    if reason == StopReason.REQUEUED.value:
        early = _early_reason(own)
        vague = (_NOT_KNOWN, StopReason.UNKNOWN.value, StopReason.SIGNALLED.value)
        return reason if early in vague else early
    return reason


def _early_reason(own: Sequence[Record]) -> str:
    """What Slurm said when the signal came: all there is where no script of ours had a last act."""
    told = (event for event in own if event["event"] == "stop_reason")
    return next((str(event.get("reason", _NOT_KNOWN)) for event in told), _NOT_KNOWN)


def _steps_lost(own: Sequence[Record], later: Sequence[Sequence[Record]]) -> int | None:
    """What the next attempt found done, less where the next one to do a step went on."""
    found = (_value("last_step", following) for following in later)
    reached = next((step for step in found if step is not None), None)
    if reached is None:
        return None
    if _time_of("first_step", own) is None and reached == _value("last_step", own, reached):
        return 0  # what was found done is of attempts before
    for following in later:
        if _time_of("first_step", following) is not None:
            resumed = [event.get("step", 0) for event in following if event["event"] == "resumed"]
            return max(0, reached - (resumed[-1] if resumed else 0))
    return None


def _last_word_time(own: Sequence[Record]) -> float | None:
    """When a process said that it leaves: all there is where no script of ours had a last act."""
    return _time_of("stopped", own) or _time_of("failed", own)


def _exit_time(own: Sequence[Record]) -> float | None:
    """When the batch script's last act came, which is the first after the processes' end."""
    return next((e.get("time") for e in own if "exit_code" in e and "global_rank" not in e), None)


def _time_of(kind: str, own: Sequence[Record]) -> float | None:
    return next((event.get("time") for event in own if event["event"] == kind), None)


def _value(key: str, own: Sequence[Record], default: Any = None) -> Any:  # noqa: ANN401
    return next((event[key] for event in own if event.get(key) is not None), default)


def _seconds(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else round(max(0.0, end - begin), 2)
