"""The model as the loop sees it: called for a forward pass, one copy or many. Knows no step.

Every kind answers the same calls, so the loop has no branch for the mode of replication.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hpcddp.config.layout import ProcessLayout
from hpcddp.config.schema import RunConfig
from hpcddp.errors import ConfigError


class Replicas(Protocol):
    """What the loop asks of a model, whatever it is spread over."""

    module: nn.Module  # the one copy of this process, with torchvision's own names

    def __call__(self, images_nchw: torch.Tensor) -> torch.Tensor:
        """Logits (n, num_classes). A later backward leaves the mean gradient of all processes."""

    def skip_sync(self) -> AbstractContextManager[None]:
        """Forward and backward inside only add to this process's own gradients."""


class SingleReplica:
    """One process, one device, one copy."""

    def __init__(self, model: nn.Module) -> None:
        self.module = model

    def __call__(self, images_nchw: torch.Tensor) -> torch.Tensor:
        return self.module(images_nchw)

    def skip_sync(self) -> AbstractContextManager[None]:
        return nullcontext()  # nothing is ever reduced


class DdpReplicas:
    """One process per device; gradients are averaged during backward."""

    def __init__(self, model: nn.Module, *, bucket_cap_mib: int, static_graph: bool) -> None:
        device = next(model.parameters()).device
        self.module = model
        # Buffers (running means of batch norm) are those of the main process: DDP's default, and
        # the reason why saving one process's buffers is enough.
        self._ddp = DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            bucket_cap_mb=bucket_cap_mib,
            gradient_as_bucket_view=True,
            static_graph=static_graph,
        )

    def __call__(self, images_nchw: torch.Tensor) -> torch.Tensor:
        return self._ddp(images_nchw)

    def skip_sync(self) -> AbstractContextManager[None]:
        # Right with static_graph too, measured with torch 2.14: it only must not be the first
        # pass of all, and the warm-up takes that one.
        return self._ddp.no_sync()


def check_replicas(config: RunConfig, layout: ProcessLayout) -> None:
    """Raise ConfigError when this kind of replication cannot fill the job."""
    if config.train.replicas == "single" and layout.world_size > 1:
        raise ConfigError(
            f"train.replicas=single trains one process, and this job has {layout.world_size}. "
            "Use train.replicas=ddp, or ask for one node and one process."
        )


def build_replicas(model: nn.Module, config: RunConfig, layout: ProcessLayout) -> Replicas:
    """The replicas that `train.replicas` names; DDP alone in a job is the model itself."""
    if layout.world_size == 1:
        return SingleReplica(model)
    return _BUILDERS[config.train.replicas](model, config)


def _build_ddp(model: nn.Module, config: RunConfig) -> Replicas:
    return DdpReplicas(
        model,
        bucket_cap_mib=config.ddp.bucket_cap_mib,
        static_graph=config.ddp.static_graph,
    )


_BUILDERS: dict[str, Callable[[nn.Module, RunConfig], Replicas]] = {"ddp": _build_ddp}
