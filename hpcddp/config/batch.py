"""Batch arithmetic, in one place: global_batch = micro_batch x accumulation_steps x world_size."""

from dataclasses import dataclass

from hpcddp.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How the images of one step are divided; all counts in images, except the last two."""

    global_batch: int
    micro_batch: int
    accumulation_steps: int
    world_size: int


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The images of one process in one pass, and how many devices share them."""

    images: int
    devices: int

    def on(self, devices: int) -> int | None:
        """Images of a process with as many on each of its `devices`; None if that leaves a rest."""
        images, left = divmod(self.images * devices, self.devices)
        return None if left else images


def plan_batches(*, global_batch: int, micro_batch: int | None, world_size: int) -> BatchPlan:
    """Divide `global_batch`; `micro_batch=None` means one pass per step.

    Raises ConfigError when it does not divide; the message names the nearest values that do.
    """
    if micro_batch is None:
        _check_divides(global_batch, world_size, f"world_size={world_size}")
        return BatchPlan(global_batch, global_batch // world_size, 1, world_size)
    per_pass = micro_batch * world_size
    _check_divides(
        global_batch,
        per_pass,
        f"micro_batch={micro_batch} x world_size={world_size} = {per_pass}",
    )
    return BatchPlan(global_batch, micro_batch, global_batch // per_pass, world_size)


def images_per_device(images: int, devices: int) -> int:
    """The largest part of `images` that a device gets of DataParallel, which cuts equal chunks."""
    return -(-images // devices)


def busy_devices(images: int, devices: int) -> int:
    """How many devices get a part of `images`.

    Nine images on eight devices are 2, 2, 2, 2, 1: three stay idle.
    """
    return -(-images // images_per_device(images, devices))


def check_processes(replicas: str, world_size: int) -> None:
    """Raise ConfigError where `train.replicas` cannot fill that many processes."""
    if replicas == "ddp" or world_size == 1:
        return
    what = {"single": "one process", "dp": "one process that drives all devices of one node"}
    raise ConfigError(
        f"train.replicas={replicas} trains in {what[replicas]}, and {world_size} were asked for. "
        "Use train.replicas=ddp, or one node with one process."
    )


def _check_divides(global_batch: int, factor: int, said: str) -> None:
    if global_batch % factor == 0:
        return
    below = global_batch // factor * factor
    values = f"{below} or {below + factor}" if below else f"{factor}"
    raise ConfigError(
        f"train.global_batch={global_batch} is not a multiple of {said}. "
        f"Set train.global_batch to {values}."
    )
