"""The formulas against values worked out by hand, and properties that must hold for all."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcddp.measure.scaling import (
    amdahl,
    efficiency,
    gustafson,
    imbalance,
    karp_flatt,
    median,
    quantile,
    ratio_of,
    spread_of,
    student_t,
)

seconds = st.floats(1e-4, 1e3)
device_counts = st.lists(st.integers(2, 512), min_size=1, max_size=6, unique=True)


def test_quantiles_of_five_values_by_hand():
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    spread = spread_of(values)
    assert (spread.n, spread.median, spread.iqr) == (5, 3.0, 2.0)
    assert spread.p95 == pytest.approx(4.8)  # 0.95 x 4 = 3.8: between 4 and 5
    assert quantile(values, 0) == 1.0
    assert quantile(values, 1) == 5.0
    assert spread_of([7.0]).p95 == 7.0


@given(st.lists(seconds, min_size=2, max_size=50))
def test_quantiles_agree_with_the_standard_library(values):
    ours = [quantile(values, k / 20) for k in range(1, 20)]
    assert ours == pytest.approx(statistics.quantiles(values, n=20, method="inclusive"))
    assert median(values) == pytest.approx(statistics.median(values))


@pytest.mark.parametrize(
    ("speedup", "n", "expected"),
    [(1.6, 2, 0.25), (2.0, 2, 0.0), (1.0, 4, 1.0), (2.5, 4, 0.2), (4.4, 4, -0.0303), (0.5, 2, 3.0)],
)
def test_karp_flatt_by_hand(speedup, n, expected):
    assert karp_flatt(speedup, n) == pytest.approx(expected, abs=1e-4)


def test_karp_flatt_says_nothing_about_one_device():
    assert karp_flatt(1.0, 1) is None


@given(st.floats(0, 1), device_counts)
def test_fits_find_the_fraction_that_made_the_curve(fraction, counts):
    strong = {n: 1 / (fraction + (1 - fraction) / n) for n in [1, *counts]}
    weak = {n: n - fraction * (n - 1) for n in [1, *counts]}
    for fitted in (amdahl(strong), gustafson(weak)):
        assert fitted.fraction == pytest.approx(fraction, abs=1e-6)
        if len(counts) > 1:
            assert fitted.residual == pytest.approx(0, abs=1e-4)
        else:
            assert fitted.residual is None  # a line through the origin meets any single point
    for n in counts:
        assert karp_flatt(strong[n], n) == pytest.approx(fraction, abs=1e-6)


def test_a_fit_of_points_that_no_fraction_explains_says_so():
    fitted = amdahl({1: 1.0, 2: 2.0, 4: 1.0})  # y = 0 at x = 1/2, y = 3/4 at x = 3/4
    assert fitted.fraction == pytest.approx((0.75 * 0.75) / (0.25 + 0.5625))
    assert fitted.residual > 0.2


def test_nothing_is_fitted_to_one_device():
    assert amdahl({1: 1.0}) is None
    assert gustafson({1: 1.0}) is None


@given(st.lists(seconds, min_size=2, max_size=20), st.floats(0.1, 10))
def test_a_constant_factor_is_found_whatever_disturbs_the_rounds(first, factor):
    ratio = ratio_of(first, [factor * value for value in first])
    assert ratio.value == pytest.approx(factor)
    assert ratio.low == pytest.approx(factor, rel=1e-6)
    assert ratio.high == pytest.approx(factor, rel=1e-6)


@given(st.lists(st.tuples(seconds, seconds), min_size=2, max_size=20))
def test_the_other_way_round_a_ratio_is_its_inverse(pairs):
    first, second = zip(*pairs, strict=True)
    there, back = ratio_of(first, second), ratio_of(second, first)
    assert there.value * back.value == pytest.approx(1)
    assert there.low <= there.value * (1 + 1e-9)
    assert there.value <= there.high * (1 + 1e-9)


def test_an_interval_by_hand():
    ratio = ratio_of([1.0, 1.0], [math.e, 1.0])  # logarithms 1 and 0, one degree of freedom
    half = 12.7062 * math.sqrt(0.5 / 2)
    assert ratio.value == pytest.approx(math.exp(0.5))
    assert math.log(ratio.high) == pytest.approx(0.5 + half, abs=1e-4)
    assert math.log(ratio.low) == pytest.approx(0.5 - half, abs=1e-4)


@pytest.mark.parametrize(
    ("confidence", "freedom", "expected"),
    [  # from printed tables of Student's t
        *((0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 4, 2.776), (0.95, 9, 2.262)),
        *((0.95, 30, 2.042), (0.95, 1000, 1.962), (0.99, 1, 63.657), (0.99, 4, 4.604)),
        *((0.999, 2, 31.599), (0.5, 3, 0.765)),
    ],
)
def test_students_t_is_that_of_the_tables(confidence, freedom, expected):
    assert student_t(confidence, freedom) == pytest.approx(expected, abs=6e-4)


def test_the_best_of_many_equal_things_is_rarely_called_better():
    draw, rounds, values = random.Random(0), 5, 5

    def false_alarms(comparisons):
        found = 0
        for _ in range(400):
            base, *others = (
                [math.exp(draw.gauss(0, 0.1)) for _ in range(rounds)] for _ in range(values)
            )
            best = min(others, key=median)
            found += ratio_of(best, base, comparisons=comparisons).low > 1
        return found / 400

    assert false_alarms(1) > 0.05
    assert false_alarms(values - 1) < 0.03


def test_one_round_proves_nothing():
    ratio = ratio_of([1.0], [2.0])
    assert (ratio.value, ratio.low, ratio.high) == (2.0, -math.inf, math.inf)


@pytest.mark.parametrize("rounds", [3, 5, 40])
def test_nineteen_of_twenty_intervals_hold_the_truth(rounds):
    draw = random.Random(0)
    hits = 0
    for _ in range(1000):
        first = [math.exp(draw.gauss(0, 0.3)) for _ in range(rounds)]
        second = [1.2 * value * math.exp(draw.gauss(0, 0.1)) for value in first]
        ratio = ratio_of(first, second)
        hits += ratio.low <= 1.2 <= ratio.high
    assert 925 <= hits <= 975


def test_efficiency_and_imbalance_by_hand():
    assert efficiency(3.0, 4) == 0.75
    assert imbalance([30, 10, 20]) == 2.0
    assert imbalance([30]) is None
    assert imbalance([30, 0]) is None
