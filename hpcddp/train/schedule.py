"""The learning rate as a pure function of the step. Knows no optimizer and no torch."""

import math
from dataclasses import dataclass

from hpcddp.config.schema import OptimConfig


@dataclass(frozen=True, slots=True)
class LrSchedule:
    """A linear ramp over `lr_warmup_steps` to `peak`, then `kind` (cosine, step or constant)."""

    kind: str
    peak: float
    total_steps: int
    lr_warmup_steps: int = 0
    steps_per_drop: float = math.inf  # only for kind=step
    gamma: float = 1.0  # only for kind=step


def lr_at(step: int, schedule: LrSchedule) -> float:
    """The learning rate of the update that leads from `step` to `step + 1`.

    The cosine ends at 0 after the last step (Loshchilov and Hutter 2017, without restarts); drops
    are counted from the start of training, so their epochs do not move with the ramp.
    """
    if step < schedule.lr_warmup_steps:
        return schedule.peak * (step + 1) / schedule.lr_warmup_steps
    if schedule.kind == "cosine":
        length = max(1, schedule.total_steps - schedule.lr_warmup_steps)
        done = min(1.0, (step - schedule.lr_warmup_steps) / length)
        return schedule.peak * 0.5 * (1.0 + math.cos(math.pi * done))
    if schedule.kind == "step":
        return schedule.peak * schedule.gamma ** math.floor(step / schedule.steps_per_drop)
    return schedule.peak


def build_schedule(
    config: OptimConfig, *, global_batch: int, num_samples: int, total_steps: int
) -> LrSchedule:
    """The schedule with its epochs turned into steps and the linear rule applied if asked for.

    Linear rule: Goyal et al. 2017, section 2.1.
    """
    scale = global_batch / config.base_batch if config.scale_lr else 1.0
    steps_per_epoch = num_samples / global_batch
    return LrSchedule(
        kind=config.schedule,
        peak=config.lr * scale,
        total_steps=total_steps,
        lr_warmup_steps=round(config.lr_warmup_epochs * steps_per_epoch),
        steps_per_drop=config.lr_step_epochs * steps_per_epoch,
        gamma=config.lr_gamma,
    )


def describe(schedule: LrSchedule, config: OptimConfig, global_batch: int) -> str:
    """One sentence for the start of the log."""
    rule = (
        f" (optim.lr={config.lr:g} x global batch {global_batch} / {config.base_batch})"
        if config.scale_lr
        else " (not scaled with the batch)"
    )
    ramp, total = schedule.lr_warmup_steps, schedule.total_steps
    part = (
        f"{ramp} steps, of which this run does {total}"
        if ramp > total
        else f"{ramp} of {total} steps"
    )
    return f"learning rate {schedule.peak:g}{rule}, {schedule.kind}, warm-up over {part}"
