"""Variables that nothing reads or that do harm: every row of the table."""

from pathlib import Path

import pytest
import yaml

from hpcddp.cluster.variable_check import variable_warnings

TABLE = Path(__file__).parents[1] / "cases" / "variables.yaml"
CASES = yaml.safe_load(TABLE.read_text(encoding="utf-8"))["cases"]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_variable_passes_or_is_warned_about(case):
    said = variable_warnings({case["name"]: case["value"]})
    if "must_say" not in case:
        assert said == ()
        return
    assert len(said) == 1
    assert said[0].startswith(f"{case['name']}={case['value']}: ")
    assert all(word in said[0] for word in case["must_say"])
    assert said[0][-1] in ".?"


def test_what_the_profile_sets_for_a_reason_passes():
    assert variable_warnings({"NCCL_ALGO": "Tree"}, accepted={"NCCL_ALGO": "Tree"}) == ()
    assert variable_warnings({"NCCL_ALGO": "Ring"}, accepted={"NCCL_ALGO": "Tree"})


def test_no_reason_of_a_profile_makes_anybody_read_a_name():
    (said,) = variable_warnings({}, accepted={"NCCL_SOCKET_IFNAM": "ib0", "NCCL_ALGO": "Tree"})
    assert "did you mean NCCL_SOCKET_IFNAME?" in said
