"""The last act of a batch script: record how the attempt ended, and start the run again or not.

Runs on the host with srun's exit code. Knows Slurm and the run directory; loads no torch.
Nothing may follow a requeue: Slurm begins to kill the job at once.
"""

import argparse
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcddp.cluster.job_names import requeue_target
from hpcddp.config.layout import EXIT_AGAIN, EXIT_DONE, EXIT_FAILED
from hpcddp.config.schema import RequeueConfig, RunConfig
from hpcddp.config.write import read_config
from hpcddp.errors import HpcddpError, SubmissionFailed
from hpcddp.launch.history import FileTail, since_sent
from hpcddp.launch.stop_reason import StopReason, ask_stop_reason, settle_reason
from hpcddp.run_dir import RunDir
from hpcddp.stop_flag import STOP_SIGNALS

Event = Mapping[str, Any]
_SCONTROL_TIMEOUT_S = 60
_LAST_WORDS_BYTES = 4096  # of the batch log: those of this attempt
# Slurm has ended the attempt for reasons of its own, and its user wants it to go on.
_GOES_ON = (StopReason.PREEMPTED, StopReason.TIME_LIMIT, StopReason.REQUEUED)
_SUBMITTED_FIELDS = ("run", "launcher", "cluster", "nodes", "processes_per_node")


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended: srun's exit code, Slurm's reason, and whether Slurm has sent SIGTERM
    to the batch script itself, as it does when it ends the whole job.
    """

    exit_code: int
    attempt: int = 0
    why: StopReason = StopReason.UNKNOWN
    terminated: bool = False
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to happen: the event to record, why, and the exit code of the job."""

    event: str  # finished, requeued, failed or cancelled
    reason: str
    exit_code: int


def decide(ending: Ending, events: Sequence[Event], budget: RequeueConfig) -> Decision:
    """Pure: how the attempt ended, and the history since the user sent the run.

    Exit codes are kept, so that a requeue never turns a failure into success. Slurm would also
    requeue a cancelled job if it were asked, so where this shell was told to end and nobody knows
    why, the answer is no.
    """
    exit_code, why = ending.exit_code, ending.why
    if exit_code == EXIT_DONE:
        return Decision("finished", "", EXIT_DONE)
    asked_for = any(event["event"] == "cancelled" for event in events)
    if asked_for or why is StopReason.CANCELLED or (ending.terminated and why not in _GOES_ON):
        return Decision("cancelled", StopReason.CANCELLED.value, exit_code)
    stopped_early = _stopped_early(ending, events)
    if why is StopReason.REQUEUED:  # whatever the code says: the next attempt is queued already
        return Decision("requeued", why.value, EXIT_AGAIN if stopped_early else exit_code)
    if stopped_early:
        return _after_stop(events, budget, why)
    return _after_failure(ending, events, budget)


def _stopped_early(ending: Ending, events: Sequence[Event]) -> bool:
    """The attempt left because it was told to, having saved whatever there was to save.

    The first process to leave with 75 makes kill-on-bad-exit end slower ones, so the code may be
    another one although all is saved. And until Python has installed its handlers a stop signal
    simply ends it; a user's own program may have none at all.
    """
    if ending.exit_code == EXIT_AGAIN:
        return True
    kinds = {event["event"] for event in events if event.get("attempt") == ending.attempt}
    if ending.exit_code - 128 in STOP_SIGNALS:
        return not kinds & {"started", "failed"} or "stopped" in kinds or ending.why in _GOES_ON
    return ending.exit_code > 128 and "stopped" in kinds


def _after_stop(events: Sequence[Event], budget: RequeueConfig, why: StopReason) -> Decision:
    idle = _attempts_without_progress(events)
    if idle >= budget.max_without_progress > 0:
        reason = f"{idle} attempts in a row made no progress (requeue.max_without_progress)"
        return Decision("failed", reason, EXIT_AGAIN)
    return Decision("requeued", why.value, EXIT_AGAIN)


def _after_failure(ending: Ending, events: Sequence[Event], budget: RequeueConfig) -> Decision:
    failures = 1 + sum(event["event"] == "requeued" and "failure" in event for event in events)
    what = "out of memory, " if ending.out_of_memory else ""
    if failures <= budget.max_failures:
        reason = f"{what}failure {failures} of at most {budget.max_failures} (requeue.max_failures)"
        return Decision("requeued", reason, ending.exit_code)
    return Decision("failed", f"{what}exit code {ending.exit_code}", ending.exit_code)


def _attempts_without_progress(events: Sequence[Event]) -> int:
    """Attempts in a row, this one included, that saved no new step; some do not even start."""
    saved, count, has_started = -1, 0, False
    for event in events:
        if event["event"] == "started":
            count, has_started = count + 1, True
        elif event["event"] == "requeued":
            count, has_started = count + (not has_started), False
        elif event["event"] == "checkpoint" and event.get("step", -1) > saved:
            saved, count = event["step"], 0
    return count + (not has_started)


