"""DDP's buckets: when each was ready, and when its reduction began and ended. Knows no step."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from hpcddp.train.clock import Clock


@dataclass(frozen=True, slots=True)
class BucketTimes:
    """One reduction; seconds since the begin of the backward pass that it belongs to."""

    index: int  # DDP's number of the bucket, in the order of the reductions
    bytes: int
    ready_s: float  # all its gradients were there
    start_s: float  # a lane of the backend was free for it
    end_s: float


@dataclass(slots=True)
class BucketMarks:
    """The moments of one reduction, on the clock of the device."""

    index: int
    bytes: int
    ready: Any
    end: Any = None


def note_buckets(
    ddp: DistributedDataParallel, clock: Clock, note: Callable[[BucketMarks], None]
) -> None:
    """Let `ddp` reduce as it does by itself, bit for bit, and `note` every bucket.

    Scales by a factor of 1/n and then adds up, as DDP's own path does: dividing by n, as torch's
    example of a hook does, rounds differently when n is no power of two.
    """
    group = ddp.process_group
    share = 1.0 / group.size()

    def reduce(state: None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        gradients = bucket.buffer()
        gradients.mul_(share)
        marks = BucketMarks(bucket.index(), gradients.nbytes, clock.now())
        note(marks)

        def ended(future: Future[list[torch.Tensor]]) -> torch.Tensor:
            # With gloo in its own thread; with NCCL at once, in a stream that waits for the end.
            marks.end = clock.now()
            return future.value()[0]

        return dist.all_reduce(gradients, group=group, async_op=True).get_future().then(ended)

    ddp.register_comm_hook(None, reduce)


def times_of(marks: Sequence[BucketMarks], begin: Any, clock: Clock) -> list[BucketTimes]:  # noqa: ANN401
    """Buckets wait for a free lane in the order in which they are ready."""
    times: list[BucketTimes] = []
    free_s = [0.0] * clock.lanes
    for mark in marks:
        ready_s, end_s = clock.seconds(begin, mark.ready), clock.seconds(begin, mark.end)
        start_s = max(ready_s, heapq.heapreplace(free_s, end_s))
        times.append(BucketTimes(mark.index, mark.bytes, ready_s, min(start_s, end_s), end_s))
    return times


def covered_s(buckets: Sequence[BucketTimes]) -> float:
    """Seconds during which at least one reduction ran."""
    total_s = until_s = 0.0
    for bucket in sorted(buckets, key=lambda bucket: bucket.start_s):
        total_s += max(0.0, bucket.end_s - max(bucket.start_s, until_s))
        until_s = max(until_s, bucket.end_s)
    return total_s


def exposed_s(buckets: Sequence[BucketTimes]) -> float:
    """Seconds from when the last gradient was ready to the end of the last reduction."""
    if not buckets:
        return 0.0
    return max(bucket.end_s for bucket in buckets) - max(bucket.ready_s for bucket in buckets)
