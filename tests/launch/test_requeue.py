"""The last act of a batch script: what it records of an attempt, once, and with which code."""

import pytest
from last_act import CANCELLED, COMES_BACK, FIRST, IN_ANY_CASE, PREEMPTED, SILENT, WHILE_IT_RUNS

from hpcddp.config.load import Layer, resolve
from hpcddp.config.write import config_text
from hpcddp.launch import order, requeue
from hpcddp.launch.requeue import finish_attempt
from hpcddp.launch.scheduler import JobInfo
from hpcddp.launch.stop_reason import StopReason

pytestmark = pytest.mark.usefixtures("slurm_says")


def test_why_a_signal_ended_a_program_is_asked_until_slurm_answers(
    run_dir, monkeypatch, slurm_says, naps
):
    """The program has no handler: a preemption is no failure of it."""
    asked, silent_s = [], []
    run_dir.append_event("started", attempt=0)
    preempted = JobInfo("7", state="RUNNING", restarts=0, preempt_time=9.0)
    monkeypatch.setattr(order, "_scontrol", lambda words: asked.append(words))
    slurm_says[0] = SILENT
    naps.calls = [lambda: silent_s.append(5), lambda: slurm_says.insert(0, preempted)]
    assert finish_attempt(run_dir, 143, FIRST) == 75
    assert (asked[0], len(silent_s)) == (WHILE_IT_RUNS, 1)
    assert run_dir.read_events()[-1]["reason"] == "preempted"


@pytest.mark.parametrize(("ranks_say", "event"), [("failed", "failed"), ("stopped", "requeued")])
def test_the_75_of_processes_that_were_ended_for_one_that_failed_is_a_failure(
    run_dir, monkeypatch, ranks_say, event
):
    monkeypatch.setattr(order, "_scontrol", lambda words: None)
    run_dir.append_event("failed", attempt=0, global_rank=1, exit_code=2, error="no data")
    run_dir.append_event(ranks_say, attempt=0, exit_code=1)
    code = finish_attempt(run_dir, 75, FIRST)
    last = run_dir.read_events()[-1]
    assert code == (2 if event == "failed" else 75)
    assert (last["event"], last["exit_code"]) == (event, code)
    assert run_dir.handled(0).exists()


@pytest.mark.parametrize(
    ("failed", "why", "code"),
    [
        (2, StopReason.UNKNOWN, 2),
        (2, StopReason.PREEMPTED, 2),
        (1, StopReason.UNKNOWN, 143),
        (1, StopReason.PREEMPTED, 75),  # it may have lost a peer to the preemption
    ],
)
def test_a_wrong_configuration_is_not_hidden_by_a_process_that_was_ended_while_python_began(
    run_dir, monkeypatch, failed, why, code
):
    monkeypatch.setattr(order, "_scontrol", lambda words: None)
    monkeypatch.setattr(requeue, "settled_reason", lambda *asked: why)
    run_dir.append_event("failed", attempt=0, global_rank=0, exit_code=failed, error="no data")
    assert finish_attempt(run_dir, 143, FIRST) == code


def test_a_failure_behind_a_75_is_tried_again_by_the_last_act_and_not_by_the_script_too(
    run_dir, monkeypatch
):
    asked = []
    values = {"train": {"max_steps": 1}, "requeue": {"max_failures": 1}}
    run_dir.config.write_text(config_text(resolve([Layer("test", values)])))
    run_dir.append_event("failed", attempt=0, global_rank=0, exit_code=1, error="no data")
    monkeypatch.setattr(order, "_scontrol", lambda words: asked.append(words))
    assert finish_attempt(run_dir, 75, FIRST) == 1
    assert asked == [WHILE_IT_RUNS]
    assert run_dir.handled(0).exists()


def test_what_slurm_said_early_counts_when_it_is_silent_later(run_dir, slurm_says, monkeypatch):
    run_dir.append_event("stop_reason", attempt=0, reason="time limit")
    slurm_says[0] = JobInfo("7", reason="no answer")
    monkeypatch.setattr(order, "_scontrol", lambda words: slurm_says.insert(0, COMES_BACK))
    assert finish_attempt(run_dir, 143, {"SLURM_JOB_ID": "7"}, terminated=True) == 75
    event = run_dir.read_events()[-1]
    assert (event["event"], event["reason"]) == ("requeued", "time limit")


@pytest.mark.parametrize("early", [None, "stopped early", "signalled"])
def test_an_end_of_which_slurm_says_nothing_is_not_called_a_cancellation(
    run_dir, slurm_says, early, monkeypatch
):
    """It may be a preemption, after which Slurm starts the job again by itself."""
    monkeypatch.setattr(order, "_scontrol", lambda words: pytest.fail(f"asked for {words}"))
    if early:
        run_dir.append_event("stop_reason", attempt=0, reason=early)
    before, slurm_says[0] = run_dir.read_events(), SILENT
    monkeypatch.setattr(requeue, "_CONTROLLER_AWAY_S", -1.0)
    assert finish_attempt(run_dir, 75, FIRST, terminated=True) == 75
    assert run_dir.read_events() == before
    assert run_dir.handled(0).exists()


