"""How a followed run is shown: plain lines in a log, a progress bar on a terminal.

Knows statuses and records, not where they come from.
"""

from typing import Protocol, TextIO

from hpcddp.launch.history import Record
from hpcddp.launch.watch.state import without_age
from hpcddp.launch.watch.status import RunStatus
from hpcddp.launch.watch.words import (
    accuracy_text,
    event_line,
    metrics_line,
    reason_text,
    speed_text,
)


class Display(Protocol):
    """Where `follow` shows a run."""

    def record(self, record: Record, status: RunStatus) -> None:
        """An event or a metrics record has come."""

    def status(self, status: RunStatus) -> None:
        """This is the status now, whether it changed or not."""

    def line(self, text: str) -> None:
        """Show a line as it is."""

    def close(self) -> None:
        """Leave the terminal as it was found."""


def build_display(out: TextIO) -> Display:
    """A progress bar where `out` is a terminal, else lines."""
    return BarDisplay(out) if out.isatty() else LineDisplay(out)


class LineDisplay:
    """One line for each record, and one for each reason that no event has told."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._shown = ("", "")
        self._told = ""  # the newest event but for checkpoints, as it was shown

    def record(self, record: Record, status: RunStatus) -> None:
        if "event" not in record:
            self.line(metrics_line(record, status.max_steps))
            return
        line = event_line(record)
        self.line(line)
        if record["event"] != "checkpoint":
            self._told = line

    def status(self, status: RunStatus) -> None:
        shown = (status.state, without_age(status.reason))
        if shown == self._shown or status.has_ended:
            return
        self._shown = shown
        if status.reason and status.reason.split("; see ")[0] not in self._told:
            self.line(f"{status.state}: {reason_text(status)}")

    def line(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def close(self) -> None:
        pass


class BarDisplay:
    """A bar with step, rate, loss, accuracy and attempt; events scroll by above it."""

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console  # 0.1 s to import, and for a terminal only
        from rich.progress import BarColumn, Progress, TextColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[detail]}", markup=False),
            console=Console(file=out, highlight=False),
            auto_refresh=False,
        )
        self._task = self._progress.add_task("", total=None, detail="")
        self._progress.start()

    def record(self, record: Record, status: RunStatus) -> None:
        if record.get("event", "checkpoint") != "checkpoint":
            self.line(event_line(record))
        elif "accuracy" in record:
            self.line(metrics_line(record, status.max_steps))

    def status(self, status: RunStatus) -> None:
        self._progress.update(
            self._task,
            description=status.state,
            total=status.max_steps,
            completed=status.step or 0,
            detail=_detail(status),
        )
        self._progress.refresh()

    def line(self, text: str) -> None:
        self._progress.console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        self._progress.stop()


def _detail(status: RunStatus) -> str:
    """What stands behind the bar: figures while it runs, else the reason why it does not."""
    if status.state in ("pending", "requeued", "unknown", "stopping"):
        return reason_text(status)
    parts = [f"{status.step or 0}/{status.max_steps or '?'}"]
    if status.images_per_s is not None:
        parts.append(speed_text(status.images_per_s, status.label))
    if status.loss is not None:
        parts.append(f"loss {status.loss:.4f}")
    if status.accuracy is not None:
        parts.append(f"accuracy {accuracy_text(status.accuracy, status.weights)}")
    if status.attempt:
        parts.append(f"attempt {status.attempt}")
    return "  ".join([*parts, *filter(None, [status.reason])])
