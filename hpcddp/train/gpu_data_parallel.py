"""torch.nn.DataParallel that tells a timer what goes on between its replicas. Knows no step."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from hpcddp.train.step_timer import Timer


class TimedDataParallel(nn.DataParallel):
    """Does what DataParallel does, with autocast to the caller's number format in all replicas.

    All times are those of the first device's stream. There `gather` includes the wait for replicas
    that are slower than the first, and `reduce` the wait for their gradients.
    """

    src_device_obj: torch.device

    def __init__(
        self,
        module: nn.Module,
        device_indices: Sequence[int],
        output_device: torch.device,
        timer: Timer,
    ) -> None:
        super().__init__(module, device_ids=[*device_indices], output_device=output_device)
        self._timer = timer

    def scatter(self, *arguments: Any) -> Any:  # noqa: ANN401
        with self._timer.part("scatter_s"):
            return super().scatter(*arguments)

    def replicate(self, *arguments: Any) -> list[nn.Module]:  # noqa: ANN401
        with self._timer.part("broadcast_s"):
            replicas = super().replicate(*arguments)
        self._watch_reduction(replicas[0])
        return replicas

    def parallel_apply(
        self,
        replicas: Sequence[Callable[..., Any]],
        inputs: Sequence[Any],
        kwargs: Any,  # noqa: ANN401
    ) -> list[Any]:
        # Torch hands its threads whether there is autocast, and not to what (seen in 2.14): a new
        # thread takes fp16, so that a run in bf16 would compute in fp16 without loss scaling.
        kind = self.src_device_obj.type
        enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

        def run(replica: Callable[..., Any], *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
            with torch.autocast(kind, dtype=dtype, enabled=enabled):
                return replica(*arguments, **options)

        return super().parallel_apply([partial(run, one) for one in replicas], inputs, kwargs)

    def gather(self, *arguments: Any) -> Any:  # noqa: ANN401
        with self._timer.part("gather_s"):
            return super().gather(*arguments)

    def _watch_reduction(self, replica: nn.Module) -> None:
        """All parameters of replicas come from one broadcast, whose backward adds up gradients."""
        broadcast = next((one.grad_fn for one in _tensors_of(replica) if one.requires_grad), None)
        if broadcast is None:  # nothing will be reduced
            return
        part = self._timer.part("reduce_s")
        broadcast.register_prehook(lambda gradients: part.__enter__())
        broadcast.register_hook(lambda *gradients: part.__exit__(None, None, None))


def _tensors_of(replica: nn.Module) -> list[torch.Tensor]:
    """A replica's parameters are not leaves, so torch keeps them as attributes of their names."""
    return [
        value
        for module in replica.modules()
        for value in vars(module).values()
        if isinstance(value, torch.Tensor)
    ]
