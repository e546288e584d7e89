"""What a step consists of, on the clock of the device that does the work. Knows no loop.

Every moment of a step belongs to one phase, so the phases add up to the step. On a GPU the moments
are events in its stream: the host neither waits for them nor reads them before the step is over.
"""

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Protocol

from torch.nn.parallel import DistributedDataParallel

from hpcddp.phases import COMM_PARTS, PHASES
from hpcddp.train.buckets import (
    BucketMarks,
    BucketTimes,
    covered_s,
    exposed_s,
    note_buckets,
    times_of,
)
from hpcddp.train.clock import Clock

_MOST_UNREAD = 50  # steps: a device is not as far behind its host, and records may be far apart
_NOTHING: AbstractContextManager[None] = nullcontext()


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step. `phases` holds PHASES, `comm_s`, and those of COMM_PARTS that there were.

    Buckets, in the order in which they were ready, and `backward_s` are those of the step's last
    backward pass, the only one that reduces; `phases` adds up all passes. Without buckets it says
    nothing: DataParallel's own parts cut a pass into pieces.
    """

    step_s: float
    phases: dict[str, float]
    buckets: list[BucketTimes]
    backward_s: float | None  # of that pass, without the reductions that outlasted it

    @property
    def comm_bytes(self) -> int:
        """Bytes of gradients that this step reduced; 0 but for DDP."""
        return sum(bucket.bytes for bucket in self.buckets)


class Timer(Protocol):
    """What the loop, the feed and the replicas tell; each is a context around the work."""

    def step(self) -> AbstractContextManager[None]: ...
    def data_wait(self) -> AbstractContextManager[None]: ...
    def host_to_device(self) -> AbstractContextManager[None]: ...
    def forward(self) -> AbstractContextManager[None]: ...
    def backward(self) -> AbstractContextManager[None]: ...
    def optimizer(self) -> AbstractContextManager[None]: ...

    def part(self, name: str) -> AbstractContextManager[None]:
        """One of COMM_PARTS, inside forward or backward."""

    def note_buckets(self, ddp: DistributedDataParallel) -> None:
        """Note the buckets of `ddp`. Before its first pass; once."""

    def replica_cpu(self, index: int, seconds: float) -> None:
        """The thread of DataParallel's replica `index` has used that much of a CPU, and ends."""

    def report(self, planned_bytes: int) -> dict[str, Any]:
        """What a record says of the steps since the last: `comm_bytes_per_step`, and `phases`."""


class NoTimer:
    """Measures nothing and costs nothing."""

    def step(self) -> AbstractContextManager[None]:
        return _NOTHING

    data_wait = host_to_device = forward = backward = optimizer = step

    def part(self, name: str) -> AbstractContextManager[None]:
        return _NOTHING

    def note_buckets(self, ddp: DistributedDataParallel) -> None:
        pass

    def replica_cpu(self, index: int, seconds: float) -> None:
        pass

    def report(self, planned_bytes: int) -> dict[str, Any]:
        return {"comm_bytes_per_step": planned_bytes}


@dataclass(slots=True)
class _Marks:
    """The moments of one step; a phase lasts until the next mark."""

    phases: list[tuple[str, Any]] = field(default_factory=list)
    buckets: list[BucketMarks] = field(default_factory=list)

    @property
    def end(self) -> Any:  # noqa: ANN401
        return self.phases[-1][1]

    @property
    def moments(self) -> Iterator[Any]:
        """All of them, each once."""
        yield from (moment for _, moment in self.phases)
        for bucket in self.buckets:
            yield from (bucket.ready, bucket.end)


