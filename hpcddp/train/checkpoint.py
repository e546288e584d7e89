"""Training state to disk and back. Knows torch; knows no collective, no loop, no signal.

A save is three steps that can later run in different places: `snapshot_state` (in the loop), then
`write_checkpoint` and `publish_checkpoint` (anywhere). Only one process of a run may save.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hpcddp.checkpoint_dir import (
    STATE_FILE,
    CheckpointError,
    CheckpointInfo,
    Manifest,
    check_sizes,
    checkpoint_path,
    commit,
    list_checkpoints,
    remove_left_overs,
    start_partial,
    synced_file,
    thin_out,
    verify_checkpoint,
    write_manifest,
)

State = Mapping[str, Any]

_PLAIN_TYPES = (int, float, str, bool, type(None))  # with tensors, all that weights_only loads


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A state on the CPU, and why newer checkpoints than this one were not used."""

    path: Path
    step: int
    state: dict[str, Any]
    extra: Mapping[str, Any]
    skipped: tuple[str, ...] = ()


def save_checkpoint(
    checkpoints_dir: Path, step: int, state: State, extra: Mapping[str, Any], keep_last: int
) -> CheckpointInfo:
    """Write the checkpoint of `step` so that it is there whole or not at all, then thin out.

    `state` holds tensors and plain values in dicts, lists and tuples; `extra` JSON values that one
    may want without torch. A checkpoint of the same step that is in order is kept and nothing is
    written (a run stopped right after it resumed); a damaged one is replaced. Raises
    CheckpointError when nothing could be written; older checkpoints are then untouched.
    """
    snapshot = snapshot_state(state)
    info = CheckpointInfo(checkpoint_path(checkpoints_dir, step), step)
    try:
        checkpoints_dir.mkdir(parents=True, exist_ok=True)
        remove_left_overs(checkpoints_dir)
        if not _is_intact(info.path):
            partial = write_checkpoint(checkpoints_dir, step, snapshot, extra)
            publish_checkpoint(partial, info)
        thin_out(checkpoints_dir, info, keep_last)
    except OSError as error:
        raise _not_written(checkpoints_dir, step, error) from error
    return info
