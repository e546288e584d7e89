"""What a run wrote about itself, read piece by piece as its files grow. Knows no scheduler."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from hpcddp.run_dir import RunDir, json_objects

Record = dict[str, Any]
_BLOCK_BYTES = 1 << 20
# How much of the end of metrics.jsonl is read, first for both kinds of records, then for an
# evaluation: 256 KiB are about 1300 records, two epochs of ImageNet at a batch of 256 with a record
# every ten steps.
_METRICS_TAIL_BYTES, _EVALUATION_TAIL_BYTES = 16 * 1024, 256 * 1024
_CHECKPOINT = b'{"event": "checkpoint"'  # as RunDir.append_event begins such a line
_EVALUATION = b'"accuracy"'


class FileTail:
    """The part of a growing file that was not read yet; the file may not exist yet.

    The file is opened anew for each look: NFS promises fresh content at open only, and a file
    that stays open may hide for a minute what another host has appended.
    """

    def __init__(self, path: Path, last_bytes: int | None = None) -> None:
        self.path = path
        self.modified = 0.0  # Unix seconds, as of the last look
        self._offset = 0
        self._rest = b""
        if last_bytes is not None and path.exists():
            self._offset = max(0, path.stat().st_size - last_bytes)

    def blocks(self) -> Iterator[bytes]:
        """What is new, in blocks of at most 1 MiB."""
        try:
            with self.path.open("rb") as file:
                self._seek(file)
                while block := file.read(_BLOCK_BYTES):
                    self._offset += len(block)
                    yield block
        except (FileNotFoundError, NotADirectoryError):
            return

    def lines(self) -> list[bytes]:
        """The lines that became complete; a torn one waits for its end."""
        *complete, self._rest = b"".join([self._rest, *self.blocks()]).split(b"\n")
        return complete

    def rest(self) -> bytes:
        """The torn last line, once nobody writes any more."""
        rest, self._rest = self._rest, b""
        return rest

    def _seek(self, file: BinaryIO) -> None:
        status = os.fstat(file.fileno())
        self.modified = status.st_mtime
        if status.st_size < self._offset:  # somebody began the file again
            self._offset, self._rest = 0, b""
        file.seek(self._offset)


class RunHistory:
    """Events and newest metrics of one run: nothing at first, `refresh` reads what was added.

    Unless it is to be `whole`, of what was there at first only the newest metrics and the newest
    checkpoint are read: a list of many runs has no use for more, and parsing it would take seconds.
    """

    def __init__(self, run_dir: RunDir, *, whole: bool = False) -> None:
        self.run_dir = run_dir
        self.events: list[Record] = []
        self.train: Record = {}  # newest training record
        self.evaluation: Record = {}  # newest evaluation record
        self._is_behind = not whole
        self._events = FileTail(run_dir.events)
        self._metrics = FileTail(run_dir.metrics, None if whole else _METRICS_TAIL_BYTES)

    def refresh(self) -> list[Record]:
        """Read on; the new records, events first. A metrics record has no `event`."""
        event_lines, metrics_lines = self._events.lines(), self._metrics.lines()
        if self._is_behind:
            self._is_behind = False
            event_lines = _newest_only(event_lines, lambda line: line.startswith(_CHECKPOINT))
            metrics_lines = self._newest_metrics(metrics_lines)
        records = json_objects(event_lines)
        events = [record for record in records if isinstance(record.get("event"), str)]
        metrics = list(json_objects(metrics_lines))
        self.events += events
        for record in metrics:
            if "accuracy" in record:
                self.evaluation = record
            else:
                self.train = record
        return events + metrics

    def _newest_metrics(self, lines: list[bytes]) -> list[bytes]:
        """The newest evaluation and the newest training record among the lines."""
        evaluation = _newest_whole(line for line in reversed(lines) if _EVALUATION in line)
        if not evaluation:
            more = FileTail(self.run_dir.metrics, _EVALUATION_TAIL_BYTES).lines()
            evaluation = _newest_whole(line for line in reversed(more) if _EVALUATION in line)
        training = _newest_whole(line for line in reversed(lines) if _EVALUATION not in line)
        return [evaluation, training]

    @property
    def metrics_time(self) -> float:
        """When metrics.jsonl was last written, in Unix seconds; 0 if never."""
        return self._metrics.modified

    @property
    def last_write_time(self) -> float:
        """The run's last sign of life in its files, in Unix seconds; 0 if there is none."""
        return max(self._metrics.modified, self._events.modified)

    @property
    def current(self) -> Sequence[Record]:
        """The events of the newest submission; all of them if none was recorded."""
        return since_submission(self.events)

    @property
    def submission(self) -> Record:
        """The newest `submitted` event, or an empty record.

        Where sbatch gave no answer there is no job id in it, and in a folder that was removed
        under its job there is no such event: the job itself tells its id later.
        """
        newest = next(filter(is_submission, reversed(self.events)), {})
        if "job_id" in newest:
            return newest
        job_ids = (event["job_id"] for event in reversed(self.current) if "job_id" in event)
        job_id = next(job_ids, None)
        return newest | {"job_id": job_id} if job_id else newest


def read_history(run_dir: RunDir) -> RunHistory:
    """The run's history as of now."""
    history = RunHistory(run_dir)
    history.refresh()
    return history


def is_submission(event: Record) -> bool:
    return event["event"] == "submitted"


def since_submission(events: Sequence[Record]) -> Sequence[Record]:
    """The events of the newest submission.

    Its job may have written before the `submitted` event was: that is recorded once the job's id
    is known, and the job does not wait.
    """
    places = [index for index, event in enumerate(events) if is_submission(event)]
    if not places:
        return events
    begin = places[-1]
    before = places[-2] + 1 if len(places) > 1 else 0
    job_id = events[begin].get("job_id", "")
    early = (i for i in range(before, begin) if events[i].get("job_id") == job_id)
    return events[next(early, begin) :]


def newest_step(metrics_lines: Iterable[bytes]) -> int:
    """The highest step among lines of metrics.jsonl, 0 if there is none."""
    return max((record.get("step", 0) for record in json_objects(metrics_lines)), default=0)


def last_step(metrics_lines: Iterable[bytes], events: Iterable[Record]) -> int:
    """The last step known of the newest attempt that has done one, be it less than one before; 0 if
    there is none: that of its last record, or its first step where it was ended before one.
    """
    firsts = [event for event in events if event["event"] == "first_step"]
    known = [record for record in (*firsts, *json_objects(metrics_lines)) if "step" in record]
    newest = max((record.get("attempt", 0) for record in known), default=0)
    steps = [record["step"] for record in known if record.get("attempt", 0) == newest]
    return steps[-1] if steps else 0


def since_sent(events: Sequence[Record]) -> Sequence[Record]:
    """The events since a person sent the run, by `submit` or `resume`: budgets begin anew there."""
    places = [i for i, e in enumerate(events) if is_submission(e) and "again" not in e]
    return events[places[-1] :] if places else events


def _newest_only(lines: list[bytes], is_one: Callable[[bytes], bool]) -> list[bytes]:
    """All lines, but of those that `is_one` only the last."""
    places = [index for index, line in enumerate(lines) if is_one(line)]
    left_out = set(places[:-1])
    return [line for index, line in enumerate(lines) if index not in left_out]


def _newest_whole(newest_first: Iterable[bytes]) -> bytes:
    """The first line that holds a JSON object, empty if none does."""
    return next((line for line in newest_first if any(json_objects([line]))), b"")
