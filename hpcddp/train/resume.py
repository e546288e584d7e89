"""Where a start goes on: the main process decides from disk, the others hear it. Knows no loop."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcddp.config.batch import MicroBatch
from hpcddp.config.identity import check_identity, check_unchanged
from hpcddp.run_dir import RunDir
from hpcddp.train.checkpoint import LoadedCheckpoint, load_newest
from hpcddp.train.fingerprint import changes
from hpcddp.train.process_group import Ranks
from hpcddp.train.state import TrainState

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """What all ranks know of the checkpoint; its tensors are only with the main process."""

    step: int
    path: str
    changed: Mapping[str, list[Any]]  # of fingerprint, settings: name -> value then, value now
    first: MicroBatch | None = None  # of the run's first start


@dataclass(slots=True)
class Found:
    """`point` is None in a fresh run; only the main process has `loaded`."""

    point: ResumePoint | None
    loaded: LoadedCheckpoint | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """What a checkpoint has to agree with: `identity` always, the rest if strict.

    `settings` are those of a start that goes on from a run with that micro-batch.
    """

    identity: Mapping[str, Any]
    fingerprint: Mapping[str, Any]
    settings: Callable[[MicroBatch | None], Mapping[str, Any]]
    is_strict: bool = False


def find_checkpoint(checkpoints_dir: Path, expected: Expected, ranks: Ranks) -> Found:
    """Look for the newest checkpoint that is whole. Collective.

    Raises HpcddpError, on all ranks, if it belongs to another run or to other settings, or was
    written under another fingerprint and that is not allowed.
    """
    found = Found(None)

    def decide() -> ResumePoint | None:
        found.loaded = load_newest(checkpoints_dir)
        return None if found.loaded is None else _checked(found.loaded, expected)

    found.point = ranks.decide(decide)
    return found


def is_finished(found: Found, total_steps: int, run_dir: RunDir) -> bool:
    """True if an earlier start trained and evaluated all of it. Reads the disk; main only."""
    if found.point is None or found.point.step < total_steps:
        return False
    finished = (event for event in run_dir.read_events() if event["event"] == "finished")
    return any(event.get("step") == found.point.step for event in finished)


def restore(found: Found, state: TrainState, ranks: Ranks) -> None:
    """Put the checkpoint, or the main process's fresh state, into all processes. Collective."""
    if found.loaded is not None:
        _warn_of_ema(found.loaded, state)
        state.load(found.loaded.state)
        found.loaded = None  # its tensors are copied: let go of the memory
    state.share(ranks)


def _warn_of_ema(loaded: LoadedCheckpoint, state: TrainState) -> None:
    """Say so where the average of the weights does not simply go on."""
    was_kept, is_kept = "ema" in loaded.state, state.ema is not None
    if is_kept and not was_kept:
        _log.warning(
            "train.ema_decay=%g is new in this run: the average begins with the weights of step %d",
            *(state.ema.decay, loaded.step),
        )
    elif was_kept and not is_kept:
        _log.warning(
            "%s holds an average of the weights that does not go on, as train.ema_decay is 0",
            loaded.path,
        )


def _checked(loaded: LoadedCheckpoint, expected: Expected) -> ResumePoint:
    for problem in loaded.skipped:
        _log.warning("A newer checkpoint cannot be used: %s", problem)
    check_identity(loaded.path, loaded.extra, expected.identity)
    images = loaded.extra.get("micro_batch")
    first = MicroBatch(images, loaded.extra.get("micro_batch_devices", 1)) if images else None
    here = expected.settings(first)
    # An older version has recorded others too, such as the micro-batch that was typed.
    there = {key: value for key, value in loaded.extra.get("settings", {}).items() if key in here}
    changed = {
        **changes(loaded.extra.get("fingerprint", {}), expected.fingerprint),
        **changes(there, here),
    }
    if expected.is_strict:
        check_unchanged(loaded.path, changed)
    return ResumePoint(loaded.step, str(loaded.path), changed, first)
