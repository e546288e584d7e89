"""The accuracy of the test set is that of its samples, not a mean of what the ranks would say."""

import math
import threading
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from hpcddp.train.evaluate import EvalTask, evaluate

CASES = yaml.safe_load(
    (Path(__file__).parents[1] / "cases" / "samples.yaml").read_text(encoding="utf-8")
)["accuracy"]
MICRO_BATCH = 25


class Together:
    """Ranks that are threads: what one adds, all get."""

    def __init__(self, world_size):
        self.met, self.parts = threading.Barrier(world_size, timeout=60), []

    def broadcast(self, tensors):
        assert tensors == []

    def sum_across(self, tensor):
        self.parts.append(tensor.clone())
        self.met.wait()
        tensor.copy_(torch.stack(self.parts).sum(0))


def share(correct, samples):
    """The batches of one rank: logits instead of images; the label is always 0."""
    logits_nk = torch.tensor([0.0, 4.0]).repeat(samples, 1)
    logits_nk[:correct] = torch.tensor([4.0, 0.0])
    labels_n = torch.zeros(samples, dtype=torch.int64)
    cuts = range(0, samples, MICRO_BATCH)
    return [(logits_nk[cut : cut + MICRO_BATCH], labels_n[cut : cut + MICRO_BATCH]) for cut in cuts]


def all_evaluate(shares):
    """What every rank says of the whole test set."""
    ranks, said = Together(len(shares)), {}
    most = max(map(len, shares))

    def one(rank):
        task = EvalTask(shares[rank], most, lambda batch: batch, lambda model, logits_nk: logits_nk)
        said[rank] = evaluate(nn.Linear(1, 1), task, ranks, lambda: False)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(shares))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [said[rank] for rank in range(len(shares))]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_each_sample_counts_once_however_they_are_spread_over_the_ranks(case):
    counts = case["correct_of_samples"]
    correct, samples = (sum(column) for column in zip(*counts, strict=True))
    right, wrong = math.log1p(math.exp(-4)), math.log1p(math.exp(4))
    loss = (correct * right + (samples - correct) * wrong) / samples
    for evaluation in all_evaluate([share(*each) for each in counts]):
        assert evaluation.accuracy == pytest.approx(case["accuracy"])
        assert evaluation.loss == pytest.approx(loss)
        assert evaluation.samples == samples