class StepTimer:
    """Notes when each phase of a step begins; `take` works out how long it was.

    Moments of a GPU are events, which are used anew once their step has been read: steps that are
    long over are read beside those that follow, so that there are never many events.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._phase = "other_s"
        self._marks = _Marks()
        self._unread: deque[_Marks] = deque()
        self._read: list[StepTimes] = []
        self._replica_cpu_s: defaultdict[int, float] = defaultdict(float)
        self._contexts = {name: _Phase(self.enter, name) for name in (*PHASES, *COMM_PARTS)}
        self._step = _Step(self)

    def step(self) -> AbstractContextManager[None]:
        return self._step

    def data_wait(self) -> AbstractContextManager[None]:
        return self._contexts["data_wait_s"]

    def host_to_device(self) -> AbstractContextManager[None]:
        return self._contexts["host_to_device_s"]

    def forward(self) -> AbstractContextManager[None]:
        return self._contexts["forward_s"]

    def backward(self) -> AbstractContextManager[None]:
        return self._contexts["backward_s"]

    def optimizer(self) -> AbstractContextManager[None]:
        return self._contexts["optimizer_s"]

    def part(self, name: str) -> AbstractContextManager[None]:
        return self._contexts[name]

    def note_buckets(self, ddp: DistributedDataParallel) -> None:
        note_buckets(ddp, self._clock, self._note_bucket)

    def replica_cpu(self, index: int, seconds: float) -> None:
        self._replica_cpu_s[index] += seconds  # a replica has one thread at a time

    def take_replica_cpu(self) -> list[float]:
        """CPU seconds of each replica's threads since this was last asked; none but with dp."""
        spent, self._replica_cpu_s = self._replica_cpu_s, defaultdict(float)
        return [spent[index] for index in sorted(spent)]

    def _note_bucket(self, bucket: BucketMarks) -> None:
        self._marks.buckets.append(bucket)

    def enter(self, phase: str) -> str:
        """`phase` begins now; the one that it ends."""
        before, self._phase = self._phase, phase
        self._marks.phases.append((phase, self._clock.now()))
        return before

    def begin_step(self) -> None:
        self._marks = _Marks()
        self.enter("other_s")

    def end_step(self) -> None:
        self.enter("other_s")
        self._unread.append(self._marks)
        self._marks = _Marks()  # takes what is noted before the next step, and is dropped
        while len(self._unread) > _MOST_UNREAD and self._clock.has_come(self._unread[0].end):
            self._read_oldest()

    def take(self) -> list[StepTimes]:
        """The steps since this was last asked; waits until the device has done the last one."""
        if self._unread:
            self._clock.wait_for(self._unread[-1].end)
        while self._unread:
            self._read_oldest()
        times, self._read = self._read, []
        return times

    def _read_oldest(self) -> None:
        """The device must have done that step."""
        marks = self._unread.popleft()
        self._read.append(_times(marks, self._clock))
        self._clock.forget(marks.moments)

    def report(self, planned_bytes: int) -> dict[str, Any]:
        """Means, so that the phases still add up; bytes as reduced, or as planned without DDP."""
        times = self.take()
        reduced = times[-1].comm_bytes if times and times[-1].buckets else planned_bytes
        return {"comm_bytes_per_step": reduced, "phases": mean_phases(times)}


class _Phase:
    """`with` this, and the time inside belongs to the phase, afterwards to the one before."""

    def __init__(self, enter: Callable[[str], str], name: str) -> None:
        self._enter, self._name, self._before = enter, name, "other_s"

    def __enter__(self) -> None:
        self._before = self._enter(self._name)

    def __exit__(self, *error: object) -> None:
        self._enter(self._before)


class _Step:
    """`with` this, and what is inside is one step; a step that raises is none."""

    def __init__(self, timer: StepTimer) -> None:
        self._timer = timer

    def __enter__(self) -> None:
        self._timer.begin_step()

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self._timer.end_step()


def mean_phases(times: Sequence[StepTimes]) -> dict[str, float]:
    """Mean seconds of each phase."""
    names = dict.fromkeys(name for one in times for name in one.phases)
    return {name: round(fmean(one.phases.get(name, 0.0) for one in times), 6) for name in names}


def _times(marks: _Marks, clock: Clock) -> StepTimes:
    spent: dict[str, float] = defaultdict(float, dict.fromkeys(PHASES, 0.0))
    backward_s, backward_begin = 0.0, None
    for (phase, begin), (_, end) in itertools.pairwise(marks.phases):
        seconds = clock.seconds(begin, end)
        spent[phase] += seconds
        if phase == "backward_s":
            backward_s, backward_begin = seconds, begin
    buckets = times_of(marks.buckets, backward_begin, clock)
    exposed = exposed_s(buckets)
    parts_s = sum(spent.get(part, 0.0) for part in COMM_PARTS)
    spent["backward_s"] -= exposed
    spent["exposed_comm_s"] = exposed + parts_s
    spent["comm_s"] = covered_s(buckets) + parts_s
    step_s = clock.seconds(marks.phases[0][1], marks.phases[-1][1])
    return StepTimes(step_s, dict(spent), buckets, backward_s - exposed if buckets else None)
