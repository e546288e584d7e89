"""A made-up comparison."""

import copy
from pathlib import Path

import pytest
import yaml

CASES = Path(__file__).parents[1] / "cases"


@pytest.fixture
def document():
    """The made-up compare.json; a test may change it."""
    text = (CASES / "compare_document.yaml").read_text(encoding="utf-8")
    return copy.deepcopy(yaml.safe_load(text))


@pytest.fixture
def bandwidths():
    """A made-up allreduce.json of four sizes on a perfect line."""
    sizes = (1 << 10, 1 << 15, 1 << 20, 1 << 25)
    times = [1e-3 + size / 1e9 for size in sizes]
    rows = [
        {"bytes": size, "seconds": t, "algbw_gb_per_s": size / t / 1e9, "n": 9, "discarded": 3,
         "busbw_gb_per_s": 1.5 * size / t / 1e9, "seconds_quartile_1": 0.9 * t,
         "seconds_quartile_3": 1.2 * t}
        for size, t in zip(sizes, times, strict=True)
    ]  # fmt: skip
    fit = {"alpha_s": 1e-3, "beta_gb_per_s": 1.0, "bus_gb_per_s": 1.5, "worst_relative_miss": 0.0}
    return {"backend": "gloo", "world_size": 4, "nodes": 2, "hosts": ["a", "b"], "rows": rows,
            "fit": fit, "versions": {"torch": "0.0"}, "device": "CPU"}  # fmt: skip
