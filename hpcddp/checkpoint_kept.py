"""Which checkpoints stay: the last ones, some for good, and the best. Knows no torch.

Which one is best stands in `checkpoints/best.json`, beside them.
"""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcddp.checkpoint_dir import (
    CheckpointInfo,
    checkpoint_path,
    is_usable,
    list_checkpoints,
    remove_checkpoint,
)
from hpcddp.run_dir import write_atomically

BEST_FILE = "best.json"


@dataclass(frozen=True, slots=True)
class Best:
    """A step and what its evaluation gave; `weights` says of which weights, `model` or `ema`."""

    step: int
    accuracy: float
    eval_loss: float
    weights: str = "model"

    def beats(self, other: "Best | None") -> bool:
        """True if this is to be kept as the best; never for what is no number.

        Of equals the earlier one stays. A step that is done again stands for itself.
        """
        if not (math.isfinite(self.accuracy) and math.isfinite(self.eval_loss)):
            return False
        return other is None or self.step == other.step or self.accuracy > other.accuracy


def read_best(folder: Path) -> Best | None:
    """The best so far; None where there is none or its checkpoint can no longer be used."""
    with suppress(OSError, ValueError, TypeError):
        record: Mapping[str, Any] = json.loads((folder / BEST_FILE).read_bytes())
        best = Best(**record)
        return best if is_usable(checkpoint_path(folder, best.step)) else None
    return None


def write_best(folder: Path, best: Best) -> None:
    """Make the checkpoint of `best.step`, which is there already, the best. Raises OSError."""
    write_atomically(folder / BEST_FILE, json.dumps(asdict(best)) + "\n")


def thin_out(
    folder: Path, newest: CheckpointInfo, keep_last: int, keep_every_steps: int | None = None
) -> None:
    """Delete all but the last `keep_last` usable checkpoints up to `newest`, and the best one.

    With `keep_every_steps` the first one at or after each multiple of it stays as well. Damaged
    ones do not count as kept. Later ones than `newest` are left alone: the run went back behind
    them because they do not load, and will replace them when it gets there again.
    """
    older = [info for info in list_checkpoints(folder) if info.step < newest.step]
    lasting = _first_at_multiples(older, keep_every_steps) if keep_every_steps else []
    best = read_best(folder)
    if best is not None:
        lasting.append(CheckpointInfo(checkpoint_path(folder, best.step), best.step))
    kept = 1
    for info in reversed(older):
        if kept < keep_last and is_usable(info.path):
            kept += 1
        elif kept >= keep_last and info not in lasting:
            with suppress(OSError):  # the new one is safe; this one goes after the next save
                remove_checkpoint(info.path)


def _first_at_multiples(rising: list[CheckpointInfo], every: int) -> list[CheckpointInfo]:
    firsts: dict[int, CheckpointInfo] = {}
    for info in rising:
        multiple = info.step // every
        if multiple > 0 and multiple not in firsts and is_usable(info.path):
            firsts[multiple] = info
    return list(firsts.values())
