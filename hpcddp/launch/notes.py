"""What the last act says in the batch log, and writes where the disk lets it. Decides nothing."""

import sys
from contextlib import suppress
from typing import Any

from hpcddp.run_dir import RunDir


def say(text: str) -> None:
    """One line of ours among those of srun."""
    with suppress(OSError):  # the log may be on a full disk
        print(f"hpcddp: {text}", file=sys.stderr, flush=True)


def write_event(run_dir: RunDir, kind: str, **fields: Any) -> None:  # noqa: ANN401
    """Into the run's story; or say that there was no room for it."""
    if problem := run_dir.try_event(kind, **fields):
        say(f"not recorded: {kind}: {problem}")
