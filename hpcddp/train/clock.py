"""Moments on the device that does the work, and the time between two. Knows no phase."""

import time
from collections.abc import Iterable
from typing import Any, Protocol

import torch

# Reductions of one process that run at the same time: NCCL has one stream for them, and gloo as
# many threads as torch gives it by default.
_NCCL_LANES, _GLOO_LANES = 1, 2


class Clock(Protocol):
    """Moments are opaque: a number on the CPU, an event on a GPU."""

    lanes: int  # reductions that the backend of this device runs at the same time

    def now(self) -> Any:  # noqa: ANN401
        """The moment at which the device has done what it was told so far. Does not wait."""

    def wait_for(self, moment: Any) -> None:  # noqa: ANN401
        """Return when the device has come there, and to all moments before in its stream."""

    def has_come(self, moment: Any) -> bool:  # noqa: ANN401
        """Whether the device has come there. Does not wait."""

    def seconds(self, begin: Any, end: Any) -> float:  # noqa: ANN401
        """From one moment to another; both must have come."""

    def forget(self, moments: Iterable[Any]) -> None:
        """Nobody will ask for these again: what they are made of may be used anew."""


class HostClock:
    """For the CPU, where a call that returns has done its work."""

    lanes = _GLOO_LANES
    now = staticmethod(time.perf_counter)

    def wait_for(self, moment: float) -> None:
        pass

    def has_come(self, moment: float) -> bool:
        return True

    def seconds(self, begin: float, end: float) -> float:
        return end - begin

    def forget(self, moments: Iterable[float]) -> None:
        pass


class CudaClock:
    """Events in the stream that is current where `now` is called."""

    lanes = _NCCL_LANES

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spare: list[torch.cuda.Event] = []

    def now(self) -> torch.cuda.Event:
        try:  # not asked before: backward has threads of its own
            event = self._spare.pop()
        except IndexError:
            event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def wait_for(self, moment: torch.cuda.Event) -> None:
        moment.synchronize()

    def has_come(self, moment: torch.cuda.Event) -> bool:
        return moment.query()

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return begin.elapsed_time(end) / 1000

    def forget(self, moments: Iterable[torch.cuda.Event]) -> None:
        self._spare.extend(moments)


def clock_of(device: torch.device) -> Clock:
    return CudaClock(device) if device.type == "cuda" else HostClock()
