"""The run directory: where each file of a run lies, and its event log. Knows no Slurm, no torch.

Everything here must survive two writers and a kill at any moment: events are appended as one
`write` of one line, whole files are written beside their name and renamed.
"""

import errno
import json
import logging
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUNS_DIR_VARIABLE = "HPCDDP_RUNS_DIR"
# Errors that somebody can end by making room, and what they are called.
NO_SPACE = {
    errno.ENOSPC: "no space left on device",
    errno.EDQUOT: "no space: disk quota exceeded",
}
# What events.jsonl and metrics.jsonl hold, as far as anybody reads it.
_INTEGERS = (
    "attempt bytes exit_code failure global_rank last_step max_steps nodes processes_per_node "
    "restart_count step task world_size"
)
_NUMBERS = "accuracy epoch eval_loss images_per_s loss seconds stall_s step_s"
_TIMES = "began end_time signal_time time"
_LATEST_TIME = 1 << 40  # Unix seconds; what lies beyond is no time that a clock can show
_TEXTS = "afterok by cluster error event host job_id label launcher reason run signal"
_TEXT_LISTS = ("choices", "hosts")
_FIELD_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(_INTEGERS.split(" "), (int,)),
    **dict.fromkeys(f"{_NUMBERS} {_TIMES}".split(" "), (int, float)),
    **dict.fromkeys(_TEXTS.split(" "), (str,)),
}

_log = logging.getLogger(__name__)


def runs_root(environ: Mapping[str, str]) -> Path:
    """The folder that holds all runs: $HPCDDP_RUNS_DIR, else ./runs; absolute."""
    # Not Path.expanduser, which raises for a user that does not exist.
    return Path(os.path.expanduser(environ.get(RUNS_DIR_VARIABLE) or "runs")).absolute()


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` in one rename; readers see the old or the new file, never a part."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise


@contextmanager
def survive_unwritten_records() -> Iterator[None]:
    """A record that cannot be written is no reason to lose the training."""
    try:
        yield
    except OSError as error:
        _log.warning("Cannot write to the run directory: %s", error)


def space_problem(folder: Path) -> str:
    """Why no file can be written there for want of room, "" if one can. Writes one, since the
    figures of a file system do not tell of a quota.
    """
    probe = folder / f".probe.{socket.gethostname()}-{os.getpid()}"
    try:
        with probe.open("w", encoding="utf-8") as file:
            file.write("probe\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return NO_SPACE.get(error.errno or 0, "")
    finally:
        with suppress(OSError):
            probe.unlink()
    return ""


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a JSON-lines file; none if there is no file."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return
    yield from json_objects(text.splitlines())


def json_objects(lines: Iterable[str | bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects among the lines; torn and foreign lines are passed over, and so is a field
    that holds another type than we write: nobody who only looks at a run may stumble over it.
    """
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield {key: value for key, value in record.items() if _is_as_written(key, value)}


def _is_as_written(key: str, value: object) -> bool:
    if key in _TEXT_LISTS:
        return isinstance(value, list) and all(isinstance(text, str) for text in value)
    types = _FIELD_TYPES.get(key, (object,))
    if not isinstance(value, types) or (object not in types and isinstance(value, bool)):
        return False
    return key not in _TIMES.split(" ") or 0 <= value < _LATEST_TIME


@dataclass(frozen=True, slots=True)
class RunDir:
    """Paths inside `runs/<run>/`; nothing is created by asking for a path."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def script(self) -> Path:
        return self.path / "job.sbatch"

    @property
    def code(self) -> Path:
        return self.path / "code.json"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def reports(self) -> Path:
        return self.path / "reports"

    @property
    def batch_log(self) -> Path:
        return self.path / "logs" / "batch.log"

    def attempt_logs(self, attempt: int) -> Path:
        """Folder of the per-rank logs of one attempt."""
        return self.path / "logs" / f"attempt-{attempt:03d}"

    def rank_log(self, attempt: int, global_rank: int) -> Path:
        """Log of one process in one attempt."""
        return self.attempt_logs(attempt) / f"rank-{global_rank:04d}.log"

    def refusal(self, attempt: int) -> Path:
        """There once this attempt has found the run in other hands: its end is not the run's."""
        return self.attempt_logs(attempt) / "refused"

    def handled(self, attempt: int) -> Path:
        """There once the last act of this attempt's script has left nothing to do."""
        return self.attempt_logs(attempt) / "handled"

    def append_event(self, kind: str, **fields: Any) -> None:  # noqa: ANN401
        """Append one line to events.jsonl: kind, time (Unix seconds), host and `fields`."""
        record = {"event": kind, "time": round(time.time(), 3), "host": socket.gethostname()}
        append_json_line(self.events, record | fields)

    def try_event(self, kind: str, **fields: Any) -> str:  # noqa: ANN401
        """Like `append_event`, but a full disk is no error: returns its words, else ""."""
        try:
            self.append_event(kind, **fields)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            return NO_SPACE[error.errno]
        return ""

    def failure_of(self, job_id: str | None, attempt: int) -> int | None:
        """The exit code with which a process of that job's attempt has failed, None if none has.

        Its launcher then ends the others by the signal that also means a preemption; who sees only
        the highest code of all must not take the failure for a stop.
        """
        place = {"event": "failed", "job_id": job_id, "attempt": attempt}
        own = (event for event in self.read_events() if place.items() <= event.items())
        return next((event["exit_code"] for event in own if "exit_code" in event), None)

    def read_events(self) -> list[dict[str, Any]]:
        """All events so far, oldest first."""
        return [record for record in read_json_lines(self.events) if "event" in record]


def append_json_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append `record` as one line with a single write, so that two writers never mix.

    A line torn by a kill is closed first, so that only the torn one is lost.
    """
    # What Python makes of a file name that is no UTF-8, a terminal would refuse as well: as `?`.
    line = (json.dumps(record, ensure_ascii=False) + "\n").encode(errors="replace")
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        if os.write(descriptor, line) < len(line):  # what fitted is a torn line
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)
