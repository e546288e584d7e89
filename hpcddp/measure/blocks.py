"""What measuring processes say about a few steps in a row. Pure values; knows no torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcddp.measure.scaling import median

# Of a visit on GPUs: NVML's use of them is a mean of up to a second, and for as long as the second
# their clocks rise and the allocator asks for memory anew.
_VISIT_S, _RISING_S = 2.0, 0.3


@dataclass(frozen=True, slots=True)
class Pace:
    """How many steps of a visit count, and how many before them do not."""

    steps: int
    unsettled: int  # after a pause
    # Without one: the first step without exchange still sends out buffers, and the first of the
    # next visit does not; neither counts.
    discard: int = 1


def pace_on_gpus(pace: Pace, step_s: float) -> Pace:
    """At least so many steps, and as many more as fill the seconds that a GPU needs."""
    rising = math.ceil(_RISING_S / step_s)
    return Pace(
        max(pace.steps, math.ceil(_VISIT_S / step_s)),
        max(pace.unsettled, rising),
        max(pace.discard, rising),
    )


@dataclass(frozen=True, slots=True)
class Block:
    """A few steps of one process, after `discarded` that were taken first and left out."""

    step_s: Sequence[float]
    discarded: int
    cpu_s: float  # of the whole process, over all these steps
    thread_cpu_s: Sequence[float] = ()  # of its lasting threads and dp's on CPUs, busiest first
    resident_bytes: int = 0
    memory_bytes: Sequence[int] | None = None  # the peak on each of its GPUs; None without any
    phases: Sequence[Mapping[str, float]] = ()  # one for each step
    comm_bytes: int = 0  # for each step
    buckets: Sequence[Mapping[str, Any]] = ()  # of the middle step, since its backward began
    backward_s: float | None = None  # of that step


@dataclass(slots=True)
class CellRecord:
    """All that was measured of one cell: its visits in order, each with a block per process."""

    warm_up_steps: int = 0  # before the first visit
    visits: list[Sequence[Block]] = field(default_factory=list)
    without_sync: list[Sequence[Block]] = field(default_factory=list)
    utilisation: list[Sequence[float]] = field(default_factory=list)  # per GPU, 0 to 1

    @property
    def step_s(self) -> list[float]:
        """Every step; it has taken as long as in the slowest process."""
        return [seconds for visit in self.visits for seconds in slowest(visit)]

    @property
    def round_s(self) -> list[float]:
        """The median step of each visit."""
        return [median(slowest(visit)) for visit in self.visits]

    @property
    def typical(self) -> Sequence[Block]:
        """The visit that is nearest to the median of all steps."""
        middle = median(self.step_s)
        return min(self.visits, key=lambda visit: abs(median(slowest(visit)) - middle))

    @property
    def discarded(self) -> int:
        """Steps that were taken and count nowhere."""
        visits = (*self.visits, *self.without_sync)
        return self.warm_up_steps + sum(visit[0].discarded for visit in visits)

    @property
    def blocks(self) -> list[Block]:
        return [block for visit in self.visits for block in visit]


def slowest(visit: Sequence[Block]) -> list[float]:
    """Step by step the time of the process that took longest."""
    return [max(step) for step in zip(*(block.step_s for block in visit), strict=True)]
