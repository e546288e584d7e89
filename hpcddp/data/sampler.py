"""Which samples a step trains on: pure functions of the seed. Knows no process and no loader.

Training is one endless stream of samples: epoch after epoch, each in its own shuffled order. Step
k takes positions [k x global_batch, (k + 1) x global_batch) of it, crossing an epoch border inside
a batch if need be. Nothing depends on how a run got to step k.

Shapes: n samples, 2 = (epoch, index in the data set).
"""

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hpcddp.config.batch import BatchPlan

Int64Array = npt.NDArray[np.int64]

_WORD = 0xFFFF_FFFF_FFFF_FFFF


@lru_cache(maxsize=2)  # a batch may lie on an epoch border
def sample_order(seed: int, epoch: int, num_samples: int) -> Int64Array:
    """The permutation of range(num_samples) that `epoch` goes through; read-only.

    Indices sorted by random 64-bit keys whose low bits are the index itself: no two keys are
    equal, so the order depends neither on the sorting algorithm nor on NumPy's version (the raw
    words of a NumPy bit generator never change, what is derived from them may).
    """
    key, counter = (
        np.array(words, dtype=np.uint64) for words in ([seed & _WORD, 0], [0, 0, epoch, 0])
    )
    random = np.random.Philox(key=key, counter=counter)
    index_mask = np.uint64((1 << max(num_samples - 1, 1).bit_length()) - 1)
    indices_n = np.arange(num_samples, dtype=np.uint64)
    keys_n = np.sort((random.random_raw(num_samples) & ~index_mask) | indices_n)
    order_n = (keys_n & index_mask).astype(np.int64)
    order_n.setflags(write=False)
    return order_n


def stream_samples(seed: int, first: int, count: int, num_samples: int) -> Int64Array:
    """Positions [first, first + count) of the stream as rows (epoch, index), int64.

    Costs the same at any position: nothing before it is looked at.
    """
    epochs_n, places_n = np.divmod(np.arange(first, first + count, dtype=np.int64), num_samples)
    samples_n2 = np.stack([epochs_n, places_n], axis=1)
    for epoch in np.unique(epochs_n):
        here_n = epochs_n == epoch
        samples_n2[here_n, 1] = sample_order(seed, int(epoch), num_samples)[places_n[here_n]]
    return samples_n2


def step_samples(
    seed: int, step: int, global_batch: int, num_samples: int
) -> tuple[Int64Array, Int64Array]:
    """(epochs, indices) of the `global_batch` samples of `step`, whatever the world size."""
    samples_n2 = stream_samples(seed, step * global_batch, global_batch, num_samples)
    return samples_n2[:, 0], samples_n2[:, 1]


def rank_samples(
    seed: int, step: int, plan: BatchPlan, *, global_rank: int, micro_step: int, num_samples: int
) -> Int64Array:
    """The micro-batch of one process in one pass, as rows (epoch, index).

    A step is cut into micro-batches in stream order and dealt out pass by pass. So at a fixed
    `micro_batch` the micro-batches, and with them what batch norm sees, are the same whether a
    step is 4 processes x 1 pass or 1 process x 4 passes.
    """
    turn = micro_step * plan.world_size + global_rank
    first = step * plan.global_batch + turn * plan.micro_batch
    return stream_samples(seed, first, plan.micro_batch, num_samples)


def step_epoch(step: int, global_batch: int, num_samples: int) -> float:
    """How many epochs lie before `step`; 1.5 is the middle of the second epoch."""
    return step * global_batch / num_samples


def num_steps(max_epochs: float, global_batch: int, num_samples: int) -> int:
    """The fewest steps that go through the data `max_epochs` times."""
    exact = max_epochs * num_samples / global_batch
    return max(1, math.ceil(exact - 1e-9))  # 0.1 x 30 / 3 is a hair above 1
