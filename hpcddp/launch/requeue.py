"""The last act of a batch script: record how the attempt ended, and start the run again or not.

Runs on the host with srun's exit code. Knows Slurm and the run directory; loads no torch.
Little may follow a requeue: Slurm begins to kill the job at once.
"""

import argparse
import dataclasses
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from hpcddp.cluster.job_names import requeue_target, requeue_target_or_none
from hpcddp.cluster.variables import ATTEMPT_VARIABLE
from hpcddp.config.layout import EXIT_AGAIN, EXIT_DONE, EXIT_FAILED
from hpcddp.config.schema import RunConfig
from hpcddp.config.write import read_config
from hpcddp.errors import HpcddpError
from hpcddp.launch.decision import Decision, Ending, Event, cancelled, decide
from hpcddp.launch.ending import ending_of, is_superseded
from hpcddp.launch.exclusion import excluded_nodes
from hpcddp.launch.history import since_sent
from hpcddp.launch.notes import say, write_event
from hpcddp.launch.order import PAUSE_S, ask_why, keep_off, requeue_until_heard, settled_reason
from hpcddp.launch.phrases import resume_hint
from hpcddp.launch.refusal import refusal_code
from hpcddp.launch.slurm_tool import is_silence, lack_of_tools
from hpcddp.launch.stop_reason import SlurmSays, StopReason, ask_stop_reason
from hpcddp.launch.takeover import send_anew
from hpcddp.leave import leave
from hpcddp.run_dir import RunDir

# A node that srun has not reached explains the end better than these: for a job whose limit is near
# Slurm names that, whatever has ended it.
_VAGUE = (StopReason.UNKNOWN, StopReason.SIGNALLED, StopReason.TIME_LIMIT)
_CONTROLLER_AWAY_S = 900.0  # how long an absent controller is waited for


def finish_attempt(
    run_dir: RunDir, exit_code: int, environ: Mapping[str, str], *, terminated: bool = False
) -> int:
    """Decide, record, and act; returns the exit code for the batch script.

    `RunDir.handled` of the attempt is there afterwards unless Slurm stayed silent: without it the
    script requeues by itself what has saved and left with 75.
    """
    attempt = int(environ.get(ATTEMPT_VARIABLE, "0"))
    code, is_handled = refusal_code(run_dir, attempt, environ), True
    if code is None:  # else the run is another job's
        code, is_handled = _finish(run_dir, exit_code, attempt, environ, terminated)
    if is_handled and ATTEMPT_VARIABLE in environ:
        with suppress(OSError):
            run_dir.handled(attempt).touch()
    return code


def _finish(
    run_dir: RunDir, exit_code: int, attempt: int, environ: Mapping[str, str], terminated: bool
) -> tuple[int, bool]:
    """The exit code, and whether nothing is left to do."""
    config = read_config(run_dir)
    look = partial(_look, run_dir, config, exit_code, attempt, environ, terminated)
    seen, deadline = look(), time.monotonic() + _CONTROLLER_AWAY_S
    while seen.is_to_wait and time.monotonic() < deadline:
        say("Slurm does not answer; asking again")
        time.sleep(PAUSE_S)
        seen = look()
    # All events, for `seen` leaves out what was before a newer submission: this job's own start.
    is_over = is_superseded(run_dir.read_events(), attempt, requeue_target_or_none(environ))
    if is_over or seen.is_untold or (terminated and _has_decided(seen, attempt)):
        return exit_code, True
    if seen.asks_slurm(environ) and (lack := lack_of_tools()):
        why = "; ".join(filter(None, [seen.decision.reason, lack, resume_hint(run_dir.name)]))
        seen = dataclasses.replace(seen, decision=Decision("failed", why, seen.decision.exit_code))
    decision = seen.decision
    _record(run_dir, seen)
    if "SLURM_JOB_ID" not in environ:
        return _local_code(decision), True
    if not seen.asks_slurm(environ):
        return decision.exit_code, True
    return decision.exit_code, _start_again(run_dir, config, seen, environ, deadline)


def _local_code(decision: Decision) -> int:
    """The local executor starts again what leaves with 75, and nothing else."""
    if decision.event == "requeued":
        return EXIT_AGAIN
    return EXIT_FAILED if decision.exit_code == EXIT_AGAIN else decision.exit_code


@dataclasses.dataclass(frozen=True, slots=True)
class _Outlook:
    """What is known of an attempt's end at one moment, and what follows from it."""

    ending: Ending
    events: Sequence[Event]
    decision: Decision
    slurm: SlurmSays

    @property
    def is_to_wait(self) -> bool:
        """While Slurm's controller is away nobody ends this job, and nobody can start it again.
        Where Slurm ends the job there is only time to hear why.
        """
        may_go_on = self.decision.event == "requeued" or (
            self.decision.event == "failed" and self.ending.exit_code > 128
        )  # where a signal was the end, why it came decides
        is_in_time = may_go_on and not self.ending.terminated
        return self.slurm.is_silent and (is_in_time or self.is_untold)

    @property
    def is_untold(self) -> bool:
        """Slurm ends this job and gives no answer why: who asks it later will know. If that is a
        preemption it starts the job again by itself, and no word of ours may stand against that.
        """
        is_guess = self.ending.why is not StopReason.CANCELLED
        return self.slurm.is_silent and self.decision.event == "cancelled" and is_guess

    def asks_slurm(self, environ: Mapping[str, str]) -> bool:
        """The run is to start again, and Slurm does not see to that by itself."""
        is_ours = self.ending.why is not StopReason.REQUEUED and "SLURM_JOB_ID" in environ
        return is_ours and self.decision.event == "requeued"


