"""An exponential moving average of the weights (EMA), kept beside them. Knows no file and no loop.

Not `torch.optim.swa_utils.AveragedModel`: that either takes batch norm's running means from the
newest weights, which they do not fit, or averages its integer counters too; its `n_averaged` would
be one more thing to save; and it puts `module.` before every name.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn


def decay_at(step: int, decay: float) -> float:
    """How much of the average survives the update to `step`; a pure function of it.

    Less at first, so that the untrained weights are soon forgotten: min(decay, (1 + n) / (10 + n)),
    as in tf.train.ExponentialMovingAverage with num_updates = n.
    """
    return min(decay, (1 + step) / (10 + step))


class WeightAverage:
    """A second model whose weights and floating buffers follow those of `source`."""

    def __init__(self, source: nn.Module, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(source).requires_grad_(False)
        pairs = list(zip(_tensors(self.model), _tensors(source), strict=True))
        self._averaged = _columns(pair for pair in pairs if pair[0].is_floating_point())
        self._copied = _columns(pair for pair in pairs if not pair[0].is_floating_point())

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after `step` updates. Does not wait for the device.

        An update that was left out counts as one that changed nothing.
        """
        torch._foreach_lerp_(*self._averaged, 1 - decay_at(step, self.decay))
        if self._copied[0]:  # the counters of batch norm
            torch._foreach_copy_(*self._copied)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """By the model's own names."""
        return self.model.state_dict()

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.model.load_state_dict(saved)


def _columns(
    pairs: Iterable[tuple[torch.Tensor, torch.Tensor]],
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    both = list(pairs)
    return [ours for ours, _ in both], [theirs for _, theirs in both]


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]
