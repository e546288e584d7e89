"""A dress rehearsal: a short copy of a job, uninterrupted and preempted, and what differs.

Sends two runs and watches them; what each of them does is `submit`'s and `train`'s business.
"""

import math
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from hpcddp.checkpoint_dir import list_checkpoints
from hpcddp.cluster.live import Ask, ask_slurm, read_live
from hpcddp.config.layout import EXIT_INTERRUPTED
from hpcddp.config.schema import RunConfig
from hpcddp.launch.history import FileTail, newest_step
from hpcddp.launch.scheduler import show_job
from hpcddp.launch.slurm_tool import tell
from hpcddp.launch.submission import Submission, send
from hpcddp.launch.supervisor import signal_step
from hpcddp.launch.watch.attempts import Attempt
from hpcddp.launch.watch.follow import follow
from hpcddp.launch.watch.observer import Observer
from hpcddp.launch.watch.status import RunStatus
from hpcddp.run_dir import RunDir

_POLL_S = 0.2
_SCANCEL_TIMEOUT_S = 30.0
_LEAD_FACTOR, _LEAD_ROUNDING_S = 2.0, 10  # a busy file system may take twice as long next time


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two ends of training, bit by bit: weights, optimizer, and all else that is saved."""

    identical: bool
    num_tensors: int
    first_differing: str | None
    max_abs_difference: float


@dataclass(frozen=True, slots=True)
class Report:
    """What a rehearsal has shown. Times are seconds; None is what could not be measured.

    `problems` says why the job would lose work; empty if it would not.
    """

    uninterrupted: str
    interrupted: str
    problems: tuple[str, ...]
    warn_before_s: int
    preempt_mode: str | None = None  # Slurm's word for the job's partition and QOS
    kill_after_s: int | None = None  # from a preemption's signal on, where Slurm says so
    comparison: Comparison | None = None
    steps_lost: int | None = None
    save_s: float | None = None
    stall_s: float | None = None
    stop_s: float | None = None
    requeue_s: float | None = None
    restart_s: float | None = None
    recommended_warn_before_s: int | None = None
    recommended_interval_s: float | None = None

    def as_document(self) -> dict[str, Any]:
        """The report as JSON can say it."""
        document = asdict(self)
        if self.comparison and not math.isfinite(self.comparison.max_abs_difference):
            document["comparison"]["max_abs_difference"] = None
        return document


def short_overrides(steps: int) -> tuple[str, ...]:
    """What makes a short copy of a job: few steps, all of them reported, one evaluation, and one
    checkpoint beside training, which is no part of the stop.
    """
    return (
        f"train.max_steps={steps}",
        "train.max_epochs=null",
        "train.eval_every_epochs=null",
        "log.every_steps=1",
        f"checkpoint.every_steps={max(1, steps // 2)}",
    )


def rehearse(plain: Submission, stopped: Submission, out: TextIO) -> Report:
    """Run a job twice, stop it the second time, show both on `out`, and compare.

    Raises SubmissionFailed, HpcddpError; KeyboardInterrupt where the user leaves the display.
    """
    request = plain.request
    lead_s = request.config.resources.warn_before_s
    launcher, steps = request.profile.launcher, request.config.train.max_steps or 0
    plain, _ = send(plain)
    if _show(plain.run_dir, out):
        said = f"the uninterrupted run did not finish: {_status(plain.run_dir).reason}"
        return Report(plain.run_dir.name, stopped.run_dir.name, (said,), lead_s)
    stopped, job_id = send(stopped)
    with _stopped_at(stopped.run_dir, max(1, steps // 3), launcher, job_id) as refusals:
        _show(stopped.run_dir, out)
    mode = kill_after_s = None
    if launcher == "slurm":
        job = show_job(job_id)
        mode, kill_after_s = preemption_of(job.partition, job.qos)
    found = report(plain.run_dir, stopped.run_dir, request.config, kill_after_s)
    return replace(found, problems=(*refusals, *found.problems), preempt_mode=mode)


def _show(run_dir: RunDir, out: TextIO) -> int:
    """Follow it to its end; its exit code."""
    code = follow(run_dir, out=out)
    if code == EXIT_INTERRUPTED:  # nothing is known of the run, which goes on
        raise KeyboardInterrupt
    return code


@contextmanager
def _stopped_at(run_dir: RunDir, step: int, launcher: str, job_id: str) -> Iterator[list[str]]:
    """While the block runs, wait for that step and then send what a preemption sends.

    Where that cannot be sent, the list that the block gets says why.
    """
    is_over, refusals = threading.Event(), []

    def wait_and_stop() -> None:
        tail, seen = FileTail(run_dir.metrics), 0
        while seen < step:
            if is_over.wait(_POLL_S):
                return
            seen = max(seen, newest_step(tail.lines()))
        if refusal := _send_sigterm(run_dir, launcher, job_id):
            refusals.append(f"SIGTERM was not sent: {refusal}")

    thread = threading.Thread(target=wait_and_stop, name="preemption", daemon=True)
    thread.start()
    try:
        yield refusals
    finally:
        is_over.set()
        thread.join()


def _send_sigterm(run_dir: RunDir, launcher: str, job_id: str) -> str | None:
    """SIGTERM to all processes of the job's step, as Slurm sends it when a grace time begins.

    Returns what went wrong, or None.
    """
    if launcher == "local":
        return None if signal_step(run_dir, signal.SIGTERM) else "no process was running"
    return tell(["scancel", "--signal=TERM", job_id], _SCANCEL_TIMEOUT_S)


def preemption_of(partition: str, qos: str, ask: Ask = ask_slurm) -> tuple[str | None, int | None]:
    """How Slurm takes nodes from jobs of that partition and QOS (`OFF`, `REQUEUE`, `CANCEL`,
    `SUSPEND`), and the seconds that it leaves them; None for what nobody knows or is not so.
    """
    live = read_live(ask)
    found = live.partitions.get(partition) if live else None
    taken = live.preemption_of(found, qos) if live and found else None
    if live is None or taken is None:
        return None, None
    mode, grace_s = taken
    kill_wait = re.match(r"\d+", live.config.get("KillWait", ""))
    if mode in ("OFF", "SUSPEND") or not kill_wait:
        return mode, None
    return mode, grace_s + int(kill_wait[0])


def report(
    uninterrupted: RunDir, interrupted: RunDir, config: RunConfig, kill_after_s: int | None = None
) -> Report:
    """What the two runs have shown, from their files alone."""
    status = _status(interrupted)
    comparison = _compare(uninterrupted, interrupted) if status.state == "finished" else None
    first, second = [*status.attempts, None, None][:2]
    beside, at_stop = _first_save(uninterrupted), _first_save(interrupted)
    problems = [
        *_problems(status, first, second, comparison, config),
        *_late(first, at_stop.get("seconds", 0.0), kill_after_s),
    ]
    return Report(
        uninterrupted=uninterrupted.name,
        interrupted=interrupted.name,
        problems=tuple(problems),
        kill_after_s=kill_after_s,
        comparison=comparison,
        steps_lost=first.steps_lost if first else None,
        save_s=at_stop.get("seconds"),
        stall_s=beside.get("stall_s"),
        stop_s=first.signal_to_exit_s if first else None,
        requeue_s=_seconds_between(first, second),
        restart_s=second.restart_to_first_step_s if second else None,
        warn_before_s=config.resources.warn_before_s,
        recommended_warn_before_s=_recommended_lead_s(first),
        recommended_interval_s=_recommended_interval_s(beside, config),
    )


def _problems(
    status: RunStatus,
    first: Attempt | None,
    second: Attempt | None,
    comparison: Comparison | None,
    config: RunConfig,
) -> Iterator[str]:
    if status.state != "finished":
        yield f"the interrupted run is {status.state}: {status.reason}"
    elif second is None:
        yield "the run was over before it could be interrupted: rehearse with more --steps"
    if first and first.steps_lost:
        yield f"{first.steps_lost} steps were lost"
    lead_s = config.resources.warn_before_s
    if first and (first.signal_to_exit_s or 0) >= lead_s:
        yield (
            f"from the signal to the exit it takes {first.signal_to_exit_s:.0f} s, and Slurm warns "
            f"only {lead_s} s ahead (resources.warn_before_s)"
        )
    if comparison and not comparison.identical:
        yield f"the two ends differ, first in {comparison.first_differing or 'a plain value'}"


def _late(first: Attempt | None, save_s: float, kill_after_s: int | None) -> Iterator[str]:
    """A preemption may come when a save on the way has just begun: the last one waits for it."""
    needed_s = (first.signal_to_exit_s or 0.0) + save_s if first else 0.0
    if kill_after_s is not None and needed_s >= kill_after_s:
        yield (
            f"from the signal to the exit it may take {needed_s:.0f} s with a save under way, and "
            f"a preemption kills after {kill_after_s} s here (GraceTime and KillWait)"
        )


def _compare(first: RunDir, second: RunDir) -> Comparison:
    from hpcddp.train.checkpoint import load_checkpoint
    from hpcddp.train.checkpoint_diff import diff_states

    states = [load_checkpoint(_newest_checkpoint(run)).state for run in (first, second)]
    sections = diff_states(*states)
    differing = [name for section in sections for name in section.differing]
    return Comparison(
        identical=all(section.identical for section in sections),
        num_tensors=sum(section.num_tensors for section in sections),
        first_differing=differing[0] if differing else None,
        max_abs_difference=max((s.max_abs_difference for s in sections), default=0.0),
    )


def _newest_checkpoint(run_dir: RunDir) -> Path:
    return list_checkpoints(run_dir.checkpoints)[-1].path


def _status(run_dir: RunDir) -> RunStatus:
    [status] = Observer([run_dir], whole=True).look()
    return status


def _first_save(run_dir: RunDir) -> Mapping[str, Any]:
    """The first checkpoint; of an interrupted run the first since the signal, which it caused."""
    events = run_dir.read_events()
    since = next((e["signal_time"] for e in events if "signal_time" in e), 0.0)
    saves = (e for e in events if e["event"] == "checkpoint" and e["time"] >= since)
    return next(saves, {})


def _seconds_between(first: Attempt | None, second: Attempt | None) -> float | None:
    if not first or not second or first.ended_time is None or second.began_time is None:
        return None
    return second.began_time - first.ended_time


def _recommended_lead_s(first: Attempt | None) -> int | None:
    if first is None or first.signal_to_exit_s is None:
        return None
    tens = math.ceil(_LEAD_FACTOR * first.signal_to_exit_s / _LEAD_ROUNDING_S)
    return _LEAD_ROUNDING_S * max(1, tens)


def _recommended_interval_s(save: Mapping[str, Any], config: RunConfig) -> float | None:
    """What `checkpoint.every_steps=null` would choose, from this save."""
    from hpcddp.train.cadence import best_interval_s

    if not {"stall_s", "seconds"} <= set(save):
        return None
    limits = config.checkpoint
    mtbf_s = limits.mtbf_hours * 3600
    return best_interval_s(save["stall_s"], save["seconds"], mtbf_s, limits.max_interval_s)