def _look(
    run_dir: RunDir,
    config: RunConfig,
    exit_code: int,
    attempt: int,
    environ: Mapping[str, str],
    terminated: bool,
) -> _Outlook:
    now = SlurmSays(StopReason.UNKNOWN)
    if "SLURM_JOB_ID" in environ and exit_code != EXIT_DONE:
        now = ask_stop_reason(environ, config.resources.warn_before_s)
    told = run_dir.read_events()  # read last: `cancel` may have written meanwhile
    why = settled_reason(now, told, attempt)
    events, is_own = since_sent(told), bool(config.command)
    ending = ending_of(run_dir, exit_code, attempt, events, environ, is_own_program=is_own)
    if ending.unreached and why in _VAGUE and not terminated:
        why = StopReason.NODE_FAILURE  # of which Slurm will hear later
    ending = dataclasses.replace(ending, why=why, terminated=terminated)
    others = [event for event in events if not _is_requeue_of(event, attempt)]
    return _Outlook(ending, events, decide(ending, others, config.requeue), now)


def _is_requeue_of(event: Event, attempt: int) -> bool:
    return event["event"] == "requeued" and event.get("attempt") == attempt


def _has_decided(seen: _Outlook, attempt: int) -> bool:
    """An earlier call was ended by the requeue it had asked for, or as its whole job was.

    Where Slurm knows of another end of the job it has not heard of that requeue.
    """
    own = {event["event"] for event in seen.events if event.get("attempt") == attempt}
    may_be_heard = (StopReason.REQUEUED, StopReason.SIGNALLED, StopReason.UNKNOWN)
    return "cancelled" in own or ("requeued" in own and seen.ending.why in may_be_heard)


def _record(run_dir: RunDir, seen: _Outlook) -> None:
    decision, ending, events = seen.decision, seen.ending, seen.events
    if any(event["event"] == decision.event for event in events) and decision.event == "finished":
        return  # training has said so itself, with the accuracy
    if decision.event == "requeued" and any(_is_requeue_of(e, ending.attempt) for e in events):
        return  # an earlier call has said so
    fields: dict[str, Any] = {"attempt": ending.attempt, **seen.slurm.hints}
    is_ours = ending.why is not StopReason.REQUEUED  # else Slurm keeps count
    if decision.event == "requeued" and decision.exit_code != EXIT_AGAIN and is_ours:
        fields["failure"] = ending.exit_code
    if decision.reason:
        fields["reason"] = decision.reason
    if task := re.search(r"\d+", ending.culprit.partition(" on ")[0]):
        fields["task"] = int(task[0])
    # Where it cannot be written, the next attempt counts this one by its number.
    write_event(run_dir, decision.event, **fields, exit_code=ending.exit_code)


def _start_again(
    run_dir: RunDir,
    config: RunConfig,
    seen: _Outlook,
    environ: Mapping[str, str],
    deadline: float,
) -> bool:
    """Ask Slurm for the requeue; False where it stayed silent, so that nobody knows."""
    may_be_lost = seen.ending.why is StopReason.NODE_FAILURE or bool(seen.ending.unreached)
    may_be_lost = may_be_lost or seen.decision.exit_code != EXIT_AGAIN
    attempt = seen.ending.attempt
    if may_be_lost:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # there is one more thing to say
    why, refusal = requeue_until_heard(run_dir, attempt, environ, deadline)
    if why is StopReason.CANCELLED:
        _record(run_dir, dataclasses.replace(seen, decision=cancelled(seen.ending)))
        return True
    # Not before: once Slurm ends the job there are KillWait seconds, and it may be slow.
    excluded = excluded_nodes(run_dir, config, seen.ending, seen.events, environ, may_be_lost)
    if refusal is None and excluded:
        keep_off(excluded, environ)
    if refusal and not is_silence(refusal):
        is_cancelled = partial(_is_cancelled, run_dir, attempt, environ)
        refusal = _send_until_heard(run_dir, is_cancelled, excluded, deadline)
    if refusal is None:
        return True
    is_silent = is_silence(refusal)
    say(f"cannot requeue {requeue_target(environ)}: {refusal}")
    reason = f"Slurm refused to requeue: {refusal}; {resume_hint(run_dir.name)}"
    if is_silent:
        reason = f"Slurm did not answer the order to requeue: {refusal}"
    write_event(run_dir, "failed", reason=reason, exit_code=EXIT_FAILED)
    return not is_silent


def _send_until_heard(
    run_dir: RunDir, is_cancelled: Callable[[], bool], excluded: str, deadline: float
) -> str | None:
    """As `send_anew`, and once more for as long as Slurm's controller is away."""
    while (refusal := send_anew(run_dir, is_cancelled, excluded)) and is_silence(refusal):
        if time.monotonic() > deadline:
            break
        time.sleep(PAUSE_S)
    return refusal


def _is_cancelled(run_dir: RunDir, attempt: int, environ: Mapping[str, str]) -> bool:
    return ask_why(run_dir, attempt, environ)[0] is StopReason.CANCELLED


def main(words: Sequence[str] | None = None) -> int:
    """Entry of `python -m hpcddp.launch.requeue`.

    An error here keeps the job's own exit code, but for 75: nobody has promised another start.
    """
    parser = argparse.ArgumentParser(prog="hpcddp.launch.requeue")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--exit-code", type=int, required=True)
    parser.add_argument("--terminated", action="store_true", help="the script itself got SIGTERM")
    typed = parser.parse_args(words)
    run_dir, code = RunDir(typed.run_dir), typed.exit_code
    try:
        return finish_attempt(run_dir, code, os.environ, terminated=typed.terminated)
    except (HpcddpError, OSError) as error:
        say(str(error))
        return EXIT_FAILED if code == EXIT_AGAIN else code


if __name__ == "__main__":
    leave(main())
