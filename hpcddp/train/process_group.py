"""What the processes of a job do together: start, add up, decide, part. Knows no model.

`open_ranks` gives one of two objects with the same calls, so that the loop never asks whether it
is alone.
"""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from hpcddp.config.layout import ProcessLayout
from hpcddp.errors import HpcddpError
from hpcddp.stop_flag import StopFlag
from hpcddp.train.agent_store import meet_in_store
from hpcddp.train.background import Background
from hpcddp.train.rendezvous import meet, not_joined

T = TypeVar("T")
_PAUSE_S = 0.05
_TOLD_S = 5.0  # for processes of which nobody has left to be connected


class Pending(Protocol):
    """A reduction that is under way."""

    def wait(self) -> Any: ...  # noqa: ANN401


class Ranks(Protocol):
    """All processes of the job. Every method but `close` is a collective."""

    def sum_across(self, tensor: torch.Tensor) -> None:
        """Replace `tensor` (on the training device) by the sum over all processes."""

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        """Overwrite `tensors` (on the training device) with those of the main process."""

    def start_max(self, tensor: torch.Tensor) -> Pending:
        """Begin to replace `tensor` (on the CPU) by the maximum over all processes.

        It runs beside whatever the device and the other collectives do.
        """

    def decide(self, on_main: Callable[[], T]) -> T:
        """What `on_main()` gives, or its HpcddpError, in the main process; on every rank."""

    def wait_for_all(self) -> None:
        """Return when every process has come here."""

    def close(self) -> None:
        """Part in good order. Not after an error: it could wait for a process that is gone."""


def open_ranks(
    layout: ProcessLayout,
    device: torch.device,
    timeout_s: float,
    once_met: Callable[[], None] = lambda: None,
    stop_flag: StopFlag | None = None,
    collective_timeout_s: float | None = None,
) -> Ranks:
    """Meet the other processes of the job. Collective.

    When all are there a stop is agreed on, no longer followed by each alone, and `once_met` is
    called. Raises HpcddpError `rendezvous` when they do not come within `timeout_s`, or where this
    process is told to stop and another one has left before it knew that all were there. A
    later collective ends by itself after `collective_timeout_s`, or when torch likes.
    """
    stop_flag, store = stop_flag or StopFlag(), None
    if layout.world_size > 1:
        store = (meet_in_store if layout.has_store else meet)(layout, timeout_s)
    stop_flag.leave_together()
    once_met()
    if store is None:
        return LoneProcess()
    group = RankGroup(layout)
    # torch's own deadline for this would be that of every later collective too.
    joining = Background("join-group")
    joining.start(partial(group.join, device, store, collective_timeout_s))
    if not _is_done(joining, timeout_s, stop_flag):
        raise not_joined(layout, timeout_s)
    return group


def _is_done(joining: Background, timeout_s: float, stop_flag: StopFlag) -> bool:
    """Wait for it; whoever is told to stop cannot wait for long."""
    deadline = time.monotonic() + timeout_s
    while not joining.wait(_PAUSE_S):
        if stop_flag.is_set:
            return joining.wait(_TOLD_S)
        if time.monotonic() > deadline:
            return False
    return True


def is_parting(error: BaseException) -> bool:
    """True for what a process meets with when another one has left; gloo has no class for it."""
    if isinstance(error, HpcddpError):
        return error.code == "rendezvous"
    is_gloos = type(error) is RuntimeError and "gloo" in str(error)
    return is_gloos or isinstance(error, (dist.DistError, ConnectionError))


def backend_of(device: torch.device) -> str:
    """What adds up tensors of this device over processes."""
    return "nccl" if device.type == "cuda" else "gloo"


def mean_across_ranks(ranks: Ranks, value: torch.Tensor, world_size: int) -> float:
    """The mean of one number over all processes; waits for the device. Collective."""
    total = value.detach().clone()
    ranks.sum_across(total)
    return float(total) / world_size


class LoneProcess:
    """A job of one process: everything is agreed at once."""

    def sum_across(self, tensor: torch.Tensor) -> None:
        pass

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        pass

    def start_max(self, tensor: torch.Tensor) -> Pending:
        return _Done()

    def decide(self, on_main: Callable[[], T]) -> T:
        return on_main()

    def wait_for_all(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Done:
    def wait(self) -> None:
        pass


class RankGroup:
    """Processes joined by torch.distributed; small talk goes through a gloo group of its own."""

    def __init__(self, layout: ProcessLayout) -> None:
        self._layout = layout
        self._control: dist.ProcessGroup | None = None

    def join(self, device: torch.device, store: dist.Store, timeout_s: float | None) -> None:
        """Connect every process with every other one; the time-out is of all later collectives.

        Collective.
        """
        timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
        is_cuda = device.type == "cuda"
        if is_cuda:
            torch.cuda.set_device(device)  # which holds for one thread only
        dist.init_process_group(
            backend_of(device),
            rank=self._layout.global_rank,
            world_size=self._layout.world_size,
            device_id=device if is_cuda else None,
            store=store,
            timeout=timeout,
        )
        self._control = dist.new_group(backend="gloo", timeout=timeout)

    def sum_across(self, tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor)

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            dist.broadcast(tensor, src=0)

    def start_max(self, tensor: torch.Tensor) -> Pending:
        return dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._control, async_op=True)

    def decide(self, on_main: Callable[[], T]) -> T:
        outcome: list[Any] = [_outcome(on_main) if self._layout.is_main else None]
        dist.broadcast_object_list(outcome, src=0, group=self._control)
        value, error = outcome[0]
        if error is not None:
            raise error
        return value

    def wait_for_all(self) -> None:
        dist.barrier(group=self._control)

    def close(self) -> None:
        self.wait_for_all()
        dist.destroy_process_group()


def _outcome(on_main: Callable[[], T]) -> tuple[T | None, HpcddpError | None]:
    try:
        return on_main(), None
    except HpcddpError as error:
        return None, error
