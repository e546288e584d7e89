"""Formulas of measurements: spreads, speed-up, efficiency, serial fractions. Pure; knows no step.

n is a number of devices relative to the smallest that was measured; S the speed-up at n.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_CONFIDENCE = 0.95
_SLICES = 4096  # of the angle that Student's t is integrated over: exact to five digits


@dataclass(frozen=True, slots=True)
class Spread:
    """How `n` values lie: median, 95th percentile, and the width of their middle half."""

    n: int
    median: float
    p95: float
    iqr: float


@dataclass(frozen=True, slots=True)
class Serial:
    """A fitted serial fraction and the root mean square of what the fit leaves over: of 1/S for
    Amdahl's, of S for Gustafson's. None of a single point, through which it always goes.
    """

    fraction: float
    residual: float | None


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of two things that were measured in turn: how many times the second is the first.

    `low` and `high` bound it with 95 % confidence; both are infinite with fewer than two rounds. Of
    several `comparisons`, out of which this one was picked, they bound all at once.
    """

    value: float
    low: float
    high: float
    comparisons: int = 1


def quantile(values: Sequence[float], fraction: float) -> float:
    """The value below which `fraction` of them lie, interpolated linearly between neighbours."""
    ordered = sorted(values)
    place = fraction * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def median(values: Sequence[float]) -> float:
    return quantile(values, 0.5)


def spread_of(values: Sequence[float]) -> Spread:
    """The spread of at least one value."""
    return Spread(
        len(values),
        median(values),
        quantile(values, 0.95),
        quantile(values, 0.75) - quantile(values, 0.25),
    )


def efficiency(speedup: float, n: float) -> float:
    """S / n: 1 where n devices do n times as much as one."""
    return speedup / n


def karp_flatt(speedup: float, n: float) -> float | None:
    """The serial fraction that one speed-up at a fixed size of the problem stands for; None at n=1.

    e = (1/S - 1/n) / (1 - 1/n). The same at every n: a serial part. Rising: communication or
    imbalance. Below 0: faster than n times. Source: Karp and Flatt, CACM 33(5), 1990.
    """
    if n == 1:
        return None
    return (1 / speedup - 1 / n) / (1 - 1 / n)


def amdahl(speedups: Mapping[float, float]) -> Serial | None:
    """The serial fraction s of strong scaling, by least squares; None with no n above 1.

    1/S(n) = s + (1 - s)/n, so s multiplies 1 - 1/n. Source: Amdahl, AFIPS 1967.
    """
    return _fit({n: (1 - 1 / n, 1 / speedup - 1 / n) for n, speedup in speedups.items() if n > 1})


def gustafson(speedups: Mapping[float, float]) -> Serial | None:
    """The serial fraction s of weak scaling, by least squares; None with no n above 1.

    S(n) = n - s(n - 1). Source: Gustafson, CACM 31(5), 1988.
    """
    return _fit({n: (n - 1, n - speedup) for n, speedup in speedups.items() if n > 1})


def _fit(points: Mapping[float, tuple[float, float]]) -> Serial | None:
    """y = s x through the origin."""
    if not points:
        return None
    fraction = sum(x * y for x, y in points.values()) / sum(x * x for x, _ in points.values())
    left_over = sum((y - fraction * x) ** 2 for x, y in points.values()) / len(points)
    return Serial(fraction, math.sqrt(left_over) if len(points) > 1 else None)


def ratio_of(first: Sequence[float], second: Sequence[float], *, comparisons: int = 1) -> Ratio:
    """second / first, both measured once in each round; Student's t over the rounds' logarithms.

    What disturbs a whole round disturbs both and cancels. The best of several `comparisons` is
    likely to look good by chance: each gets its share of what may go wrong (Bonferroni).
    """
    logs = [math.log(b / a) for a, b in zip(first, second, strict=True)]
    mean = sum(logs) / len(logs)
    if len(logs) < 2:
        return Ratio(math.exp(mean), -math.inf, math.inf, comparisons)
    variance = sum((each - mean) ** 2 for each in logs) / (len(logs) - 1)
    wide = student_t(1 - (1 - _CONFIDENCE) / comparisons, len(logs) - 1)
    half = wide * math.sqrt(variance / len(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), comparisons)


@functools.cache
def student_t(confidence: float, freedom: int) -> float:
    """How many standard errors to both sides hold the truth with that confidence.

    With t = sqrt(freedom) tan(a) the density is a power of cos(a), which Simpson's rule adds up.
    """
    step = math.pi / 2 / _SLICES
    height = [math.cos(n * step / 2) ** (freedom - 1) for n in range(2 * _SLICES + 1)]
    slices = [sum(height[n : n + 3]) + 3 * height[n + 1] for n in range(0, 2 * _SLICES, 2)]
    wanted, held = confidence * sum(slices), 0.0
    for number, slice_ in enumerate(slices):
        if held + slice_ >= wanted:
            return math.sqrt(freedom) * math.tan(step * (number + (wanted - held) / slice_))
        held += slice_
    return math.inf


def imbalance(per_device: Sequence[int]) -> float | None:
    """The first device's share over the mean of the others; None with a single device."""
    others = per_device[1:]
    if not others or not sum(others):
        return None
    return per_device[0] * len(others) / sum(others)
