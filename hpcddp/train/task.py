"""What is trained, for how long, on which data: all that is fixed before the first step.

Knows no process group and no state.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hpcddp.config.batch import BatchPlan, MicroBatch, plan_batches
from hpcddp.config.identity import chosen_settings
from hpcddp.config.layout import ProcessLayout
from hpcddp.config.schema import RunConfig
from hpcddp.data.datasets import Dataset, build_dataset
from hpcddp.data.sampler import num_steps, step_epoch
from hpcddp.train.schedule import LrSchedule, build_schedule


@dataclass(frozen=True, slots=True)
class Task:
    """The run as arithmetic: batches, steps, schedule, and the data they are counted in."""

    config: RunConfig
    layout: ProcessLayout
    plan: BatchPlan
    train_set: Dataset
    test_set: Dataset
    total_steps: int
    schedule: LrSchedule

    def epoch_at(self, step: int) -> float:
        """Passes over the training set before `step`; for reporting."""
        return step_epoch(step, self.plan.global_batch, len(self.train_set))

    def evaluates_at(self, step: int) -> bool:
        """True if the model after `step` updates is evaluated: at the end, and every so often.

        Also when a start goes on from there: who stopped at such a step had no time for it.
        """
        every = self.config.train.eval_every_epochs
        if step >= self.total_steps:
            return True
        if every is None or step == 0:
            return False
        passed = [math.floor(self.epoch_at(s) / every + 1e-9) for s in (step - 1, step)]
        return passed[0] != passed[1]

    def logs_at(self, step: int) -> bool:
        return step % self.config.log.every_steps == 0 or step == self.total_steps


def build_task(config: RunConfig, layout: ProcessLayout) -> Task:
    """Open the data and work out the rest. Raises HpcddpError for what cannot be."""
    train = config.train
    plan = plan_batches(
        global_batch=train.global_batch,
        micro_batch=train.micro_batch,
        world_size=layout.world_size,
    )
    train_set = build_dataset(config.data, "train")
    total_steps = _total_steps(config, len(train_set))
    return Task(
        config=config,
        layout=layout,
        plan=plan,
        train_set=train_set,
        test_set=build_dataset(config.data, "test"),
        total_steps=total_steps,
        schedule=build_schedule(
            config.optim,
            global_batch=train.global_batch,
            num_samples=len(train_set),
            total_steps=total_steps,
        ),
    )


def with_micro_batch(task: Task, first: MicroBatch | None, devices: int) -> Task:
    """The task with the micro-batch that the run began with, where none is configured and it fits.

    As many images on each of the `devices` of a process as then: memory and batch-norm statistics,
    so the curve of the loss, follow them, not the number of processes.
    """
    micro_batch = first.on(devices) if first else None
    if task.config.train.micro_batch or not micro_batch:
        return task
    if task.plan.global_batch % (micro_batch * task.plan.world_size):
        return task
    plan = plan_batches(
        global_batch=task.plan.global_batch,
        micro_batch=micro_batch,
        world_size=task.plan.world_size,
    )
    return replace(task, plan=plan)


def _total_steps(config: RunConfig, num_samples: int) -> int:
    """Training ends at max_steps or max_epochs, whichever comes first."""
    train = config.train
    limits = [] if train.max_steps is None else [train.max_steps]
    if train.max_epochs is not None:
        limits.append(num_steps(train.max_epochs, train.global_batch, num_samples))
    return min(limits)


def settings_of(task: Task) -> Mapping[str, Any]:
    """What the bits of the run depend on and may be changed; kept in its manifests too.

    The micro-batch is the one in use, whoever has chosen it. The order of the samples is another
    one where there are more or fewer of them.
    """
    counts = {"micro_batch": task.plan.micro_batch, "training images": len(task.train_set)}
    return chosen_settings(task.config) | counts
