"""torch.nn.DataParallel's algorithm on CPU threads, for machines without several GPUs.

Scatter the batch, copy parameters and buffers to every replica, run each in a thread, gather the
outputs on the first, and in backward add the replicas' gradients onto its parameters. Knows no
step and no loss.

Source of the algorithm: torch.nn.parallel.DataParallel and its replicate, parallel_apply, gather.
Shapes: n images, c = 3 channels, h = w = image_size, k classes.
"""

import copy
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from hpcddp.train.step_timer import Timer

_T = TypeVar("_T")


class ThreadedDataParallel(nn.Module):
    """`module` and `num_replicas - 1` copies of it, one thread each.

    As with DataParallel, only replica 0 keeps what forward writes into buffers (running statistics
    of batch norm), and a batch of fewer chunks than replicas leaves some of them idle. Unlike
    there, a forward must have had its backward before the next, and no second derivative exists.
    """

    def __init__(self, module: nn.Module, num_replicas: int, timer: Timer) -> None:
        super().__init__()
        self.module = module
        self._timer = timer
        # Not registered: their parameters are nobody's, and are overwritten before each pass.
        self._copies = tuple(copy.deepcopy(module) for _ in range(num_replicas - 1))
        # All threads draw from one generator, so replicas that draw (dropout, stochastic depth)
        # take turns. Whether they do, the first training pass shows; until then they take turns.
        self._draws: bool | None = None

    def forward(self, images_nchw: torch.Tensor) -> torch.Tensor:
        """Logits (n, k) in the order of the images. Raises what a replica raised, with its index.

        Its backward leaves the gradient of the whole batch, as if `module` had seen it alone.
        """
        with self._timer.part("scatter_s"):
            chunks = scatter(images_nchw, 1 + len(self._copies))
        replicas = [self.module, *self._copies[: len(chunks) - 1]]
        if len(chunks) == 1 or not torch.is_grad_enabled():
            return self._pass(replicas, chunks)[1]
        return _ReplicatedPass.apply(self, replicas, chunks, *self.module.parameters())

    def _pass(
        self, replicas: Sequence[nn.Module], chunks: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """What each replica made of its chunk, and all of it on the first."""
        with self._timer.part("broadcast_s"):
            _broadcast(self.module, replicas[1:])
        outputs = self._apply(replicas, chunks)
        with self._timer.part("gather_s"):
            return outputs, torch.cat(outputs)

    def _apply(
        self, replicas: Sequence[nn.Module], chunks: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The outputs of all replicas; in their threads holds what the caller's thread decided."""
        grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        autocast, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

        def run(index: int) -> torch.Tensor:
            with (
                torch.inference_mode(inference),
                torch.set_grad_enabled(grad),
                torch.autocast("cpu", dtype=dtype, enabled=autocast),
            ):
                return replicas[index](chunks[index])

        if self._draws is not None:
            return _in_threads(run, len(chunks), self._timer, one_by_one=self._draws)
        before = torch.get_rng_state()
        outputs = _in_threads(run, len(chunks), self._timer, one_by_one=True)
        if self.module.training and grad:
            self._draws = not torch.equal(before, torch.get_rng_state())
        return outputs


def scatter(images_nchw: torch.Tensor, num_replicas: int) -> tuple[torch.Tensor, ...]:
    """The batch in at most `num_replicas` chunks of equal size, the last one smaller.

    Nine images on eight replicas are 2, 2, 2, 2, 1: three replicas stay idle, as torch documents.
    """
    return images_nchw.chunk(num_replicas)


class _ReplicatedPass(torch.autograd.Function):
    """Forward and backward of all replicas; the graph outside sees one operation."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        owner: ThreadedDataParallel,
        replicas: Sequence[nn.Module],
        chunks: Sequence[torch.Tensor],
        *parameters: torch.Tensor,
    ) -> torch.Tensor:
        with torch.enable_grad():
            outputs, logits_nk = owner._pass(replicas, chunks)
        ctx.outputs, ctx.replicas, ctx.timer = outputs, replicas, owner._timer
        return logits_nk.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_nk: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        outputs, replicas = ctx.outputs, ctx.replicas
        parts_nk = gradient_nk.split([len(output) for output in outputs])

        def run(index: int) -> tuple[torch.Tensor | None, ...]:
            wanted = [p for p in replicas[index].parameters() if p.requires_grad]
            return torch.autograd.grad(
                outputs[index], wanted, parts_nk[index].to(outputs[index].dtype), allow_unused=True
            )

        per_replica = _in_threads(run, len(outputs), ctx.timer)
        with ctx.timer.part("reduce_s"):
            reduced = iter([_add_up(gradients) for gradients in zip(*per_replica, strict=True)])
        needs = [p.requires_grad for p in replicas[0].parameters()]
        return (None, None, None, *(next(reduced) if needed else None for needed in needs))


def _broadcast(module: nn.Module, copies: Sequence[nn.Module]) -> None:
    """Overwrite parameters and buffers of the copies by those of the module; modes go along."""
    with torch.no_grad():
        tensors = [*module.parameters(), *module.buffers()]
        for one in copies:
            for ours, theirs in zip(one.modules(), module.modules(), strict=True):
                ours.training = theirs.training
            for target, source in zip([*one.parameters(), *one.buffers()], tensors, strict=True):
                target.copy_(source)


def _add_up(gradients: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """The sum in the order of the replicas, so that it has the same bits each time."""
    present = [gradient for gradient in gradients if gradient is not None]
    return functools.reduce(torch.add, present) if present else None


def _in_threads(
    work: Callable[[int], _T], count: int, timer: Timer, *, one_by_one: bool = False
) -> list[_T]:
    """`work(index)` for every index, each in its own thread; the first error is raised here."""
    results: dict[int, _T] = {}
    errors: dict[int, BaseException] = {}

    def run(index: int) -> None:
        try:
            results[index] = work(index)
        except BaseException as error:  # it belongs to the caller's thread
            errors[index] = error
        timer.replica_cpu(index, time.thread_time())

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
        if one_by_one:
            thread.join()
    for thread in threads:
        thread.join()
    if errors:
        index, error = min(errors.items())
        raise RuntimeError(f"replica {index} of {count}: {error}") from error
    return [results[index] for index in range(count)]
