"""The last act of a batch script: record how the attempt ended, and start the run again or not.

Runs on the host with srun's exit code. Knows Slurm and the run directory; loads no torch.
Nothing may follow a requeue: Slurm begins to kill the job at once.
"""

import argparse
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcddp.cluster.job_names import requeue_target, restart_count
from hpcddp.config.layout import EXIT_AGAIN, EXIT_DONE, EXIT_FAILED
from hpcddp.config.schema import RequeueConfig, RunConfig
from hpcddp.config.write import read_config
from hpcddp.errors import HpcddpError, SubmissionFailed
from hpcddp.launch.scheduler import show_job
from hpcddp.launch.stop_reason import StopReason, stop_reason
from hpcddp.run_dir import RunDir

Event = Mapping[str, Any]
_SCONTROL_TIMEOUT_S = 60
_SUBMITTED_FIELDS = ("run", "launcher", "cluster", "nodes", "processes_per_node")


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to happen: the event to record, why, and the exit code of the job."""

    event: str  # finished, requeued, failed or cancelled
    reason: str
    exit_code: int


def decide(
    exit_code: int, events: Sequence[Event], budget: RequeueConfig, why: StopReason
) -> Decision:
    """Pure: srun's exit code, the history since the user sent the run, and Slurm's reason.

    Exit codes are kept, so that a requeue never turns a failure into success. Slurm would also requeue a cancelled job if it were asked.
    """
    if exit_code == EXIT_DONE:
        return Decision("finished", "", EXIT_DONE)
    asked_for = any(event["event"] == "cancelled" for event in events)
    if asked_for or why is StopReason.CANCELLED:
        return Decision("cancelled", StopReason.CANCELLED.value, exit_code)
    if _stopped_early(exit_code, events):
        return _after_stop(events, budget, why)
    return _after_failure(exit_code, events, budget)


def _stopped_early(exit_code: int, events: Sequence[Event]) -> bool:
    """The attempt saved and left on purpose. The first process to leave with 75 makes
    kill-on-bad-exit end slower ones, so the code may be another one although all is saved.
    """
    if exit_code == EXIT_AGAIN:
        return True
    this_attempt = _after_last(events, lambda event: event["event"] == "started")
    return exit_code > 128 and any(event["event"] == "stopped" for event in this_attempt)


def _after_stop(events: Sequence[Event], budget: RequeueConfig, why: StopReason) -> Decision:
    idle = _attempts_without_progress(events)
    if idle >= budget.max_without_progress > 0:
        reason = f"{idle} attempts in a row made no progress (requeue.max_without_progress)"
        return Decision("failed", reason, EXIT_AGAIN)
    return Decision("requeued", why.value, EXIT_AGAIN)


def _after_failure(exit_code: int, events: Sequence[Event], budget: RequeueConfig) -> Decision:
    failures = 1 + sum(event["event"] == "requeued" and "failure" in event for event in events)
    if failures <= budget.max_failures:
        reason = f"failure {failures} of at most {budget.max_failures} (requeue.max_failures)"
        return Decision("requeued", reason, exit_code)
    return Decision("failed", f"exit code {exit_code}", exit_code)


def _attempts_without_progress(events: Sequence[Event]) -> int:
    """Attempts in a row, this one included, that saved no new step."""
    saved, count = -1, 0
    for event in events:
        if event["event"] == "started":
            count += 1
        elif event["event"] == "checkpoint" and event.get("step", -1) > saved:
            saved, count = event["step"], 0
    return count


def since_sent(events: Sequence[Event]) -> Sequence[Event]:
    """The events since a person sent the run, by `submit` or `resume`: budgets begin anew there."""
    return _after_last(events, lambda event: event["event"] == "submitted" and "again" not in event)


def _after_last(events: Sequence[Event], is_one: Callable[[Event], bool]) -> Sequence[Event]:
    places = [index for index, event in enumerate(events) if is_one(event)]
    return events[places[-1] :] if places else events


def finish_attempt(run_dir: RunDir, exit_code: int, environ: Mapping[str, str]) -> int:
    """Decide, record, and act; returns the exit code for the batch script."""
    config, events = read_config(run_dir), since_sent(run_dir.read_events())
    why = StopReason.UNKNOWN
    if "SLURM_JOB_ID" in environ and exit_code != EXIT_DONE:
        job, now = show_job(requeue_target(environ)), time.time()
        why = stop_reason(job, restart_count(environ), config.resources.warn_before_s, now)
    decision = decide(exit_code, events, _budget(config), why)
    _record(run_dir, decision, exit_code, events, environ)
    if decision.event == "requeued" and why is not StopReason.REQUEUED:
        return _start_again(run_dir, decision, environ)
    return decision.exit_code


def _budget(config: RunConfig) -> RequeueConfig:
    """What a user's own program has saved cannot be seen from here, so it cannot be asked for."""
    limits = config.requeue
    return dataclasses.replace(limits, max_without_progress=0) if config.command else limits


def _record(
    run_dir: RunDir,
    decision: Decision,
    exit_code: int,
    events: Sequence[Event],
    environ: Mapping[str, str],
) -> None:
    if any(event["event"] == decision.event for event in events) and decision.event == "finished":
        return  # training has said so itself, with the accuracy
    fields: dict[str, Any] = {"attempt": int(environ.get("HPCDDP_ATTEMPT", "0"))}
    if decision.event == "requeued" and decision.exit_code != EXIT_AGAIN:
        fields["failure"] = exit_code
    if decision.reason:
        fields["reason"] = decision.reason
    run_dir.append_event(decision.event, **fields, exit_code=exit_code)


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
    typed = parser.parse_args(words)
    try:
        return finish_attempt(RunDir(typed.run_dir), typed.exit_code, os.environ)
    except (HpcddpError, OSError) as error:
        print(f"hpcddp: {error}", file=sys.stderr)
        return EXIT_FAILED if typed.exit_code == EXIT_AGAIN else typed.exit_code


if __name__ == "__main__":
    sys.exit(main())
