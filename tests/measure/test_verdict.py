"""What is said of comparisons, case by case: tests/cases/verdicts.yaml."""

from pathlib import Path

import pytest
import yaml

from hpcddp.measure.evidence import Circumstances
from hpcddp.measure.scaling import median, spread_of
from hpcddp.measure.verdict import verdict_of, verdict_of_sweep

CASES = yaml.safe_load((Path(__file__).parents[1] / "cases/verdicts.yaml").read_text())


def row(mode, devices, ms, *, images=64, setting=None, phases=None, **given):
    """A row of a comparison as far as verdicts read it."""
    seconds = [value / 1000 for value in ms]
    return {
        "mode": mode,
        "devices": devices,
        "setting": setting or {},
        "global_batch": images,
        "n": 10 * len(ms),
        "step_s_median": median(seconds),
        "step_s_iqr": spread_of(seconds).iqr,
        "round_s_medians": seconds,
        "images_per_s": images / median(seconds),
        "comm_fraction": given.get("comm", 0.0),
        "exposed_comm_fraction": given.get("exposed", given.get("comm", 0.0)),
        "no_sync_exposed_fraction": given.get("no_sync"),
        "no_sync_exposed_interval": given.get("no_sync_between"),
        "memory_imbalance": given.get("memory_imbalance"),
        "gpu_utilisation": given.get("use"),
        "cpu_s_per_step_per_process": [value / 1000 for value in given.get("cpu_ms", ())],
        "exposed_comm_s_per_process": [value / 1000 for value in given.get("waits", ())],
        "phases": {name: value / 1000 for name, value in (phases or {}).items()},
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_what_is_said_of_a_comparison(case):
    rows = [row(**given) for given in case["rows"]]
    where = Circumstances(
        case.get("backend", "nccl"), case.get("cpus_are_shared", False), case.get("have_peers")
    )
    if "base" in case:
        index = [each["setting"] == case["base"] for each in rows].index(True)
        verdict = verdict_of_sweep(rows, index, where, is_own=case.get("is_own", True))
    else:
        verdict = verdict_of(rows, where)
    for part in case["says"]:
        assert part in verdict.words
    assert (verdict.confidence, verdict.within_noise) == (case["confidence"], case["within_noise"])
    for part in case.get("evidence", ()):
        assert any(part in line for line in verdict.evidence), verdict.evidence
    for part in case.get("silent", ()):
        assert part not in "\n".join([verdict.words, *verdict.evidence])
    assert all(verdict.evidence)
    assert "inf" not in " ".join([verdict.words, *verdict.evidence])
