"""Training state to disk and back. Knows torch; knows no collective, no loop, no signal.

A save is two steps that can run in different places: `snapshot_state` (in the loop), then
`save_snapshot` (in any thread). Only one process of a run may save.
"""

import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hpcddp.checkpoint_dir import (
    NOT_WRITTEN,
    STATE_FILE,
    CheckpointError,
    CheckpointInfo,
    ChecksummedFile,
    Manifest,
    check_sizes,
    checkpoint_path,
    commit,
    list_checkpoints,
    make_folder,
    remove_left_overs,
    start_partial,
    synced_file,
    verify_checkpoint,
    write_manifest,
)
from hpcddp.checkpoint_kept import thin_out

State = Mapping[str, Any]
TakeTensor = Callable[[str, torch.Tensor], torch.Tensor]  # by its name in the state

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
    """`save_snapshot` of `state` as it is; returns before `state` can change.

    Raises CheckpointError for a value that could be saved but not be loaded again.
    """
    snapshot = snapshot_state(state)
    return save_snapshot(checkpoints_dir, step, snapshot, extra, Retention(keep_last))


@dataclass(frozen=True, slots=True)
class Retention:
    """Which checkpoints stay; see `thin_out`."""

    keep_last: int
    keep_every_steps: int | None = None


def _no_fence() -> None:
    """For folders that only one process can know of."""


def save_snapshot(
    checkpoints_dir: Path,
    step: int,
    snapshot: State,
    extra: Mapping[str, Any],
    retention: Retention,
    fence: Callable[[], None] = _no_fence,
) -> CheckpointInfo:
    """Write the checkpoint of `step` so that it is there whole or not at all, then thin out.

    `snapshot` holds CPU tensors and plain values in dicts, lists and tuples; `extra` holds JSON
    values that are of use without torch. A checkpoint of the same step that is in order stays and
    nothing is written (a run stopped right after it resumed); a damaged one is replaced. Raises
    CheckpointError when nothing could be written; older checkpoints are then untouched. `fence`
    is called before anything is touched and right before the checkpoint appears, and raises what
    it likes if it must not.
    """
    info = CheckpointInfo(checkpoint_path(checkpoints_dir, step), step)
    try:
        fence()
        make_folder(checkpoints_dir)
        remove_left_overs(checkpoints_dir)
        if not _is_intact(info.path):
            partial = write_checkpoint(checkpoints_dir, step, snapshot, extra)
            publish_checkpoint(partial, info, fence)
    except OSError as error:
        raise _not_written(checkpoints_dir, step, error) from error
    thin_out(checkpoints_dir, info, retention.keep_last, retention.keep_every_steps)
    return info


def share_tensor(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if it is on the CPU, else a copy there."""
    return tensor.cpu()


def snapshot_state(state: State, take: TakeTensor = share_tensor) -> dict[str, Any]:
    """`state` on the CPU, in plain containers, without gradients; `take` says how each tensor.

    `share_tensor` shares CPU tensors: write before the next step changes them. Raises
    CheckpointError for a value that could be saved but not be loaded again with weights_only.
    """
    return _on_cpu(state, "state", take)


def _on_cpu(value: Any, name: str, take: TakeTensor) -> Any:  # noqa: ANN401
    if isinstance(value, torch.Tensor):
        return take(name, value.detach())
    if isinstance(value, Mapping):
        return {key: _on_cpu(item, f"{name}.{key}", take) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_on_cpu(item, f"{name}.{place}", take) for place, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    if type(value) not in _PLAIN_TYPES:
        raise CheckpointError(
            f"{name} is a {type(value).__module__}.{type(value).__qualname__}. A checkpoint holds "
            "tensors and plain Python values only, so that loading it never runs code; convert it."
        )
    return value


def write_checkpoint(
    checkpoints_dir: Path, step: int, snapshot: State, extra: Mapping[str, Any]
) -> Path:
    """Write a complete checkpoint under a hidden name and return that path; synced to disk."""
    partial = start_partial(checkpoints_dir, step)
    try:
        with synced_file(partial / STATE_FILE) as file:
            _save(snapshot, file)
        write_manifest(partial, Manifest(step, {STATE_FILE: file.record}, extra))
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # on a full disk its space is needed at once
        raise
    return partial


def _save(snapshot: State, file: ChecksummedFile) -> None:
    try:
        torch.save(snapshot, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # torch hides it: "unexpected pos 704 vs 598"
            raise error.__context__ from error
        raise


def publish_checkpoint(partial: Path, info: CheckpointInfo, fence: Callable[[], None]) -> None:
    """Give a complete checkpoint its final name and look at it once more from there."""
    try:
        fence()
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    commit(partial, info.path)
    check_sizes(info.path)


def load_checkpoint(path: Path) -> LoadedCheckpoint:
    """The checkpoint at `path`, every byte checked; CheckpointError says what is wrong with it."""
    manifest = verify_checkpoint(path)
    try:
        state = torch.load(path / STATE_FILE, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds, for data it was never meant to see
        raise CheckpointError(
            f"{path / STATE_FILE} is whole but torch {torch.__version__} cannot load it: {error}"
        ) from error
    return LoadedCheckpoint(path, manifest.step, state, manifest.extra)


def load_newest(checkpoints_dir: Path) -> LoadedCheckpoint | None:
    """The newest checkpoint that loads, with what was wrong with newer ones; None if there is none.

    Only reads. Raises CheckpointError when there are checkpoints but none can be used: silently
    starting again would throw the run's work away.
    """
    skipped: list[str] = []
    for info in reversed(list_checkpoints(checkpoints_dir)):
        try:
            return replace(load_checkpoint(info.path), skipped=tuple(skipped))
        except CheckpointError as error:
            skipped.append(error.message)
    if skipped:
        raise CheckpointError(
            f"No checkpoint in {checkpoints_dir} can be used: {' '.join(skipped)} "
            f"To start this run again from step 0, type: rm -r {shlex.quote(str(checkpoints_dir))}"
        )
    return None


def export_weights(loaded: LoadedCheckpoint, path: Path, section: str = "model") -> None:
    """Write one state dict, `model` or `ema`, to a new file; CheckpointError if that cannot be."""
    if section not in loaded.state:
        raise CheckpointError(
            f"{loaded.path} holds no average of the weights: its run had train.ema_decay=0. "
            "Leave out --ema to export the weights themselves.",
            "not_exported",
        )
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with synced_file(partial) as file:
            _save(loaded.state[section], file)
        os.link(partial, path)  # unlike a rename, fails where something is already
    except OSError as error:
        raise CheckpointError(
            f"The weights were not written to {path}: {error.strerror}. Name a new file in a "
            "folder that exists.",
            "not_exported",
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def _is_intact(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        verify_checkpoint(path)
    except CheckpointError:
        return False
    return True


def _not_written(checkpoints_dir: Path, step: int, error: OSError) -> CheckpointError:
    older = [info for info in list_checkpoints(checkpoints_dir) if info.step < step]
    kept = f"{older[-1].path.name} is untouched" if older else "there is no older one"
    advice = "Make room or check the quota, or point the run at another file system."
    if isinstance(error, FileNotFoundError):
        advice = "Was the run's folder moved or removed? It has to be there while the run trains."
    return CheckpointError(
        f"The checkpoint of step {step} was not written to {checkpoints_dir}: {error.strerror} "
        f"({kept}). {advice}",
        NOT_WRITTEN,
    )
