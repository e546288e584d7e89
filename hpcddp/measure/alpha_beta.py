"""The time of a message as latency plus size over bandwidth, fitted to measured times. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hpcddp.errors import HpcddpError

_SURE = 0.05


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """t = alpha_s + bytes / beta. Errors are standard errors; `worst` the largest relative miss.

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


def fit_alpha_beta(
    sizes: Sequence[int], seconds: Sequence[float], spreads: Sequence[float] | None = None
) -> AlphaBeta:
    """Least squares of the relative misses, so that 1 KiB counts as much as 256 MiB.

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
    # Of w = w (alpha + slope S) / t: the columns are w/t and w S/t, the right side is w.
    weights = [_SURE / math.hypot(_SURE, spread) for spread in spreads or [0.0] * len(sizes)]
    rows = [(w / t, w * size / t, w) for size, t, w in zip(sizes, seconds, weights, strict=True)]
    a, b, c = (math.fsum(x**i * y**j for x, y, _ in rows) for i, j in ((2, 0), (1, 1), (0, 2)))
    det = a * c - b * b
    alpha, slope = _solve(rows, a, b, c)
    misses = [alpha * x + slope * y - w for x, y, w in rows]
    variance = math.fsum(miss * miss for miss in misses) / max(1, len(rows) - 2)
    return AlphaBeta(
        alpha_s=alpha,
        beta_bytes_per_s=1 / slope if slope else math.inf,
        alpha_error_s=math.sqrt(variance * c / det),
        beta_error_bytes_per_s=math.sqrt(variance * a / det) / slope**2 if slope else math.inf,
        worst=max(abs(miss / w) for miss, w in zip(misses, weights, strict=True)),
    )


def _solve(
    rows: Sequence[tuple[float, float, float]], a: float, b: float, c: float
) -> tuple[float, float]:
    """Latency and slope of the normal equations, neither below zero."""
    right, right_slope = math.fsum(x * w for x, _, w in rows), math.fsum(y * w for _, y, w in rows)
    det = a * c - b * b
    alpha, slope = (c * right - b * right_slope) / det, (a * right_slope - b * right) / det
    if alpha < 0:
        return 0.0, right_slope / c
    return (right / a, 0.0) if slope <= 0 else (alpha, slope)
