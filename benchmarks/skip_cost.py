"""Seconds from asking for the stream of batches to the first batch, at an early and a late step.

    python benchmarks/skip_cost.py [--samples 1281167] [--rounds 30]

In turns, in one process, for 1,281,167 samples (ImageNet): the stream from step 10 on and from step
1,000,000 on, both in the middle of an epoch, with nothing remembered between two measurements.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from hpcddp.config.batch import plan_batches
from hpcddp.data.sampler import sample_order
from hpcddp.data.stream import train_batches

STEPS = (10, 1_000_000)


class Images:
    """As long as the data set asked for; each image is its index."""

    def __init__(self, samples):
        self._samples = samples

    def __len__(self):
        return self._samples

    def fetch(self, samples_n2, augment):
        images_nchw = np.zeros((len(samples_n2), 3, 8, 8), dtype=np.uint8)
        return torch.from_numpy(images_nchw), torch.from_numpy(samples_n2[:, 1].copy())


def seconds_to_first_batch(dataset, step):
    sample_order.cache_clear()
    begin = time.perf_counter()
    plan = plan_batches(global_batch=256, micro_batch=32, world_size=4)
    next(train_batches(dataset, plan, global_rank=1, seed=0, start_step=step))
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=1_281_167)
    parser.add_argument("--rounds", type=int, default=30)
    typed = parser.parse_args()
    dataset = Images(typed.samples)
    for step in STEPS:
        seconds_to_first_batch(dataset, step)
    early_s, late_s = [], []
    for number in range(typed.rounds):
        for step in STEPS if number % 2 else STEPS[::-1]:
            seconds = seconds_to_first_batch(dataset, step)
            (early_s if step == STEPS[0] else late_s).append(seconds)
    ratios = [late / early for early, late in zip(early_s, late_s, strict=True)]
    found = {
        "samples": typed.samples,
        "early_s": round(statistics.median(early_s), 4),
        "late_s": round(statistics.median(late_s), 4),
        "late_over_early": round(statistics.median(ratios), 3),
        "quartiles": [round(value, 3) for value in statistics.quantiles(ratios, n=4)[::2]],
        "load_average": os.getloadavg()[0],
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
