"""All processes that a user starts himself agree on one run, and on its settings."""

import json
import time
from pathlib import Path

import pytest

from hpcddp.cluster import detect
from hpcddp.errors import ConfigError, HpcddpError
from hpcddp.launch import direct
from hpcddp.launch.direct import open_run as open_without_a_word
from hpcddp.launch.request import Request

SECOND_OF_TWO = {
    "TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
}  # fmt: skip
FIRST_OF_TWO = SECOND_OF_TWO | {"RANK": "0", "LOCAL_RANK": "0"}
TASK = {"SLURM_JOB_ID": "7", "HPCDDP_LAUNCHER": "single"}
STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
    "SLURM_NTASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "HPCDDP_DEVICE": "cpu",
}


def open_run(request, name, environ):
    """As a job does, which records its start once the run is its own."""
    run_dir, submitted = open_without_a_word(request, name, environ)
    if submitted:
        run_dir.append_event("submitted", **submitted)
    return run_dir


@pytest.mark.parametrize(
    ("name", "environ", "expected"),
    [
        ("mine", {}, "mine"),
        (None, TASK, "digits-7"),
        (None, TASK | {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"}, "digits-5_2"),
        (None, FIRST_OF_TWO | {"TORCHELASTIC_RUN_ID": "x1"}, "digits-x1"),
    ],
)
def test_a_requeued_job_and_every_worker_find_the_same_name(workplace, name, environ, expected):
    run_dir = open_run(Request(), name, environ)
    assert run_dir.path == workplace / "runs" / expected
    assert open_run(Request(), name, environ) == run_dir


def test_two_processes_of_one_second_are_two_runs(workplace, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda *_: "20261130-110000")
    names = [open_run(Request(), None, {}).name for _ in range(3)]
    assert names == [f"digits-20261130-110000{more}" for more in ("", "-2", "-3")]


def test_processes_without_a_common_name_are_refused(workplace):
    with pytest.raises(HpcddpError, match=r"no --rdzv-id. Add `--name RUN`"):
        open_run(Request(), None, FIRST_OF_TWO)


def test_the_main_process_writes_what_submit_would_have_written(workplace):
    run_dir = open_run(Request(), "r", FIRST_OF_TWO)
    assert json.loads(run_dir.code.read_text())["work_dir"] == str(workplace)
    [event] = run_dir.read_events()
    assert (event["event"], event["launcher"]) == ("submitted", "torchrun")
    assert (event["nodes"], event["processes_per_node"]) == (1, 2)


def test_another_start_must_have_the_same_settings(workplace):
    open_run(Request(overrides=("optim.lr=0.1",)), "r", {})
    with pytest.raises(ConfigError, match="exists with other settings"):
        open_run(Request(overrides=("optim.lr=0.2",)), "r", {})


def test_the_others_wait_for_the_main_process_and_say_where(workplace, monkeypatch):
    monkeypatch.setattr(direct, "_WAIT_FOR_MAIN_S", 0.2)
    with pytest.raises(ConfigError, match=r"config\.yaml did not appear.*HPCDDP_RUNS_DIR"):
        open_run(Request(), "r", SECOND_OF_TWO)
    assert not (workplace / "runs").exists()
    first = open_run(Request(), "r", FIRST_OF_TWO)
    assert open_run(Request(), "r", SECOND_OF_TWO) == first


def submissions(workplace, **more):
    """The jobs that the run was sent as, after one more start of it."""
    environ = {**STEP, "HPCDDP_RUNS_DIR": str(workplace / "runs"), **more}
    run_dir = open_run(Request(command=("true",)), "demo", environ)
    return [e["job_id"] for e in run_dir.read_events() if e["event"] == "submitted"]


def test_a_start_by_slurm_is_no_new_submission_but_another_job_is(workplace):
    assert submissions(workplace) == ["7"]
    assert submissions(workplace, SLURM_RESTART_COUNT="1") == ["7"]
    assert submissions(workplace, SLURM_JOB_ID="8") == ["7", "8"]
    assert submissions(workplace, SLURM_JOB_ID="9", SLURM_RESTART_COUNT="1") == ["7", "8", "9"]


def test_a_torchrun_inside_a_slurm_job_can_be_asked_about_there(workplace):
    worker = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    worker |= {"GROUP_RANK": "0", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
    outside = {**worker, "TORCHELASTIC_RUN_ID": "x", "HPCDDP_DEVICE": "cpu"}
    told = []
    for name, environ in {"a": outside, "b": {**STEP, **outside}}.items():
        environ["HPCDDP_RUNS_DIR"] = str(workplace / "runs")
        [event] = open_run(Request(command=("true",)), name, environ).read_events()
        told.append((event["launcher"], event["job_id"].partition("-")[0]))
    assert told == [("torchrun", "pid"), ("slurm", "7")]
    environ["TORCHELASTIC_RESTART_COUNT"] = "1"  # torchrun starts its workers again by itself
    assert len(open_run(Request(command=("true",)), "b", environ).read_events()) == 1


def test_an_element_of_an_array_is_a_submission_under_its_own_number(workplace):
    element = {"SLURM_ARRAY_JOB_ID": "30", "SLURM_ARRAY_TASK_ID": "2"}
    assert submissions(workplace, **element) == ["30_2"]
    assert submissions(workplace, **element, SLURM_RESTART_COUNT="1") == ["30_2"]


@pytest.mark.parametrize(
    ("more", "cluster"),
    [
        ({"SLURM_CLUSTER_NAME": "big"}, "big"),
        ({"SLURM_CONF": "big.conf"}, "big"),
        ({}, "slurm"),
        ({"SLURM_CLUSTER_NAME": "big", "HPCDDP_CLUSTER": "generic-cpu"}, "generic-cpu"),
    ],
)
def test_a_start_below_slurm_is_told_to_be_on_its_cluster(workplace, monkeypatch, more, cluster):
    monkeypatch.setattr(detect, "_CONF_FILES", ())  # this machine may have one
    Path("big.conf").write_text("ClusterName=big\n")
    [event] = open_run(Request(command=("true",)), "demo", {**STEP, **more}).read_events()
    assert event["cluster"] == cluster


def test_a_start_without_slurm_is_told_to_be_on_this_machine(workplace):
    [event] = open_run(Request(), "r", {"SLURM_CLUSTER_NAME": "big"}).read_events()
    assert event["cluster"] == "local"