def finish_attempt(
    run_dir: RunDir, exit_code: int, environ: Mapping[str, str], *, terminated: bool = False
) -> int:
    """Decide, record, and act; returns the exit code for the batch script."""
    config, attempt = read_config(run_dir), int(environ.get("HPCDDP_ATTEMPT", "0"))
    why = StopReason.UNKNOWN
    if "SLURM_JOB_ID" in environ and exit_code != EXIT_DONE:
        now = ask_stop_reason(environ, config.resources.warn_before_s)
        why = settle_reason(now, _early_reason(run_dir, attempt), time.time())
    events = since_sent(run_dir.read_events())  # read last: `cancel` may have written meanwhile
    if terminated and _has_decided(events, attempt):
        return exit_code  # an earlier call was ended by the very requeue that it had asked for
    ending = Ending(exit_code, attempt, why, terminated, _ran_out_of_memory(run_dir, exit_code))
    decision = decide(ending, events, _budget(config))
    _record(run_dir, decision, ending, events)
    if decision.event == "requeued" and why is not StopReason.REQUEUED:
        return _start_again(run_dir, decision, environ)
    return decision.exit_code


def _has_decided(events: Sequence[Event], attempt: int) -> bool:
    own = [event for event in events if event.get("attempt") == attempt]
    return any(event["event"] == "requeued" for event in own)


def _ran_out_of_memory(run_dir: RunDir, exit_code: int) -> bool:
    """What srun and its daemon say of a process that the kernel has killed; its code is 137 too."""
    if exit_code != 128 + signal.SIGKILL:
        return False
    last_words = b"\n".join(FileTail(run_dir.batch_log, _LAST_WORDS_BYTES).lines()).lower()
    return b"out of memory" in last_words or b"oom" in last_words


def _early_reason(run_dir: RunDir, attempt: int) -> Event:
    """What the main process was told when the stop signal came, an empty record if nothing."""
    told = [event for event in run_dir.read_events() if event["event"] == "stop_reason"]
    return next((event for event in reversed(told) if event.get("attempt") == attempt), {})


def _budget(config: RunConfig) -> RequeueConfig:
    """What a user's own program has saved cannot be seen from here, so it cannot be asked for."""
    limits = config.requeue
    return dataclasses.replace(limits, max_without_progress=0) if config.command else limits


def _record(run_dir: RunDir, decision: Decision, ending: Ending, events: Sequence[Event]) -> None:
    if any(event["event"] == decision.event for event in events) and decision.event == "finished":
        return  # training has said so itself, with the accuracy
    fields: dict[str, Any] = {"attempt": ending.attempt}
    is_ours = ending.why is not StopReason.REQUEUED  # else Slurm keeps count
    if decision.event == "requeued" and decision.exit_code != EXIT_AGAIN and is_ours:
        fields["failure"] = ending.exit_code
    if decision.reason:
        fields["reason"] = decision.reason
    run_dir.append_event(decision.event, **fields, exit_code=ending.exit_code)


def _start_again(run_dir: RunDir, decision: Decision, environ: Mapping[str, str]) -> int:
    """Ask Slurm for the requeue; the local executor restarts what leaves with 75."""
    if "SLURM_JOB_ID" not in environ:
        return EXIT_AGAIN
    target = requeue_target(environ)
    refusal = _requeue(target) and _send_anew(run_dir)
    if refusal:
        run_dir.append_event("failed", reason=f"Slurm refused to requeue: {refusal}", exit_code=1)
        print(f"hpcddp: cannot requeue {target}: {refusal}", file=sys.stderr)
    return decision.exit_code


def _requeue(target: str) -> str | None:
    """Requeue this job, allowing it first where the job forbids it; Slurm's refusal, or None."""
    refusal = _scontrol(["requeue", target])
    if refusal is None or _scontrol(["update", f"jobid={target}", "requeue=1"]) is not None:
        return refusal
    return _scontrol(["requeue", target])


def _send_anew(run_dir: RunDir) -> str | None:
    """Where Slurm forbids to requeue, a new job takes over; the refusal, or None.

    `singleton` holds it until the last job of this name and user, which is this one, has ended.
    """
    from hpcddp.launch.slurm import submit_to_slurm

    try:
        job_id = submit_to_slurm(run_dir, "--dependency=singleton")
    except SubmissionFailed as error:
        return str(error)
    first = next((e for e in run_dir.read_events() if e["event"] == "submitted"), {})
    place = {key: first[key] for key in _SUBMITTED_FIELDS if key in first}
    run_dir.append_event("submitted", **place, job_id=job_id, again=True)
    return None


def _scontrol(words: Sequence[str]) -> str | None:
    """Run scontrol; None when it worked, else its words."""
    try:
        answer = subprocess.run(
            ["scontrol", *words], capture_output=True, text=True, timeout=_SCONTROL_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if answer.returncode == 0 else (answer.stderr or answer.stdout).strip()


def main(words: Sequence[str] | None = None) -> int:
    """Entry of `python -m hpcddp.launch.requeue`.

    An error here keeps the job's own exit code, but for 75: that answer would say that the
    requeue is done, and the script is to try it by itself.
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
        print(f"hpcddp: {error}", file=sys.stderr)
        return EXIT_FAILED if typed.exit_code == EXIT_AGAIN else typed.exit_code


if __name__ == "__main__":
    sys.exit(main())
