"""Processes of a job that talk about each other: gather, ping, write and look, exchange.

Knows torch and no verdict; every public function is a collective.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist

from hpcddp.doctor.pairs import Pair, doubtful, pair_rounds
from hpcddp.measure.collectives import BYTES_PER_FLOAT

_PINGS = 10
_NOT_VISIBLE_S, _POLL_S = 20.0, 0.01
_WARM_UP_FLOATS, _CPU_FLOATS, _GPU_FLOATS = 1 << 16, 1 << 20, 1 << 24
_PAIR_S, _MOST_EXCHANGES = 0.5, 8


@dataclass(frozen=True, slots=True)
class Leader:
    """The first process of a node."""

    host: str
    global_rank: int


class Links:
    """Small talk of all processes over a gloo group of their own; one alone talks to itself."""

    def __init__(self, global_rank: int, world_size: int) -> None:
        self.global_rank = global_rank
        self._group = dist.new_group(backend="gloo") if world_size > 1 else None

    def gather(self, value: Any) -> list[Any]:  # noqa: ANN401
        """The value of every process, by global rank, on all of them."""
        if self._group is None:
            return [value]
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=self._group)
        return values

    def wait_for_all(self) -> None:
        if self._group is not None:
            dist.barrier(group=self._group)

    def send(self, number: float, to: int) -> None:
        dist.send(torch.tensor([number], dtype=torch.float64), dst=to, group=self._group)

    def receive(self, sender: int) -> float:
        number = torch.zeros(1, dtype=torch.float64)
        dist.recv(number, src=sender, group=self._group)
        return float(number)


def clock_offsets(links: Links, leaders: Sequence[Leader]) -> dict[str, tuple[float, float]]:
    """On the first leader: how far each node's clock is ahead of its own, and the round trip.

    Of several pings the fastest counts: its answer was read halfway, give or take half the trip.
    """
    first, found = leaders[0], {}
    for leader in leaders[1:]:
        if links.global_rank == leader.global_rank:
            for _ in range(_PINGS):
                links.receive(first.global_rank)
                links.send(time.time(), first.global_rank)
        elif links.global_rank == first.global_rank:
            answers = [_ping(links, leader.global_rank) for _ in range(_PINGS)]
            found[leader.host] = min(answers, key=lambda answer: answer[1])
    return found


def _ping(links: Links, there: int) -> tuple[float, float]:
    start, began = time.perf_counter(), time.time()  # so the trip is never taken for shorter
    links.send(0.0, there)
    told = links.receive(there)
    trip_s = time.perf_counter() - start
    return told - (began + trip_s / 2), trip_s


def visible_after(
    links: Links, leaders: Sequence[Leader], folder: Path, patience_s: float = _NOT_VISIBLE_S
) -> dict[str, Any]:
    """How long a file that the last node writes to `folder` stays unseen on each other node.

    Every node has looked for the file before it was there, as a cache of names would remember.
    """
    writer = leaders[-1]
    is_leader = links.global_rank in {each.global_rank for each in leaders}
    is_writer = links.global_rank == writer.global_rank
    [token, *_] = links.gather(uuid4().hex)
    path = folder / f".doctor-{token}"
    os.path.exists(path)  # Path.exists raises where the folder is closed to us
    links.wait_for_all()
    error = _write(path, token) if is_writer else ""
    error = links.gather(error)[writer.global_rank]
    look = is_leader and not is_writer and not error
    seen = links.gather(_wait_for(path, token, patience_s) if look else None)
    if is_writer:
        with suppress(OSError):
            path.unlink()
    readers = [] if error else leaders[:-1]
    after_s = {each.host: seen[each.global_rank] for each in readers}
    return {"writer": writer.host, "folder": str(folder), "error": error, "after_s": after_s}


def _write(path: Path, token: str) -> str:
    """Write the file durably; what went wrong, empty if nothing."""
    try:
        with path.open("w") as file:
            file.write(token)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return str(error.strerror)
    return ""


def _wait_for(path: Path, token: str, patience_s: float) -> float | None:
    """Seconds until the file says `token` here; None if it does not within `patience_s`."""
    start, is_late = time.monotonic(), False
    while not is_late:
        is_late = time.monotonic() - start >= patience_s  # who was held up looks once more
        with suppress(OSError):
            if path.read_text() == token:
                return time.monotonic() - start
        time.sleep(_POLL_S)
    return None


def pair_speeds(
    links: Links, leaders: Sequence[Leader], device: torch.device
) -> list[tuple[str, str, float]]:
    """Host, host and GB/s, each way at once, of every pair of nodes that met.

    Slow pairs meet once more, one after the other, and their better result counts.
    """
    speeds: dict[Pair, float] = {}
    for pairs in pair_rounds(len(leaders)):
        speeds |= _meet(links, leaders, pairs, device)
    for pair in doubtful([(*pair, speed) for pair, speed in speeds.items()]):
        again = _meet(links, leaders, [pair], device)
        speeds[pair] = max(speeds[pair], again[pair])
    return [(leaders[a].host, leaders[b].host, speed) for (a, b), speed in speeds.items()]


def _meet(
    links: Links, leaders: Sequence[Leader], pairs: Sequence[Pair], device: torch.device
) -> dict[Pair, float]:
    """The speeds of these pairs, measured at the same time; on every process."""
    nodes = {leader.global_rank: node for node, leader in enumerate(leaders)}
    node, found = nodes.get(links.global_rank), {}
    for first, second in pairs:
        if node == first:
            speed = _exchange(links, leaders[second].global_rank, device, decides=True)
            found[first, second] = speed
        elif node == second:
            _exchange(links, leaders[first].global_rank, device, decides=False)
    return {pair: speed for results in links.gather(found) for pair, speed in results.items()}


def _exchange(links: Links, there: int, device: torch.device, *, decides: bool) -> float:
    """GB/s of the fastest of several exchanges; the process that decides says how many."""
    floats = _GPU_FLOATS if device.type == "cuda" else _CPU_FLOATS
    _swap(links, there, torch.zeros(_WARM_UP_FLOATS, device=device))  # opens the connection
    payload = torch.zeros(floats, device=device)
    times = [_swap(links, there, payload)]
    if decides:
        count = min(_MOST_EXCHANGES, int(_PAIR_S / times[0]))
        links.send(count, there)
    else:
        count = int(links.receive(there))
    times += [_swap(links, there, payload) for _ in range(count)]
    return floats * BYTES_PER_FLOAT / min(times) / 1e9


def _swap(links: Links, there: int, payload: torch.Tensor) -> float:
    """Seconds in which both have received what the other sent.

    On a CPU a sender is content once the kernel has its bytes, so each also tells the other that it
    has everything. With NCCL no more than a few MiB of its own buffers are still on the way.
    """
    received = torch.empty_like(payload)
    start = time.perf_counter()
    ways = [dist.P2POp(dist.isend, payload, there), dist.P2POp(dist.irecv, received, there)]
    for work in dist.batch_isend_irecv(ways):
        work.wait()
    if payload.device.type == "cuda":
        torch.cuda.synchronize(payload.device)
    elif links.global_rank < there:
        links.send(1.0, there)
        links.receive(there)
    else:
        links.receive(there)
        links.send(1.0, there)
    return time.perf_counter() - start
