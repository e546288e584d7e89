"""From the times of an all-reduce to its report."""

from pathlib import Path

import pytest

from hpcddp.config.layout import ProcessLayout
from hpcddp.measure.allreduce_report import allreduce_document
from hpcddp.measure.collectives import AllReduceTime

SIZES = [1 << power for power in range(10, 29)]


def report(*, slow=1.0, spread=0.0):
    """Of four processes on a link of 1 Gbit/s; the time of 1 MiB is `slow` times what it should be,
    and scatters by `spread`.
    """
    times = []
    for size in SIZES:
        seconds = 5e-4 + size / 1.25e8
        quartiles = (seconds, seconds)
        if size == 1 << 20:
            seconds *= slow
            quartiles = (seconds, seconds * (1 + spread))
        times.append(AllReduceTime(size, seconds, quartiles, n=5, discarded=3))
    return allreduce_document(times, ProcessLayout(world_size=4), "gloo")


def test_the_line_has_algorithm_and_bus_bandwidth():
    fit = report()["fit"]
    assert fit["alpha_s"] == pytest.approx(5e-4)
    assert fit["beta_gb_per_s"] == pytest.approx(0.125)
    assert fit["bus_gb_per_s"] == pytest.approx(0.125 * 2 * 3 / 4)
    assert fit["is_line"]


@pytest.mark.parametrize(("slow", "is_line"), [(1.2, True), (1.5, False), (0.7, False)])
def test_times_that_lie_on_no_line_are_told(slow, is_line):
    fit = report(slow=slow)["fit"]
    assert fit["is_line"] == is_line
    assert (fit["worst_relative_miss"] > 0.25) == (not is_line)


def test_times_that_scatter_are_no_reason_to_doubt_a_line():
    fit = report(slow=1.5, spread=0.5)["fit"]
    assert fit["worst_relative_miss"] > 0.25
    assert fit["is_line"]
    assert not report(slow=1.5, spread=0.2)["fit"]["is_line"]


def test_every_number_of_the_report_is_documented():
    text = (Path(__file__).parents[2] / "docs/allreduce.md").read_text(encoding="utf-8")
    found = report()
    for key in found["fit"]:
        assert f"`fit.{key}`" in text, key
    for key in {*found["rows"][0]} - {"n", "discarded", "seconds_quartile_1", "seconds_quartile_3"}:
        assert f"`rows[].{key}`" in text, key
