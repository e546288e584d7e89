"""Losses and states that are no numbers any more: found without waiting, never saved.

Knows no file. On CUDA the host hears of a loss a few steps late; the step named is the right one.
"""

from collections.abc import Mapping
from typing import Any

import numpy
import torch

from hpcddp.train.process_group import Ranks

_NEVER = -1


class NonFiniteError(Exception):
    """Training has left the numbers: a failure, not a mistake in how it was started."""


class LossWatch:
    """Remembers on the device the first step whose loss was not finite in this process."""

    def __init__(self, device: torch.device) -> None:
        self._first = torch.full((), _NEVER, device=device)
        self._heard = torch.full((), _NEVER, pin_memory=device.type == "cuda")

    def note(self, loss: torch.Tensor, step: int) -> None:
        """`loss` is that of the update to `step`. Does not wait for the device."""
        is_known = torch.isfinite(loss) | (self._first != _NEVER)
        self._first = torch.where(is_known, self._first, step)
        self._heard.copy_(self._first, non_blocking=True)

    @property
    def has_heard(self) -> bool:
        """True once the host knows of one; does not wait for the device."""
        return int(self._heard) != _NEVER

    def error(self, ranks: Ranks, global_rank: int, world_size: int) -> NonFiniteError:
        """Which step it was, and in which processes. Collective."""
        firsts = torch.zeros(world_size, dtype=torch.int64, device=self._first.device)
        firsts[global_rank] = self._first
        ranks.sum_across(firsts)
        return NonFiniteError(_loss_words(firsts.tolist()))


def _loss_words(firsts: list[int]) -> str:
    found = [first for first in firsts if first != _NEVER]
    step = min(found, default=None)
    where = ", ".join(str(rank) for rank, first in enumerate(firsts) if first == step)
    what = f"The loss of step {step} is not finite on rank {where}" if found else "The mean loss"
    return (
        f"{what if found else what + ' is not finite'} ({len(firsts)} in all). No state after it "
        "was saved. Lower optim.lr, lengthen optim.lr_warmup_epochs, set train.max_grad_norm, or "
        "leave such steps out with train.on_nonfinite=skip; `hpcddp resume` then goes on from the "
        "last checkpoint."
    )


class StepSkipper:
    """Leaves out updates with a loss or gradient that is not finite, in all processes alike.

    All on the device: the fused optimizer reads there whether to do anything, and buffers that the
    forward pass has moved (running means) are put back.
    """

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks
    ) -> None:
        self._parameters = list(model.parameters())
        self._buffers = list(model.buffers())
        self._before = [torch.empty_like(buffer) for buffer in self._buffers]
        self._optimizer = optimizer
        self._ranks = ranks
        self._count = torch.zeros((), device=self._parameters[0].device)

    @property
    def count(self) -> int:
        """Steps left out by this start; waits for the device."""
        return int(self._count)

    def begin(self) -> None:
        """Before the first pass of a step."""
        for kept, buffer in zip(self._before, self._buffers, strict=True):
            kept.copy_(buffer)

    def judge(self, loss: torch.Tensor) -> None:
        """After the last pass, before the update; `loss` is this process's. Collective."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        is_bad = (~(torch.isfinite(loss) & torch.isfinite(norm))).float()
        self._ranks.sum_across(is_bad)
        is_bad.clamp_(max=1.0)
        for kept, buffer in zip(self._before, self._buffers, strict=True):
            buffer.copy_(torch.where(is_bad > 0, kept, buffer))
        self._count += is_bad
        # What a gradient scaler sets too, which does its own bookkeeping with fp16.
        self._optimizer.found_inf = is_bad


def first_nonfinite(value: Any, name: str = "state") -> str | None:  # noqa: ANN401
    """The name of the first tensor of a state on the CPU that holds NaN or infinity, or None.

    With numpy: torch would start threads of its own for a thread that is not the main one.
    """
    if isinstance(value, torch.Tensor):
        return name if value.is_floating_point() and not _is_finite(value) else None
    items = value.items() if isinstance(value, Mapping) else ()
    found = (first_nonfinite(item, f"{name}.{key}") for key, item in items)
    return next((one for one in found if one is not None), None)


def _is_finite(tensor: torch.Tensor) -> bool:
    if tensor.dtype == torch.bfloat16:  # numpy has no such type
        return bool(torch.isfinite(tensor).all())
    return bool(numpy.isfinite(tensor.numpy()).all())
