"""Latency and bandwidth from times that are known."""

import math
import random
import statistics

import pytest

from hpcddp.errors import HpcddpError
from hpcddp.measure.alpha_beta import fit_alpha_beta

SIZES = [1 << power for power in range(10, 29)]


def test_a_straight_line_is_found_exactly():
    fit = fit_alpha_beta(SIZES, [5e-4 + size / 1.25e8 for size in SIZES])
    assert fit.alpha_s == pytest.approx(5e-4)
    assert fit.beta_bytes_per_s == pytest.approx(1.25e8)
    assert fit.worst < 1e-9
    assert fit.alpha_error_s < 1e-9 * fit.alpha_s + 1e-12
    assert fit.seconds(1 << 20) == pytest.approx(5e-4 + (1 << 20) / 1.25e8)


def test_a_miss_of_the_largest_size_does_not_drown_the_latency():
    """Unweighted, the 0.2 s by which the last time misses would move alpha by more than itself."""
    times = [5e-4 + size / 1.25e8 for size in SIZES]
    times[-1] *= 1.1
    fit = fit_alpha_beta(SIZES, times)
    assert fit.alpha_s == pytest.approx(5e-4, rel=0.05)
    assert fit.beta_bytes_per_s == pytest.approx(1.25e8, rel=0.1)
    assert 0 < fit.beta_error_bytes_per_s < 0.1 * fit.beta_bytes_per_s


def test_noise_makes_neither_a_bandwidth_nor_a_latency_too_high():
    """Medians over many lines; relative to the measured times they would be off by 0.13, -0.10."""
    draw, fits = random.Random(0), []
    for _ in range(400):
        times = [(5e-4 + size / 1.25e8) * math.exp(draw.gauss(0, 0.3)) for size in SIZES]
        fits.append(fit_alpha_beta(SIZES, times))
    assert statistics.median(fit.beta_bytes_per_s for fit in fits) == pytest.approx(
        1.25e8, rel=0.03
    )
    assert statistics.median(fit.alpha_s for fit in fits) == pytest.approx(5e-4, rel=0.03)
    # As many as there should be of a normal distribution, 68 %, lie within their standard errors.
    near = sum(abs(fit.beta_bytes_per_s - 1.25e8) < fit.beta_error_bytes_per_s for fit in fits)
    assert near / len(fits) == pytest.approx(0.68, abs=0.1)


def test_no_line_near_the_one_that_is_found_is_nearer_to_the_times():
    """However wild they are: the passes go on as long as they help."""
    draw = random.Random(0)
    for _ in range(50):
        times = [(5e-4 + size / 1.25e8) * math.exp(draw.gauss(0, 1.5)) for size in SIZES]
        fit = fit_alpha_beta(SIZES, times)

        def squares(alpha_s, slope, times=times):
            found = [alpha_s + slope * size for size in SIZES]
            return sum(math.log(t / m) ** 2 for t, m in zip(times, found, strict=True))

        slope = 1 / fit.beta_bytes_per_s
        best = squares(fit.alpha_s, slope)
        for factor in (0.97, 1.03):
            assert squares(fit.alpha_s * factor, slope) >= best
            assert squares(fit.alpha_s, slope * factor) >= best


def test_what_scattered_counts_less():
    """Small sizes on a busy machine, three times as slow as on an idle one."""
    times = [5e-4 + size / 1.25e8 for size in SIZES]
    noisy = [3 * t if size < 1 << 19 else t for size, t in zip(SIZES, times, strict=True)]
    spreads = [2.0 if size < 1 << 19 else 0.0 for size in SIZES]
    plain, weighted = fit_alpha_beta(SIZES, noisy), fit_alpha_beta(SIZES, noisy, spreads)
    assert plain.alpha_s > 1.5e-3
    assert weighted.alpha_s == pytest.approx(5e-4, rel=0.3)
    assert weighted.beta_bytes_per_s == pytest.approx(1.25e8, rel=0.01)


def test_noise_gives_no_negative_latency_and_no_negative_bandwidth():
    fast_small = fit_alpha_beta([1000, 10_000], [1e-6, 1e-4])
    assert (fast_small.alpha_s, fast_small.beta_bytes_per_s > 0) == (0, True)
    slow_small = fit_alpha_beta([1000, 2000], [2e-4, 1e-4])
    assert slow_small.alpha_s > 0
    assert math.isinf(slow_small.beta_bytes_per_s)


@pytest.mark.parametrize(("sizes", "times"), [([4096], [1.0]), ([4096, 8192], [1.0, 0.0])])
def test_one_size_or_a_time_of_nothing_gives_no_line(sizes, times):
    with pytest.raises(HpcddpError, match=r"--sizes 1KiB\.\.1MiB"):
        fit_alpha_beta(sizes, times)
