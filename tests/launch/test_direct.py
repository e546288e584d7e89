"""Runs that nobody submits: what `hpcddp run` writes when its user's own script starts it."""

from hpcddp.launch.direct import open_run
from hpcddp.launch.request import Request

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


def test_an_element_of_an_array_is_a_submission_under_its_own_number(workplace):
    element = {"SLURM_ARRAY_JOB_ID": "30", "SLURM_ARRAY_TASK_ID": "2"}
    assert submissions(workplace, **element) == ["30_2"]
    assert submissions(workplace, **element, SLURM_RESTART_COUNT="1") == ["30_2"]
