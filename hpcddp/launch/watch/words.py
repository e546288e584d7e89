"""Statuses, events and metrics as lines for people. Knows no terminal and reads no file."""

from collections.abc import Callable, Sequence

from hpcddp.launch.history import Record
from hpcddp.launch.phrases import count_text, table
from hpcddp.launch.watch.attempts import Attempt
from hpcddp.launch.watch.failure import batch_words, exit_words, is_rank_failure, rank_words
from hpcddp.launch.watch.state import clock_text, stopped_words
from hpcddp.launch.watch.status import RunStatus


def step_text(status: RunStatus) -> str:
    """`120/500`, with what is not known left out."""
    if status.step is None:
        return "-"
    return f"{status.step}" if status.max_steps is None else f"{status.step}/{status.max_steps}"


def rate_text(images_per_s: float | None) -> str:
    """Images per second with three digits that mean something."""
    if images_per_s is None:
        return "-"
    return f"{images_per_s:.0f}" if images_per_s >= 100 else f"{images_per_s:.3g}"


def speed_text(images_per_s: float, label: str | None) -> str:
    """`312 images/s`, with what it is the speed of where that is not plain."""
    said = f"{rate_text(images_per_s)} images/s"
    return f"{said} ({label})" if label else said


def percent(fraction: float) -> str:
    return f"{100 * fraction:.2f} %"


def reason_text(status: RunStatus) -> str:
    """The reason, with Slurm's estimate of the start where there is one."""
    if status.expected_start_time is None:
        return status.reason
    return f"{status.reason}; expected start {clock_text(status.expected_start_time)}"


def status_table(statuses: Sequence[RunStatus]) -> list[str]:
    """One line for each run below a header, and what a speed must not be shown without."""
    header = ("RUN", "STATE", "STEP", "IMAGES/S", "ATTEMPT", "JOB", "REASON")
    labelled = [status for status in statuses if status.label and status.images_per_s]
    below = [f"{each.run}: images/s of {each.label}" for each in labelled]
    return [*table([header, *map(_row, statuses)]), *below]


def _row(status: RunStatus) -> tuple[str, ...]:
    return (
        status.run,
        status.state,
        step_text(status),
        rate_text(status.images_per_s),
        str(status.attempt),
        status.job_id or "-",
        reason_text(status),
    )


def attempts_table(attempts: Sequence[Attempt]) -> list[str]:
    """One line for each attempt below a header."""
    times = ("BEGAN", "ENDED", "STEPS LOST", "SIGNAL TO EXIT", "FIRST STEP")
    return table([("ATTEMPT", "JOB", *times, "END"), *map(_attempt_row, attempts)])


def _attempt_row(attempt: Attempt) -> tuple[str, ...]:
    seconds = (attempt.signal_to_exit_s, attempt.restart_to_first_step_s)
    return (
        str(attempt.attempt),
        attempt.job_id or "-",
        _time_text(attempt.began_time) or "-",
        _time_text(attempt.ended_time) or "-",
        "-" if attempt.steps_lost is None else str(attempt.steps_lost),
        *("-" if s is None else f"{s:.1f} s" for s in seconds),
        attempt.end or "-",
    )


def status_details(status: RunStatus) -> list[str]:
    """One line for each thing that is known of a run, and one for each attempt of several."""
    code = status.exit_code
    pairs = [
        ("run", status.run),
        ("state", status.state),
        ("reason", reason_text(status)),
        ("step", step_text(status)),
        ("epoch", "" if status.epoch is None else f"{status.epoch:.2f}"),
        ("loss", "" if status.loss is None else f"{status.loss:.4f}"),
        ("accuracy", accuracy_text(status.accuracy, status.weights)),
        ("images/s", rate_text(status.images_per_s)),
        ("label", status.label or ""),
        ("attempt", str(status.attempt)),
        (
            "job",
            f"{status.job_id or '-'} on cluster {status.cluster or '-'} {status.nodes}".strip(),
        ),
        ("exit code", "" if code is None else exit_words(code).removeprefix("exit code ")),
        ("submitted", _time_text(status.submitted_time)),
        ("started", _time_text(status.started_time)),
        ("ended", _time_text(status.ended_time)),
        ("folder", status.run_dir),
    ]
    lines = table([(name, text) for name, text in pairs if text])
    return [*lines, "", *attempts_table(status.attempts)] if len(status.attempts) > 1 else lines


