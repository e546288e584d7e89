"""What srun said of an attempt's end, and what the last act makes of it."""

import pytest
from last_act import FIRST, NOT_REACHED, SILENT, srun_said

from hpcddp.launch import order
from hpcddp.launch.requeue import finish_attempt
from hpcddp.launch.watch.failure import failure_log

pytestmark = pytest.mark.usefixtures("slurm_says")


def test_a_torn_line_before_an_attempt_hides_none_of_its_words(own_run):
    with own_run.batch_log.open("a") as log:
        log.write("hpcddp: attempt 0\nsrun: erhpcddp: attempt 1\n")
        log.write("srun: error: gpu-03: task 7: Exited with exit code 9\n")
    assert finish_attempt(own_run, 137, {"HPCDDP_ATTEMPT": "1"}) == 9


def test_what_srun_said_in_another_attempt_is_not_of_this_one(own_run, slurm_says):
    """The disk was full: the script could not write that its second attempt began."""
    srun_said(own_run, 0, "srun: error: gpu-03: task 7: Exited with exit code 9")
    assert finish_attempt(own_run, 75, {"HPCDDP_ATTEMPT": "1"}) == 75
    assert own_run.read_events()[-1]["event"] == "requeued"


def test_the_code_of_the_task_that_failed_first_is_the_jobs(own_run):
    srun_said(own_run, 0, "srun: error: gpu-03: task 7: Exited with exit code 9")
    srun_said(
        own_run,
        1,
        "srun: error: gpu-01: tasks 0,2-3: Exited with exit code 3",
        "srun: error: gpu-02: task 1: Terminated",
    )
    assert finish_attempt(own_run, 143, {"HPCDDP_ATTEMPT": "1"}) == 3
    event = own_run.read_events()[-1]
    assert (event["event"], event["exit_code"]) == ("failed", 3)
    assert event["reason"] == "exit code 3 of tasks 0,2-3 on gpu-01"
    assert failure_log(own_run, own_run.read_events()) == str(own_run.rank_log(1, 0))


AWAY = "srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller"


@pytest.mark.parametrize(
    ("said", "launched", "event"),
    [
        (AWAY, False, "requeued"),
        (AWAY, True, "failed"),  # an srun of somebody else
        (AWAY.replace("Unable to contact slurm controller", "Invalid job id"), False, "failed"),
    ],
)
def test_a_controller_that_is_away_when_srun_starts_costs_an_attempt(
    own_run, run_dir, monkeypatch, slurm_says, naps, said, launched, event
):
    monkeypatch.setattr(order, "_scontrol", lambda words: None)
    back, slurm_says[0] = slurm_says[0], SILENT
    naps.calls = [lambda: slurm_says.insert(0, back)]
    if launched:
        own_run.append_event("launched", attempt=0)
    srun_said(own_run, 0, said)
    finish_attempt(own_run, 1, FIRST)
    told = own_run.read_events()[-1]
    assert (told["event"], naps.count) == (event, int(event == "requeued"))
    assert ("away at the start" in told["reason"]) == (event == "requeued")


@pytest.mark.parametrize(
    ("how", "code"),
    [("Aborted", 134), ("Segmentation fault (core dumped)", 139), ("Killed", 137)],
)
def test_a_task_that_a_signal_ended_first_is_named_with_that_signal(own_run, how, code):
    srun_said(
        own_run,
        0,
        f"srun: error: gpu-02: task 1: {how}",
        "slurmstepd-gpu-01: error: *** STEP 7.0 ON gpu-01 CANCELLED AT 2026-11-30T16:51:22 ***",
        "srun: error: gpu-01: task 0: Terminated",
    )
    assert finish_attempt(own_run, 143, {}) == code
    event = own_run.read_events()[-1]
    assert (event["event"], event["task"]) == ("failed", 1)
    assert event["reason"] == f"exit code {code} of task 1 on gpu-02"


@pytest.mark.parametrize(
    "words",
    [
        ["srun: error: gpu-01: task 0: Terminated", "srun: error: gpu-02: task 1: Killed"],
        ["srun: error: gpu-01: task 0: User defined signal 2"],
        ["srun: error: gpu-01: task 0: Out Of Memory"],
        ["srun: Job step aborted: Waiting up to 12 seconds", "srun: error: n1: task 0: Killed"],
        ["slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED", "srun: error: n1: task 0: Killed"],
        [NOT_REACHED.format("Slurmd could not execve job"), "srun: error: n1: task 0: Killed"],
    ],
)
def test_a_task_that_slurm_has_ended_is_not_named_and_leaves_sruns_code(own_run, words):
    srun_said(own_run, 0, *words)
    assert finish_attempt(own_run, 131, {}) == 131
    assert "task" not in own_run.read_events()[-1]


def test_a_program_that_fails_in_one_task_is_not_revived_for_the_75_of_the_others(own_run):
    srun_said(
        own_run,
        0,
        "srun: error: gpu-01: task 0: Exited with exit code 1",
        "srun: error: gpu-01: task 1: Exited with exit code 75",
    )
    assert finish_attempt(own_run, 75, FIRST) == 1
    assert own_run.handled(0).exists()
    event = own_run.read_events()[-1]
    assert (event["event"], event["exit_code"]) == ("failed", 1)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("srun: error: gpu-01: task 0: Out Of Memory", "out of memory, exit code"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.", "out of memory, exit"),
        ("slurmstepd-g1: error: Detected 1 oom-kill event(s) in StepId=7.0", "out of memory, exit"),
        ("srun: error: gpu-01: task 0: Killed", "exit code"),
        ("loaded module bloom-killer, with room to spare", "exit code"),
        ("RuntimeError: CUDA out of memory", "exit code"),
    ],
)
@pytest.mark.parametrize("code", [1, 137])
def test_a_kill_for_want_of_memory_is_told_from_other_ends(own_run, said, reason, code):
    srun_said(own_run, 0, said)
    finish_attempt(own_run, code, {})
    assert own_run.read_events()[-1]["reason"].startswith(reason)
