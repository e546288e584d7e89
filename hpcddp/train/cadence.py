"""When the next checkpoint is due: after fixed steps, or chosen so that saving pays for itself.

Knows neither files nor tensors. Only the main process saves, so only it decides.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hpcddp.config.schema import CheckpointConfig

_FIRST_SAVE_S = 60.0  # nothing is measured yet

_log = logging.getLogger(__name__)


def best_interval_s(stall_s: float, write_s: float, mtbf_s: float, max_interval_s: float) -> float:
    """Seconds of training between two saves that lose the least time.

    Young 1974: sqrt(2 x cost of a save x mean time between failures). The cost is what training
    stands still for. Never shorter than a write lasts, never longer than the bound.
    """
    return min(max_interval_s, max(math.sqrt(2 * stall_s * mtbf_s), write_s))


@dataclass(slots=True)
class Cadence:
    """Says when to save. `every_steps` is None until it is fixed or chosen."""

    every_steps: int | None
    mtbf_s: float
    max_interval_s: float
    step: int  # of the last save; at the start, where it began
    now: Callable[[], float] = time.monotonic
    is_fixed: bool = field(init=False)
    _saved_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.is_fixed = self.every_steps is not None
        self._saved_at = self.now()

    def is_due(self, step: int) -> bool:
        """True if the state after `step` updates is to be saved."""
        if self.is_fixed:
            return step % self.every_steps == 0
        elapsed_s = self.now() - self._saved_at
        if self.every_steps is None:
            return elapsed_s >= min(_FIRST_SAVE_S, self.max_interval_s)
        return step - self.step >= self.every_steps or elapsed_s >= self.max_interval_s

    def saved(self, step: int, stall_s: float, write_s: float) -> None:
        """Learn from a save of `step`: what it cost, and how long the steps before it took."""
        now = self.now()
        num_steps, elapsed_s = step - self.step, now - self._saved_at
        self.step, self._saved_at = step, now
        if self.is_fixed or num_steps <= 0 or elapsed_s <= 0:
            return
        interval_s = best_interval_s(stall_s, write_s, self.mtbf_s, self.max_interval_s)
        if self.every_steps is None:
            _log.info(
                "A checkpoint about every %.0f s: a save stops training for %.3f s, and something "
                "fails every %.3g h (checkpoint.mtbf_hours)",
                *(interval_s, stall_s, self.mtbf_s / 3600),
            )
        self.every_steps = max(1, round(interval_s * num_steps / elapsed_s))


def build_cadence(config: CheckpointConfig, start_step: int) -> Cadence:
    """The cadence as configured, from the step on at which this start begins."""
    return Cadence(
        config.every_steps, config.mtbf_hours * 3600, config.max_interval_s, step=start_step
    )