@pytest.mark.parametrize("event", ["requeued", "cancelled"])
def test_why_slurm_ends_the_script_is_asked_for_as_long_as_that_lives(
    run_dir, slurm_says, monkeypatch, naps, event
):
    asked, says = [], PREEMPTED if event == "requeued" else CANCELLED
    monkeypatch.setattr(order, "_scontrol", lambda words: asked.append(words))
    slurm_says[0] = SILENT
    naps.calls = [lambda: None, lambda: slurm_says.insert(0, says)]
    finish_attempt(run_dir, 75, FIRST, terminated=True)
    orders = {"requeued": [WHILE_IT_RUNS, IN_ANY_CASE], "cancelled": []}
    assert (asked, naps.count) == (orders[event], 2)
    assert run_dir.read_events()[-1]["event"] == event


def test_a_cancellation_is_recorded_once(run_dir, slurm_says):
    slurm_says[0] = JobInfo("7", state="COMPLETING", restarts=0)
    environ = {"SLURM_JOB_ID": "7", "HPCDDP_ATTEMPT": "3"}
    run_dir.append_event("cancelled", by="ada")  # says nothing of how the attempt ended
    for _ in range(2):
        assert finish_attempt(run_dir, 143, environ, terminated=True) == 143
    told = [event for event in run_dir.read_events() if event.get("attempt") == 3]
    assert [event["event"] for event in told] == ["cancelled"]


@pytest.mark.parametrize(
    ("code", "kinds", "event"),
    [
        (75, ["cancelled"], "cancelled"),
        (0, ["cancelled"], "finished"),  # the last step was done before that was noticed
        (75, ["cancelled", "submitted"], "requeued"),
    ],
)
def test_a_recorded_cancellation_counts_until_the_run_is_sent_again_or_all_is_done(
    run_dir, monkeypatch, code, kinds, event
):
    monkeypatch.setattr(order, "_scontrol", lambda words: None)
    for kind in kinds:
        run_dir.append_event(kind)
    assert finish_attempt(run_dir, code, FIRST) == code
    assert run_dir.read_events()[-1]["event"] == event


def test_a_copy_that_slurm_has_replaced_decides_nothing(run_dir, monkeypatch):
    monkeypatch.setattr(order, "_scontrol", lambda words: pytest.fail(f"asked for {words}"))
    run_dir.append_event("launched", attempt=4, job_id="7")
    before = run_dir.read_events()
    assert finish_attempt(run_dir, 75, {"SLURM_JOB_ID": "7", "HPCDDP_ATTEMPT": "3"}) == 75
    assert run_dir.read_events() == before


def test_a_copy_of_a_job_that_its_user_has_replaced_by_another_decides_nothing(
    run_dir, monkeypatch
):
    monkeypatch.setattr(order, "_scontrol", lambda words: pytest.fail(f"asked for {words}"))
    run_dir.append_event("launched", attempt=0, job_id="7")
    run_dir.append_event("submitted", job_id="8")
    before = run_dir.read_events()
    assert finish_attempt(run_dir, 75, FIRST) == 75
    assert run_dir.read_events() == before


def test_a_job_that_began_before_its_number_was_written_down_is_not_replaced(run_dir, monkeypatch):
    monkeypatch.setattr(order, "_scontrol", lambda words: None)
    run_dir.append_event("launched", attempt=0, job_id="7")
    run_dir.append_event("submitted", job_id="7")
    finish_attempt(run_dir, 75, FIRST)
    assert run_dir.read_events()[-1]["event"] == "requeued"


def test_another_element_of_the_array_does_not_replace_this_one(run_dir, monkeypatch):
    asked = []
    monkeypatch.setattr(order, "_scontrol", lambda words: asked.append(words))
    run_dir.append_event("launched", attempt=4, job_id="7_3")
    array = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    finish_attempt(run_dir, 75, array | {"HPCDDP_ATTEMPT": "3"})
    assert asked == [["requeue", "incomplete", "7_2"]]


def test_a_line_that_is_no_event_is_passed_over(own_run):
    with own_run.events.open("a") as file:
        file.write('{"note": "by hand"}\n')
    assert finish_attempt(own_run, 7, {}) == 7
    assert own_run.read_events()[-1]["event"] == "failed"


def test_a_finished_run_is_recorded_once(run_dir):
    run_dir.append_event("finished", step=1)
    assert finish_attempt(run_dir, 0, {}) == 0
    assert [event["event"] for event in run_dir.read_events()].count("finished") == 1


@pytest.mark.parametrize(("code", "answer"), [(3, 3), (75, 1)])
def test_a_broken_run_directory_keeps_the_exit_code_and_never_claims_a_requeue(
    tmp_path, capsys, code, answer
):
    words = ["--run-dir", str(tmp_path / "gone"), "--exit-code", str(code)]
    assert requeue.main(words) == answer
    assert "gone" in capsys.readouterr().err
