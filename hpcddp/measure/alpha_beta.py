"""The time of a message as latency plus size over bandwidth, fitted to measured times. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hpcddp.errors import HpcddpError

_SURE = 0.05
_MOST_PASSES = 50  # a handful do
_Line = tuple[float, float]  # latency, and seconds per byte
_Row = tuple[float, int, float]  # x, S and the right side of x (alpha + slope S) = right


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """t = alpha_s + bytes / beta. Errors are standard errors; `worst` is the largest miss, relative
    to the measured time.

    `beta_bytes_per_s` is infinite where the times do not grow with the size.
    """

    alpha_s: float
    beta_bytes_per_s: float
    alpha_error_s: float
    beta_error_bytes_per_s: float
    worst: float

    def seconds(self, num_bytes: float) -> float:
        """What the line says for this size."""
        return self.alpha_s + num_bytes / self.beta_bytes_per_s


@dataclass(frozen=True, slots=True)
class _Point:
    size: int
    seconds: float
    weight: float


def fit_alpha_beta(
    sizes: Sequence[int], seconds: Sequence[float], spreads: Sequence[float] | None = None
) -> AlphaBeta:
    """Least squares of the logarithms, so that 1 KiB counts as much as 256 MiB.

    Twice as long then misses as much as half as long. Misses relative to the measured times would
    count what noise made short more than what it made long: a bandwidth too high.

    `spreads` are relative errors, such as interquartile range / median: what scattered counts
    less, though nothing counts as better known than 5 %. A latency or a slope below zero, which
    noise alone can make, is taken as zero. Raises HpcddpError for fewer than two different sizes
    and times that are no times.
    """
    if len(set(sizes)) < 2 or min(seconds) <= 0:
        raise HpcddpError(
            f"Latency and bandwidth need times above zero for two sizes; found {len(set(sizes))} "
            f"{'size' if len(set(sizes)) == 1 else 'sizes'}. Measure a range, such as "
            "--sizes 1KiB..1MiB."
        )
    weights = [_SURE / math.hypot(_SURE, spread) for spread in spreads or [0.0] * len(sizes)]
    points = [_Point(*each) for each in zip(sizes, seconds, weights, strict=True)]
    return _with_errors(_nearest(points), points)


def _nearest(points: Sequence[_Point]) -> _Line:
    """The line of the least squares (Gauss-Newton), from that of the least relative misses on."""
    line = _solve([(p.weight / p.seconds, p.size, p.weight) for p in points])
    for _ in range(_MOST_PASSES):
        better = _solve(_linear(line, points))
        if _squares(better, points) >= _squares(line, points):
            break
        line = better
    return line


def _linear(line: _Line, points: Sequence[_Point]) -> list[_Row]:
    """Near `line`, log m' - log t = (alpha' + slope' S) / m - 1 - log(t / m), each times w."""
    found = [(p, line[0] + line[1] * p.size) for p in points]
    return [(p.weight / m, p.size, p.weight * (1 + math.log(p.seconds / m))) for p, m in found]


def _squares(line: _Line, points: Sequence[_Point]) -> float:
    found = [(p, line[0] + line[1] * p.size) for p in points]
    if min(m for _, m in found) <= 0:
        return math.inf
    return math.fsum((p.weight * math.log(p.seconds / m)) ** 2 for p, m in found)


def _products(rows: Sequence[_Row]) -> tuple[float, ...]:
    """Of the columns x and x S: xx, xxS, xxSS."""
    return tuple(math.fsum(x * x * size**power for x, size, _ in rows) for power in (0, 1, 2))


def _solve(rows: Sequence[_Row]) -> _Line:
    """Least squares over the rows; neither latency nor slope is below zero."""
    a, b, c = _products(rows)
    right = math.fsum(x * value for x, _, value in rows)
    right_slope = math.fsum(x * size * value for x, size, value in rows)
    det = a * c - b * b
    alpha, slope = (c * right - b * right_slope) / det, (a * right_slope - b * right) / det
    if alpha < 0:
        return 0.0, right_slope / c
    return (right / a, 0.0) if slope <= 0 else (alpha, slope)


def _with_errors(line: _Line, points: Sequence[_Point]) -> AlphaBeta:
    """The line with what its misses say about it."""
    alpha, slope = line
    a, b, c = _products(_linear(line, points))
    variance = _squares(line, points) / max(1, len(points) - 2)
    det = a * c - b * b
    return AlphaBeta(
        alpha_s=alpha,
        beta_bytes_per_s=1 / slope if slope else math.inf,
        alpha_error_s=math.sqrt(variance * c / det),
        beta_error_bytes_per_s=math.sqrt(variance * a / det) / slope**2 if slope else math.inf,
        worst=max(abs((alpha + slope * p.size) / p.seconds - 1) for p in points),
    )
