"""A second job on the run of a living one is refused, and the run's own story does not change."""

import json
import os
import subprocess
import sys

import pytest
from test_direct import STEP as STEP_OF_7

from hpcddp.config.layout import ProcessLayout
from hpcddp.config.load import Layer, resolve
from hpcddp.config.write import config_text
from hpcddp.errors import HpcddpError
from hpcddp.launch import order, stop_reason
from hpcddp.launch.failure import fail
from hpcddp.launch.refusal import refusal_code
from hpcddp.launch.requeue import finish_attempt
from hpcddp.launch.scheduler import JobInfo
from hpcddp.run_dir import RunDir
from hpcddp.train.ownership import Ownership

STEP = STEP_OF_7 | {"SLURM_JOB_ID": "8"}
STORY = ["submitted", "launched", "started"]
NOT_MET = HpcddpError("rank 0 did not come", "rendezvous")


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


def run_as_job_8(*words, attempt="1"):
    numbered = {"HPCDDP_ATTEMPT": attempt} if attempt else {}
    return subprocess.run(
        [sys.executable, "-m", "hpcddp", "run", *words],
        env={**os.environ, **STEP, **numbered},
        capture_output=True,
        text=True,
        timeout=120,
    )


def kinds(run_dir):
    return [event["event"] for event in run_dir.read_events()]


@pytest.mark.parametrize("code", [2, 75, 143])
def test_the_script_of_a_living_run_sent_again_says_so_in_its_own_log_only(living, code):
    done = run_as_job_8("--run-dir", str(living.path))
    assert done.returncode == 2
    assert "is being trained by job 7" in done.stderr
    assert finish_attempt(living, code, {"SLURM_JOB_ID": "8", "HPCDDP_ATTEMPT": "1"}) == 2
    assert living.handled(1).exists()
    assert kinds(living) == STORY


@pytest.mark.parametrize("attempt", [None, "0"], ids=["a-line-of-ones-own", "the-same-number"])
def test_a_refused_start_does_not_keep_the_living_job_from_its_requeue(
    living, monkeypatch, attempt
):
    assert run_as_job_8("--run-dir", str(living.path), attempt=attempt).returncode == 2
    asked = []
    monkeypatch.setattr(order, "_scontrol", lambda words: asked.append(words))
    monkeypatch.setattr(stop_reason, "show_job", lambda job_id: JobInfo("7", state="RUNNING"))
    assert finish_attempt(living, 75, {"SLURM_JOB_ID": "7", "HPCDDP_ATTEMPT": "0"}) == 75
    assert asked == [["requeue", "incomplete", "7"]]
    assert kinds(living) == [*STORY, "requeued"]


def test_a_refusal_that_cannot_be_noted_ends_the_process_all_the_same(living):
    living.refusal(1).mkdir()
    done = run_as_job_8("--run-dir", str(living.path))
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


@pytest.mark.parametrize("error", [NOT_MET, RuntimeError("no such device")])
@pytest.mark.parametrize(("job", "is_told"), [("8", False), ("7", True)])
def test_who_fails_while_another_job_trains_the_run_tells_nothing_of_it(
    living, job, is_told, error
):
    place = ProcessLayout(1, 2, launcher="slurm", requeue_target=job)
    assert fail(error, living, place, {}) == 1
    assert kinds(living) == [*STORY, *["failed"] * is_told]


def test_the_story_of_a_run_whose_owner_was_killed_is_told_by_the_next_job(living):
    owner = living.path / "owner.json"
    owner.write_text(json.dumps(json.loads(owner.read_text()) | {"process_start": "1"}))
    place = ProcessLayout(1, 2, launcher="slurm", requeue_target="8", attempt=1)
    environ = {"SLURM_JOB_ID": "8", "HPCDDP_ATTEMPT": "1"}
    assert fail(NOT_MET, living, place, environ) == 1
    assert kinds(living) == [*STORY, "failed"]
    assert refusal_code(living, 1, environ) is None


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
