"""Exact accuracy on the test set: each sample counts once, whatever the world size. Knows no step.

Shapes: n images of one batch, k classes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from hpcddp.data.datasets import Batch
from hpcddp.train.process_group import Ranks


@dataclass(frozen=True, slots=True)
class EvalTask:
    """This process's share of the test set. `most_batches` is what the largest share has."""

    batches: Iterable[Batch]
    most_batches: int
    to_device: Callable[[Batch], Batch]
    logits_of: Callable[[nn.Module, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Means over all samples of the test set."""

    accuracy: float
    loss: float
    samples: int


def most_batches(num_samples: int, world_size: int, micro_batch: int) -> int:
    """Batches in the largest share when `num_samples` are dealt out as evenly as possible."""
    largest_share = -(-num_samples // world_size)
    return -(-largest_share // micro_batch)


def evaluate(
    model: nn.Module, task: EvalTask, ranks: Ranks, asked_to_stop: Callable[[], bool]
) -> Evaluation | None:
    """Evaluate the main process's model, buffers included. Collective.

    None as soon as `asked_to_stop`, a collective, says so; it is asked before each batch, equally
    often on all ranks.
    """
    ranks.broadcast(list(model.buffers()))
    sums_3 = torch.zeros(3, dtype=torch.float64, device=next(model.parameters()).device)
    batches = iter(task.batches)
    model.eval()
    for _ in range(task.most_batches):
        if asked_to_stop():
            return None
        batch = next(batches, None)
        if batch is not None:
            sums_3 += _loss_correct_samples(model, task, batch)
    model.train()
    ranks.sum_across(sums_3)
    loss_sum, correct, samples = sums_3.tolist()
    return Evaluation(correct / samples, loss_sum / samples, int(samples))


@torch.inference_mode()
def _loss_correct_samples(model: nn.Module, task: EvalTask, batch: Batch) -> torch.Tensor:
    images_nchw, labels_n = task.to_device(batch)
    logits_nk = task.logits_of(model, images_nchw).float()
    loss_sum = F.cross_entropy(logits_nk, labels_n, reduction="sum").double()
    correct = (logits_nk.argmax(1) == labels_n).sum().double()
    return torch.stack([loss_sum, correct, torch.full_like(loss_sum, len(labels_n))])
