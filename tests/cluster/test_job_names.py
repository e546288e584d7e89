"""What `scontrol requeue` is given, and what counts as being in a step."""

from pathlib import Path

import pytest
import yaml

from hpcddp.cluster.job_names import in_step, job_key, requeue_target, restart_count
from hpcddp.errors import HpcddpError

CASES = yaml.safe_load(
    (Path(__file__).parents[1] / "cases" / "requeue_targets.yaml").read_text(encoding="utf-8")
)["cases"]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_requeue_target_names_exactly_this_job(case):
    if "error" not in case:
        assert requeue_target(case["environ"]) == case["target"]
        return
    with pytest.raises(HpcddpError) as caught:
        requeue_target(case["environ"])
    assert caught.value.code == case["error"]


@pytest.mark.parametrize(
    ("environ", "answer"),
    [
        ({"SLURM_STEP_ID": "0"}, True),
        ({"SLURM_STEPID": "3"}, True),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"}, False),
        ({"SLURM_STEP_ID": ""}, False),
        ({"SLURM_STEP_ID": str(0xFFFFFFFA)}, False),  # the shell of salloc
        ({"SLURM_STEP_ID": str(0xFFFFFFFB)}, False),  # the batch script
        ({"SLURM_STEP_ID": str(0xFFFFFFFC)}, False),  # external processes
    ],
)
def test_only_a_numbered_step_is_a_step(environ, answer):
    assert in_step(environ) is answer


def test_the_job_key_tells_steps_and_array_elements_apart():
    job = {"SLURM_JOB_ID": "40", "SLURM_ARRAY_JOB_ID": "38", "SLURM_ARRAY_TASK_ID": "1"}
    assert job_key(job) == "38_1"
    assert job_key({**job, "SLURM_STEP_ID": "2"}) == "38_1.2"


def test_the_restart_count_is_zero_on_the_first_start():
    assert restart_count({}) == 0
    assert restart_count({"SLURM_RESTART_COUNT": "3"}) == 3
