"""What each run is doing, as one frozen value. Asks no scheduler: it is told what that says."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from hpcddp.config.layout import EXIT_DONE, EXIT_FAILED
from hpcddp.launch.history import Record, RunHistory
from hpcddp.launch.last_words import last_complaint
from hpcddp.launch.scheduler import JobInfo
from hpcddp.launch.watch.attempts import Attempt, attempts_of
from hpcddp.launch.watch.state import ENDED_STATES, Evidence, decide_state, is_finish
from hpcddp.run_dir import RunDir


@dataclass(frozen=True, slots=True)
class RunStatus:
    """One run now. `state` is pending, running, stopping, requeued, finished, failed, cancelled
    or unknown; `reason` says why where that is not plain.

    `attempt` counts starts from 0. Times are Unix seconds; `expected_start_time` is Slurm's
    estimate for a run that waits. `accuracy` is a fraction, of the newest evaluation,
    and `weights` whose it is: `model`, or `ema` for the average. `label` is what the speed must not
    be shown without.
    """

    run: str
    state: str
    step: int | None
    max_steps: int | None
    epoch: float | None
    images_per_s: float | None
    attempt: int
    job_id: str | None
    reason: str
    run_dir: str
    loss: float | None = None
    accuracy: float | None = None
    weights: str | None = None
    label: str | None = None
    launcher: str | None = None
    cluster: str | None = None
    nodes: str = ""
    exit_code: int | None = None
    submitted_time: float | None = None
    started_time: float | None = None
    ended_time: float | None = None
    expected_start_time: float | None = None
    attempts: tuple[Attempt, ...] = ()

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED_STATES

    @property
    def run_exit_code(self) -> int:
        """What a command that waited for the run exits with.

        0 finished; the job's own code, or 1, where it failed; 1 for a cancelled run and one
        whose end is not known: the work was not done.
        """
        if self.state == "finished":
            return EXIT_DONE
        code = self.exit_code if self.state == "failed" else None
        return code or EXIT_FAILED


def status_of(history: RunHistory, job: JobInfo | None, now: float) -> RunStatus:
    """The status of a run from its files and what its scheduler says, if it says anything."""
    events, submission, train = history.current, history.submission, history.train
    has_log = history.run_dir.batch_log.exists()
    prepared_time = 0.0 if events else _prepared_time(history.run_dir)
    complaint = last_complaint(history.run_dir) if job and job.state == "FAILED" else ""
    wrote = history.last_write_time
    seen = Evidence(history.run_dir, events, job, now, wrote, has_log, prepared_time, complaint)
    state, reason = decide_state(seen)
    has_ended = state in ENDED_STATES
    started, finished = seen.last("started") or {}, seen.last("finished") or {}
    return RunStatus(
        run=history.run_dir.name,
        state=state,
        step=_step(history),
        max_steps=_max_steps(history),
        epoch=train.get("epoch"),
        images_per_s=train.get("images_per_s"),
        attempt=_newest("attempt", events) or 0,
        job_id=submission.get("job_id"),
        reason=reason,
        run_dir=str(history.run_dir.path),
        loss=train.get("loss"),
        accuracy=finished.get("accuracy", history.evaluation.get("accuracy")),
        weights=history.evaluation.get("weights"),
        label=train.get("label"),
        launcher=submission.get("launcher"),
        cluster=submission.get("cluster"),
        nodes=job.nodes if job else "",
        exit_code=_exit_code(events, job) if has_ended else None,
        submitted_time=submission.get("time"),
        started_time=started.get("time"),
        ended_time=_end_time(events, job) if has_ended else None,
        expected_start_time=job.start_time if job and job.state == "PENDING" else None,
        attempts=tuple(attempts_of(history.events, state)),
    )


def _prepared_time(run_dir: RunDir) -> float:
    with suppress(OSError):
        return run_dir.script.stat().st_mtime
    return 0.0


def _newest(key: str, events: Sequence[Record]) -> int | None:
    """The newest value of a key that only some events have."""
    return next((e[key] for e in reversed(events) if e.get(key) is not None), None)


def _max_steps(history: RunHistory) -> int | None:
    """How many steps the training has; what an earlier start has told counts as long as the
    settings are those it was told with.
    """
    known = _newest("max_steps", history.current)
    told = next((e for e in reversed(history.events) if e.get("max_steps") is not None), None)
    if known is not None or told is None:
        return known
    with suppress(OSError):
        if history.run_dir.config.stat().st_mtime <= told.get("time", 0.0):
            return told["max_steps"]
    return None


def _step(history: RunHistory) -> int | None:
    """The last step known to be done.

    A resumed attempt begins below the last step that its predecessor reported, so a record that
    is older than the newest start does not count once that start has told its own step.
    """
    newest_start: list[Record] = []
    for event in history.current:
        newest_start = [event] if event["event"] == "started" else [*newest_start, event]
    steps = [event["step"] for event in newest_start if event.get("step") is not None]
    start_time = newest_start[0].get("time", 0.0) if newest_start else 0.0
    train_time = history.train.get("time", history.metrics_time)
    if "step" in history.train and (not steps or train_time >= start_time):
        steps.append(history.train["step"])
    return max(steps, default=None)


def _last_word(events: Sequence[Record]) -> Record | None:
    """The event by which the run told its end, if it did; a late save may follow it, and even a
    signal a finish.
    """
    if finishes := [event for event in events if is_finish(event)]:
        return finishes[-1]
    words = [event for event in events if not event["event"].startswith("checkpoint")]
    return words[-1] if words and words[-1]["event"] in ENDED_STATES else None


def _exit_code(events: Sequence[Record], job: JobInfo | None) -> int | None:
    """The exit code in the run's last word, else the job's; a job that never ran has none."""
    word = _last_word(events) or {}
    if word.get("event") == "finished":
        return EXIT_DONE
    never_ran = job is not None and job.state == "CANCELLED" and not job.exit_code
    return word.get("exit_code", job.exit_code if job and not never_ran else None)


def _end_time(events: Sequence[Record], job: JobInfo | None) -> float | None:
    """When the run told its end, else when its job ended."""
    word = _last_word(events) or {}
    return word.get("time", job.end_time if job else None)
