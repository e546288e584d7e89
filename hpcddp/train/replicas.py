"""The model as the loop sees it: called for a forward pass, one copy or many. Knows no step.

Every kind answers the same calls, so the loop has no branch for the mode of replication.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hpcddp.config.batch import BatchPlan
from hpcddp.config.layout import ProcessLayout
from hpcddp.config.schema import TORCHS_BUCKET_CAP_MIB, RunConfig
from hpcddp.errors import ConfigError
from hpcddp.phases import DP_ON_CPU, DP_ON_GPUS
from hpcddp.train.data_parallel import ThreadedDataParallel
from hpcddp.train.gpu_data_parallel import TimedDataParallel
from hpcddp.train.step_timer import Timer
from hpcddp.train.traffic import Traffic, ddp_traffic, dp_traffic

_CPU_REPLICAS = 2


class Replicas(Protocol):
    """What the loop asks of a model, whatever it is spread over."""

    module: nn.Module  # the one copy of this process, with torchvision's own names
    num_devices: int  # of this process

    def __call__(self, images_nchw: torch.Tensor) -> torch.Tensor:
        """Logits (n, num_classes). A later backward leaves the mean gradient of all processes."""

    def skip_sync(self) -> AbstractContextManager[None]:
        """Forward and backward inside only add to this process's own gradients."""

    def traffic(self, plan: BatchPlan) -> Traffic:
        """What one step moves between copies."""


class SingleReplica:
    """One process, one device, one copy."""

    num_devices = 1

    def __init__(self, model: nn.Module) -> None:
        self.module = model

    def __call__(self, images_nchw: torch.Tensor) -> torch.Tensor:
        return self.module(images_nchw)

    def skip_sync(self) -> AbstractContextManager[None]:
        return nullcontext()  # nothing is ever reduced

    def traffic(self, plan: BatchPlan) -> Traffic:
        return Traffic()


class _TimedDdp(DistributedDataParallel):
    """DDP that tells a timer when it sends out buffers, which it does inside its forward.

    `_sync_buffers` is no part of torch's public interface (there since torch 1.11, seen in 2.14).
    Without it nothing breaks: buffers and the wait for the slowest process would be counted as
    forward again, and `test_who_waits_for_a_late_process_does_not_blame_the_model` would fail.
    """

    def __init__(self, model: nn.Module, timer: Timer, **options: Any) -> None:  # noqa: ANN401
        super().__init__(model, **options)
        self._timer = timer

    def _sync_buffers(self) -> None:
        with self._timer.part("broadcast_s"):
            super()._sync_buffers()


class DdpReplicas:
    """One process per device; gradients are averaged during backward."""

    num_devices = 1

    def __init__(
        self, model: nn.Module, timer: Timer, *, bucket_cap_mib: int, static_graph: bool
    ) -> None:
        device = next(model.parameters()).device
        self.module = model
        # Buffers (running means of batch norm) are those of the main process: DDP's default, and
        # the reason why saving one process's buffers is enough.
        self._ddp = _TimedDdp(
            model,
            timer,
            device_ids=[device] if device.type == "cuda" else None,
            # Only without a number is torch's first bucket a small one, of 1 MiB, which is on its
            # way while nearly all of backward is still to come. With one it is as large as all.
            bucket_cap_mb=None if bucket_cap_mib == TORCHS_BUCKET_CAP_MIB else bucket_cap_mib,
            gradient_as_bucket_view=True,
            static_graph=static_graph,
        )
        timer.note_buckets(self._ddp)

    def __call__(self, images_nchw: torch.Tensor) -> torch.Tensor:
        return self._ddp(images_nchw)

    def skip_sync(self) -> AbstractContextManager[None]:
        # Right with static_graph too, measured with torch 2.14: it only must not be the first
        # pass of all, and the warm-up takes that one.
        return self._ddp.no_sync()

    def traffic(self, plan: BatchPlan) -> Traffic:
        return ddp_traffic(self.module)


class DataParallelReplicas:
    """One process for all devices of a node: torch.nn.DataParallel, or the same on CPU threads.

    Every backward leaves the whole gradient on the first device, so there is nothing to skip.
    """

    def __init__(self, model: nn.Module, num_devices: int, timer: Timer) -> None:
        device = next(model.parameters()).device
        self.module = model
        self._parallel: nn.Module
        if device.type == "cuda":
            indices = [*range(num_devices)]
            self._parallel = TimedDataParallel(model, indices, device, timer)
        else:
            self._parallel = ThreadedDataParallel(model, num_devices, timer)
        self.num_devices = num_devices

    def __call__(self, images_nchw: torch.Tensor) -> torch.Tensor:
        return self._parallel(images_nchw)

    def skip_sync(self) -> AbstractContextManager[None]:
        return nullcontext()

    def traffic(self, plan: BatchPlan) -> Traffic:
        return dp_traffic(self.module, plan, self.num_devices)


def devices_per_process(config: RunConfig, device: torch.device) -> int:
    """How many devices one process drives: one, but for train.replicas=dp.

    Raises ConfigError when more GPUs are asked for than this process sees.
    """
    wanted = config.train.dp_devices
    if config.train.replicas != "dp":
        return 1
    if device.type != "cuda":
        return wanted or _CPU_REPLICAS
    there = torch.cuda.device_count()
    if wanted is not None and wanted > there:
        raise ConfigError(
            f"train.dp_devices={wanted}, and this process sees {there} GPUs. Ask for one task with "
            f"all GPUs of the node (--gpus-per-node {wanted}), or fewer devices."
        )
    return wanted or there


def label_of(config: RunConfig, device: torch.device) -> str | None:
    """What replicas=dp is on this device, to stand wherever a number of it does; else None."""
    if config.train.replicas != "dp":
        return None
    return DP_ON_GPUS if device.type == "cuda" else DP_ON_CPU


def build_replicas(
    model: nn.Module, config: RunConfig, layout: ProcessLayout, timer: Timer
) -> Replicas:
    """The replicas that `train.replicas` names; DDP alone in a job is the model itself."""
    if layout.world_size == 1 and config.train.replicas != "dp":
        return SingleReplica(model)
    return _BUILDERS[config.train.replicas](model, config, timer)


def _build_ddp(model: nn.Module, config: RunConfig, timer: Timer) -> Replicas:
    return DdpReplicas(
        model,
        timer,
        bucket_cap_mib=config.ddp.bucket_cap_mib,
        static_graph=config.ddp.static_graph,
    )


def _build_dp(model: nn.Module, config: RunConfig, timer: Timer) -> Replicas:
    device = next(model.parameters()).device
    return DataParallelReplicas(model, devices_per_process(config, device), timer)


_BUILDERS: dict[str, Callable[[nn.Module, RunConfig, Timer], Replicas]] = {
    "ddp": _build_ddp,
    "dp": _build_dp,
}
