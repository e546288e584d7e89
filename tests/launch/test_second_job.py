"""A second job on the run of a living one is refused, and the run's own story does not change."""

import json
import os
import subprocess
import sys

import pytest

from hpcddp.config.layout import ProcessLayout
from hpcddp.config.load import Layer, resolve
from hpcddp.config.write import config_text
from hpcddp.launch.requeue import finish_attempt
from hpcddp.run_dir import RunDir
from hpcddp.train.ownership import Ownership

STEP = {
    "SLURM_JOB_ID": "8",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
    "SLURM_NTASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "HPCDDP_DEVICE": "cpu",
}
STORY = ["submitted", "launched", "started"]


@pytest.fixture
def living(workplace):
    """A run that job 7 trains just now."""
    run_dir = RunDir(workplace / "runs" / "r")
    run_dir.attempt_logs(0).mkdir(parents=True)
    run_dir.attempt_logs(1).mkdir()
    run_dir.config.write_text(config_text(resolve([Layer("test", {"train": {"max_steps": 9}})])))
    for kind in STORY:
        run_dir.append_event(kind, job_id="7", attempt=0, launcher="slurm")
    owner = Ownership(run_dir, ProcessLayout(requeue_target="7", launcher="slurm"))
    owner.claim()
    yield run_dir
    owner.release()


def run_as_job_8(*words):
    return subprocess.run(
        [sys.executable, "-m", "hpcddp", "run", *words],
        env={**os.environ, **STEP, "HPCDDP_ATTEMPT": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def kinds(run_dir):
    return [event["event"] for event in run_dir.read_events()]


@pytest.mark.parametrize("code", [2, 75, 143])
def test_the_script_of_a_living_run_sent_again_says_so_in_its_own_log_only(living, code):
    done = run_as_job_8("--run-dir", str(living.path))
    assert done.returncode == 2
    assert "is being trained by job 7" in done.stderr
    assert finish_attempt(living, code, {"SLURM_JOB_ID": "8", "HPCDDP_ATTEMPT": "1"}) == code
    assert kinds(living) == STORY


def test_a_plain_script_sent_twice_is_no_new_submission_of_the_living_run(living):
    living.config.unlink()  # it is written as this start has it
    done = run_as_job_8("--name", "r", "train.max_steps=9", "--cluster", "local")
    assert done.returncode == 2
    assert "is being trained by job 7" in done.stderr
    assert kinds(living) == STORY
    status = subprocess.run(
        [sys.executable, "-m", "hpcddp", "status", "r", "--json"], capture_output=True, text=True
    )
    assert json.loads(status.stdout)["job_id"] == "7"