def accuracy_text(accuracy: float | None, weights: str | None) -> str:
    """`98.31 %`, or `98.31 % (EMA weights)`; empty where nothing was evaluated."""
    if accuracy is None:
        return ""
    return percent(accuracy) + (" (EMA weights)" if weights == "ema" else "")


def _time_text(unix_time: float | None) -> str:
    return "" if unix_time is None else clock_text(unix_time)


def metrics_line(record: Record, max_steps: int | None) -> str:
    """One metrics record: `step 120/500  epoch 1.20  loss 0.5312  312 images/s`."""
    step = record.get("step", "?")
    parts = [f"step {step}" if max_steps is None else f"step {step}/{max_steps}"]
    record = {key: value for key, value in record.items() if value is not None}
    if "epoch" in record:
        parts.append(f"epoch {record['epoch']:.2f}")
    for key in ("loss", "eval_loss"):
        if key in record:
            parts.append(f"{key.replace('_', ' ')} {record[key]:.4f}")
    if "accuracy" in record:
        parts.append(f"test accuracy {accuracy_text(record['accuracy'], record.get('weights'))}")
    if "images_per_s" in record:
        parts.append(speed_text(record["images_per_s"], record.get("label")))
    return "  ".join(parts)


def is_worth_showing(record: Record) -> bool:
    """False for what people need not see as it comes: each node's network, but for the first's."""
    return record.get("event") != "network" or not record.get("node_rank")


def event_line(event: Record) -> str:
    """One event as a sentence; a kind that is not known here is shown as it is."""
    write = _EVENT_LINES.get(event["event"])
    return write(event) if write else f"{event['event']} {event}"


def _submitted(event: Record) -> str:
    return (
        f"submitted: job {event.get('job_id')} on cluster {event.get('cluster')}, "
        f"{count_text(event.get('nodes'), 'node')} x "
        f"{count_text(event.get('processes_per_node'), 'process')}"
    )


def _started(event: Record) -> str:
    hosts = ", ".join(event.get("hosts") or ["?"])
    processes = count_text(event.get("world_size"), "process")
    return f"attempt {event.get('attempt')} started: {processes} on {hosts}"


def _checkpoint(event: Record) -> str:
    size_mb, seconds = event.get("bytes", 0) / 1e6, event.get("seconds", 0.0)
    return f"checkpoint at step {event.get('step')}: {size_mb:.1f} MB in {seconds:.2f} s"


def _checkpoint_failed(event: Record) -> str:
    return f"no checkpoint at step {event.get('step')}: {event.get('error')}"


def _network(event: Record) -> str:
    return f"network on {event.get('host', '?')}: {'; '.join(event.get('choices') or ['?'])}"


def _failed(event: Record) -> str:
    return f"failed: {rank_words(event) if is_rank_failure(event) else batch_words(event)}"


_EVENT_LINES: dict[str, Callable[[Record], str]] = {
    "submitted": _submitted,
    "started": _started,
    "launched": lambda event: f"attempt {event.get('attempt')} begins",
    "network": _network,
    "first_step": lambda event: f"first step of this attempt: {event.get('step')}",
    "stop_reason": lambda event: f"told to stop: {event.get('reason')}",
    "hang": lambda event: f"hang: suspected rank {event.get('suspected_ranks')}",
    "ended": lambda event: f"attempt {event.get('attempt')} had ended: {event.get('reason')}",
    "resumed": lambda event: f"resumed from the checkpoint of step {event.get('step')}",
    "checkpoint": _checkpoint,
    "checkpoint_failed": _checkpoint_failed,
    "signal": lambda event: f"received {event.get('signal')} at step {event.get('step')}",
    "stopped": stopped_words,
    "requeued": lambda event: f"requeued: {event.get('reason', '')}",
    "failed": _failed,
    "finished": lambda event: f"finished after attempt {event.get('attempt')}",
    "cancelled": lambda event: f"cancelled by {event.get('by', 'its user')}",
    "cancel_failed": lambda event: f"not cancelled: {event.get('reason', '')}",
}


def outcome_line(status: RunStatus) -> str:
    """The last line about a run: how it ended."""
    if status.state == "finished":
        accuracy = accuracy_text(status.accuracy, status.weights)
        return f"Run {status.run} finished" + (f": test accuracy {accuracy}" if accuracy else "")
    if not status.has_ended:
        return f"How run {status.run} ended is not known: {status.reason}"
    # A cancelled run's code is that of the signal which ended it; who waits for it gets 1.
    has_code = status.exit_code and status.state == "failed"
    code = f", {exit_words(status.exit_code)}" if has_code else ""
    return f"Run {status.run} {status.state}{code}: {status.reason}"
