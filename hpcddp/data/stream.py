"""Batches for one process, with or without loader workers. Knows no device and no gradient.

The order of the batches and every byte in them are the same for any number of workers.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcddp.config.batch import BatchPlan
from hpcddp.data.augment import Augment, build_augment
from hpcddp.data.datasets import Batch, Dataset
from hpcddp.data.sampler import rank_samples
from hpcddp.data.workers import worker_batches


def train_batches(
    dataset: Dataset,
    plan: BatchPlan,
    *,
    global_rank: int,
    seed: int,
    start_step: int = 0,
    augment: str = "none",
    workers: int = 0,
    pin_memory: bool = False,
) -> Iterator[Batch]:
    """The micro-batches of one process from `start_step` on, without end.

    `plan.accumulation_steps` items make one step.
    """
    order = _TrainOrder(plan, global_rank, seed, start_step, len(dataset))
    fetch = _Fetch(dataset, build_augment(augment, seed))
    return iter(_batches(fetch, order, workers, pin_memory))


def eval_batches(
    dataset: Dataset,
    *,
    global_rank: int,
    world_size: int,
    micro_batch: int,
    workers: int = 0,
    pin_memory: bool = False,
) -> Iterable[Batch]:
    """This process's share of the data set: over all processes, each sample exactly once.

    Processes may get different numbers of batches, the last of them smaller, so no collective may
    be called per batch. The result can be iterated again and then keeps its workers.
    """
    order = _EvalOrder(len(dataset), global_rank, world_size, micro_batch)
    return _batches(_Fetch(dataset, Augment()), order, workers, pin_memory)


@dataclass(frozen=True, slots=True)
class _TrainOrder:
    plan: BatchPlan
    global_rank: int
    seed: int
    start_step: int
    num_samples: int

    def __iter__(self) -> Iterator[npt.NDArray[np.int64]]:
        for step in itertools.count(self.start_step):
            for micro_step in range(self.plan.accumulation_steps):
                yield rank_samples(
                    self.seed,
                    step,
                    self.plan,
                    global_rank=self.global_rank,
                    micro_step=micro_step,
                    num_samples=self.num_samples,
                )


@dataclass(frozen=True, slots=True)
class _EvalOrder:
    num_samples: int
    global_rank: int
    world_size: int
    micro_batch: int

    def __iter__(self) -> Iterator[npt.NDArray[np.int64]]:
        first = self.num_samples * self.global_rank // self.world_size
        end = self.num_samples * (self.global_rank + 1) // self.world_size
        for start in range(first, end, self.micro_batch):
            indices_n = np.arange(start, min(start + self.micro_batch, end))
            yield np.stack([np.zeros_like(indices_n), indices_n], axis=1)


@dataclass(frozen=True, slots=True)
class _Fetch:
    """What DataLoader calls a data set: one item is one whole micro-batch."""

    dataset: Dataset
    augment: Augment

    def __getitem__(self, samples_n2: npt.NDArray[np.int64]) -> Batch:
        return self.dataset.fetch(samples_n2, self.augment)


def _batches(
    fetch: _Fetch,
    order: Iterable[npt.NDArray[np.int64]],
    workers: int,
    pin_memory: bool,
) -> Iterable[Batch]:
    if workers == 0:
        return _OwnBatches(fetch, order, pin_memory)
    return worker_batches(fetch, order, workers, pin_memory)


@dataclass(frozen=True, slots=True)
class _OwnBatches:
    """Fetched by this process when they are asked for."""

    fetch: _Fetch
    order: Iterable[npt.NDArray[np.int64]]
    pin_memory: bool

    def __iter__(self) -> Iterator[Batch]:
        for samples_n2 in self.order:
            images_nchw, labels_n = self.fetch[samples_n2]
            if self.pin_memory:
                images_nchw, labels_n = images_nchw.pin_memory(), labels_n.pin_memory()
            yield images_nchw, labels_n
