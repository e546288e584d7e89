"""How long an all-reduce of each size takes, and whether it is right. Knows no model, no Slurm.

Bandwidths are those of NVIDIA's nccl-tests (doc/PERFORMANCE.md there): algorithm bandwidth is
bytes / time; bus bandwidth is that times 2(n-1)/n, what each process must send and receive. Where
each node has one process that is the number to hold against the speed of its link; of several, most
may stay inside the node, and `node_gb_per_s` is what it must at least send to others.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from hpcddp.errors import HpcddpError
from hpcddp.measure.scaling import quantile
from hpcddp.train.process_group import Ranks

BYTES_PER_FLOAT = 4
_WARM_UPS = 2  # and one more call before them, whose result is checked
_FEWEST, _MOST = 3, 200
_CLOCK_S = 1e-6  # what no clock here resolves
_LARGEST_WHOLE = 1 << 24  # up to which a float32 holds every whole number
_PERIOD = 251  # of the pattern; a prime, so that it fits no chunk of any algorithm


@dataclass(frozen=True, slots=True)
class AllReduceTime:
    """One size: the median over `n` calls of the slowest process's time, and the quartiles."""

    bytes: int
    seconds: float
    quartiles_s: tuple[float, float]
    n: int
    discarded: int

    @property
    def algbw_gb_per_s(self) -> float:
        """Algorithm bandwidth in 10^9 bytes per second."""
        return self.bytes / self.seconds / 1e9

    def busbw_gb_per_s(self, world_size: int) -> float:
        """Bus bandwidth in 10^9 bytes per second."""
        return self.algbw_gb_per_s * bus_factor(world_size)

    def node_gb_per_s(self, world_size: int, nodes: int) -> float | None:
        """What each node sends at least, in 10^9 bytes per second, as if it were one process.

        Per process that is busbw x (k-1)/(n-1), with k nodes and n processes. None where it says
        no more than busbw.
        """
        if nodes in (1, world_size):
            return None
        return self.algbw_gb_per_s * bus_factor(nodes)


def bus_factor(world_size: int) -> float:
    """Bytes that each process sends in an all-reduce, per byte of the tensor."""
    return 2 * (world_size - 1) / world_size


def measure_all_reduce(
    ranks: Ranks,
    sizes: Sequence[int],
    device: torch.device,
    *,
    global_rank: int,
    world_size: int,
    seconds_per_size: float,
) -> Iterator[AllReduceTime]:
    """Time each size (bytes, multiples of 4) on all processes. Collective.

    Each size gets about `seconds_per_size`, and at least three calls. Raises HpcddpError
    `wrong_sum` on every process as soon as one finds a wrong result.
    """
    for size in sizes:
        tensor = torch.empty(size // BYTES_PER_FLOAT, device=device)
        _check_sum(ranks, tensor, global_rank, world_size)
        tensor.zero_()  # sums of sums would grow without end
        warm = _slowest(ranks, _times(ranks, tensor, _WARM_UPS))
        count = min(_MOST, max(_FEWEST, int(seconds_per_size / max(min(warm), _CLOCK_S))))
        seconds = _slowest(ranks, _times(ranks, tensor, count))
        low, middle, high = (quantile(seconds, quarter / 4) for quarter in (1, 2, 3))
        yield AllReduceTime(size, middle, (low, high), count, _WARM_UPS + 1)


def _check_sum(ranks: Ranks, tensor: torch.Tensor, global_rank: int, world_size: int) -> None:
    """Add up whole numbers that floats hold exactly, in whatever order, and compare every one."""
    values = _LARGEST_WHOLE // (2 * world_size) + 1  # of the pattern, and of the processes
    _fill(tensor, lambda pattern: pattern % values + global_rank % values)
    ranks.sum_across(tensor)
    rounds, rest = divmod(world_size, values)
    others = rounds * (values * (values - 1) // 2) + rest * (rest - 1) // 2
    expected = torch.empty_like(tensor)
    _fill(expected, lambda pattern: pattern % values * world_size + others)
    is_wrong = not torch.equal(tensor, expected)
    [wrong] = _slowest(ranks, [float(is_wrong)])
    if wrong:
        raise HpcddpError(
            f"The all-reduce of {tensor.numel() * BYTES_PER_FLOAT} bytes gave a wrong sum"
            f"{' in this process' if is_wrong else ' in another process'}. Do not train here: "
            "look for a broken link or adapter, or another version of the library.",
            "wrong_sum",
        )


def _fill(tensor: torch.Tensor, values: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Repeat values(0 .. 250) over the tensor."""
    block = values(torch.arange(_PERIOD, dtype=tensor.dtype, device=tensor.device))
    whole = tensor.numel() // _PERIOD * _PERIOD
    tensor[:whole].view(-1, _PERIOD).copy_(block)
    tensor[whole:].copy_(block[: tensor.numel() - whole])


def _times(ranks: Ranks, tensor: torch.Tensor, count: int) -> list[float]:
    """Seconds of each of `count` calls here, one after the other, begun together."""
    ranks.wait_for_all()
    if tensor.device.type == "cuda":
        return _times_on_device(ranks, tensor, count)
    marks = [time.perf_counter()]
    for _ in range(count):
        ranks.sum_across(tensor)
        marks.append(time.perf_counter())
    return [end - begin for begin, end in itertools.pairwise(marks)]


def _times_on_device(ranks: Ranks, tensor: torch.Tensor, count: int) -> list[float]:
    """The same by the device's own clock; the calls only queue what it does."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        ranks.sum_across(tensor)
        mark.record()
    marks[-1].synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(marks)]


def _slowest(ranks: Ranks, seconds: list[float]) -> list[float]:
    """Each time as the slowest process had it. Collective."""
    times = torch.tensor(seconds, dtype=torch.float64)
    ranks.start_max(times).wait()
    return times.tolist()
