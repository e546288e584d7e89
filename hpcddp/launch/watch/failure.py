"""Why an attempt failed, and which log tells more: from its `failed` events. Reads no file.

There are two kinds: a process writes one with its error before it leaves, and the batch script's
last act writes one with srun's exit code. A process that was killed writes nothing.
"""

import re
import signal
from collections.abc import Sequence

from hpcddp.launch.history import Record
from hpcddp.run_dir import RunDir

# What is raised where a peer is gone. It comes from gloo, NCCL or a socket, and names a victim.
_LOST_PEER = re.compile(
    r"connection (closed|reset|refused)|broken pipe|closed by peer|remote (process|worker|error)",
    re.IGNORECASE,
)
_MOST_RANKS_NAMED = 8
# Characters; the log that is named beside it has all of them. The end says what to do.
_LONGEST_ERROR, _END_OF_ERROR = 1000, 300


def is_rank_failure(event: Record) -> bool:
    """True for the `failed` event of one process, which its batch script may still survive."""
    return event["event"] == "failed" and "error" in event


def newest_failures(events: Sequence[Record]) -> list[Record]:
    """The `failed` events of the newest attempt, in the order they were written."""
    attempt = max((e["attempt"] for e in events if e.get("attempt") is not None), default=None)
    failures: list[Record] = []
    for event in events:
        if event["event"] == "requeued":
            failures = []
        elif event["event"] == "failed" and event.get("attempt", attempt) == attempt:
            failures.append(event)
    return failures


def first_failure(events: Sequence[Record]) -> Record | None:
    """The process that failed first in the newest attempt; one that lost its peer comes last.

    Clocks differ between nodes, so a victim's time may lie before its cause's.
    """
    failures = filter(is_rank_failure, newest_failures(events))
    return min(failures, key=lambda e: (_has_lost_peer(e), e.get("time", 0.0)), default=None)


def failure_log(run_dir: RunDir, events: Sequence[Record]) -> str:
    """The log to read: the failing process's own, or the batch script's, where srun names tasks."""
    failure = first_failure(events)
    by_srun = next((e for e in newest_failures(events) if {"task", "attempt"} <= set(e)), None)
    if failure is None and by_srun is not None:  # srun's tasks are our ranks
        return str(run_dir.rank_log(by_srun["attempt"], by_srun["task"]))
    if failure is None or _has_lost_peer(failure) or not {"global_rank", "attempt"} <= set(failure):
        return str(run_dir.batch_log)
    return str(run_dir.rank_log(failure["attempt"], failure["global_rank"]))


def failure_words(events: Sequence[Record]) -> list[str]:
    """What the events say of the newest attempt's failure, in parts of a sentence."""
    parts = []
    process = first_failure(events)
    if process is not None and _has_lost_peer(process):
        parts.append(_silent_words(events))
    if process is not None:
        parts.append(rank_words(process))
    batch = [event for event in newest_failures(events) if not is_rank_failure(event)]
    return [*parts, *map(batch_words, batch[-1:])]


def _silent_words(events: Sequence[Record]) -> str:
    """Which processes ended without a word, when the others only lost a peer."""
    told = {event.get("global_rank") for event in newest_failures(events)}
    sizes = [event["world_size"] for event in events if event.get("world_size")]
    silent = [str(rank) for rank in range(sizes[-1]) if rank not in told] if sizes else []
    if not 0 < len(silent) <= _MOST_RANKS_NAMED:
        return "a process ended without a word"
    return f"rank {', '.join(silent)} ended without a word"


def rank_words(failure: Record) -> str:
    """The process and its error: `rank 3 on gpu-02: RuntimeError: boom`."""
    rank = f"rank {failure['global_rank']} " if "global_rank" in failure else ""
    error = str(failure["error"])
    if len(error) > _LONGEST_ERROR:
        error = f"{error[: _LONGEST_ERROR - _END_OF_ERROR]} … {error[-_END_OF_ERROR:]}"
    return f"{rank}on {failure.get('host', 'some host')}: {error}"


def batch_words(failure: Record) -> str:
    """What the batch script's last act wrote; a signal that hides in an exit code is named."""
    code = failure.get("exit_code")
    reason = str(failure.get("reason") or f"exit code {code}")
    return re.sub(rf"\bexit code {code}\b", exit_words(code), reason)


def exit_words(code: int | None) -> str:
    """An exit code in words: `exit code 137 (SIGKILL)`."""
    if code is None:
        return "exit code not known"
    if code > 128 and code - 128 in set(signal.Signals):
        return f"exit code {code} ({signal.Signals(code - 128).name})"
    return f"exit code {code}"


def _has_lost_peer(failure: Record) -> bool:
    return bool(_LOST_PEER.search(str(failure.get("error", ""))))
