"""Two passes before training whose results are thrown away. Knows no data and no step."""

import torch
from torch import nn

from hpcddp.train.forward import Forward

PASSES = 2


def warm_up(forward: Forward, images_nchw: torch.Tensor, labels_n: torch.Tensor) -> None:
    """Run forward and backward twice and leave the model as it was, in training mode. Collective.

    DDP's first iteration reduces gradients in the order in which parameters were registered; then
    it regroups them in the order in which they become ready. Another grouping adds up in another
    order, so a resumed process, whose first iteration is a later step, would end with other bits
    than an uninterrupted one, from three processes on (measured with torch 2.14 and gloo;
    `tests/train/test_resume.py` shows it). Both get their first iterations over with here, before
    the state that counts is there.
    """
    model = forward.replicas.module
    model.train()
    before = [buffer.clone() for buffer in model.buffers()]
    for _ in range(PASSES):
        forward.loss(images_nchw, labels_n).backward()
        model.zero_grad(set_to_none=True)
    _restore(model, before)


@torch.no_grad()
def _restore(model: nn.Module, before: list[torch.Tensor]) -> None:
    for buffer, value in zip(model.buffers(), before, strict=True):
        buffer.copy_(value)
