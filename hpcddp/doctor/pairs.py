"""Which nodes test their link in which round, and what the results say of nodes and links. Pure.

Up to eight nodes every node meets every other one. Beyond, as in a hypercube, a node meets those
whose number differs in one bit: some log2(n) rounds of pairs that do not disturb each other, and
enough to tell a slow node from a slow link.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

Pair = tuple[int, int]
Measured = tuple[int, int, float]  # node, node, GB/s
Node = TypeVar("Node", int, str)

_ALL_PAIRS = 8
MOST_DOUBTS = 16
_SLOW, _VERY_SLOW = 0.5, 0.25  # of what the others reach; load makes a factor below two


@dataclass(frozen=True, slots=True)
class Suspect:
    """A node (one host) or a link (two), and its speed as a share of what is usual."""

    hosts: tuple[str, ...]
    gb_per_s: float
    usual_gb_per_s: float

    @property
    def is_very_slow(self) -> bool:
        return self.gb_per_s < _VERY_SLOW * self.usual_gb_per_s


def pair_rounds(num_nodes: int) -> list[list[Pair]]:
    """Rounds of pairs of node ranks; within a round no node is in two pairs."""
    if num_nodes <= _ALL_PAIRS:
        return _round_robin(num_nodes)
    rounds = _hypercube(num_nodes)
    if num_nodes & (num_nodes - 1):
        # The last nodes of an unfinished cube have few partners, counted from the end the first.
        last = num_nodes - 1
        rounds += [[(last - b, last - a) for a, b in pairs] for pairs in _hypercube(num_nodes)]
    return rounds


def _round_robin(num_nodes: int) -> list[list[Pair]]:
    """All pairs, by the circle method: one place stays, the others move on; an odd one rests."""
    places = [*range(num_nodes), *([None] * (num_nodes % 2))]
    rounds = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        met = zip(places[:half], reversed(places[half:]), strict=True)
        pairs = [(min(a, b), max(a, b)) for a, b in met if a is not None and b is not None]
        rounds.append(sorted(pairs))
        places = [places[0], places[-1], *places[1:-1]]
    return rounds


def _hypercube(num_nodes: int) -> list[list[Pair]]:
    bits = [1 << place for place in range((num_nodes - 1).bit_length())]
    nodes = range(num_nodes)
    return [[(a, a | bit) for a in nodes if not a & bit and a | bit < num_nodes] for bit in bits]


def doubtful(measured: Sequence[Measured]) -> list[Pair]:
    """The pairs to be tested once more, by themselves: slow ones, the slowest first, but not many.

    In their round others were at work as well, on a busy host on the same cores.
    """
    usual = _usual(_best(measured))
    slow = sorted((speed, a, b) for a, b, speed in measured if speed < _SLOW * usual)
    return [(a, b) for _, a, b in slow[:MOST_DOUBTS]]


def slow_ones(measured: Sequence[tuple[str, str, float]]) -> tuple[list[Suspect], list[Suspect]]:
    """Slow nodes and slow links among the measured pairs (host, host, GB/s).

    A node is slow if even its best link is, beside the best links of the others; a link is slow
    if neither of its ends is to blame. Two nodes have nothing to be compared with.
    """
    best = _best(measured)
    usual = _usual(best)
    nodes = [Suspect((h,), speed, usual) for h, speed in best.items() if speed < _SLOW * usual]
    blamed = {suspect.hosts[0] for suspect in nodes}
    links = [
        Suspect((first, second), speed, usual)
        for first, second, speed in measured
        if speed < _SLOW * usual and not {first, second} & blamed
    ]
    return nodes, links


def _best(measured: Sequence[tuple[Node, Node, float]]) -> dict[Node, float]:
    """The speed of each node's best link."""
    best: dict[Node, float] = {}
    for first, second, speed in measured:
        for node in (first, second):
            best[node] = max(speed, best.get(node, 0.0))
    return best


def _usual(best: Mapping[Node, float]) -> float:
    """What is usual for a node; 0, below which nothing is, where two cannot tell who is slow."""
    return median(best.values()) if len(best) > 2 else 0.0
