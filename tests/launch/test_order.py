"""The order to requeue this job, and what Slurm made of it."""

import dataclasses

import pytest
from last_act import (
    CANCELLED,
    COMES_BACK,
    FIRST,
    IN_ANY_CASE,
    ONE_STEP,
    PREEMPTED,
    RUNS,
    SILENT,
    WHILE_IT_RUNS,
)

from hpcddp.config.load import Layer, resolve
from hpcddp.config.write import config_text
from hpcddp.launch import order, requeue, stop_reason
from hpcddp.launch.requeue import finish_attempt
from hpcddp.launch.scheduler import JobInfo

pytestmark = pytest.mark.usefixtures("slurm_says")


def test_requeue_is_recorded_before_slurm_is_asked_since_it_kills_the_job(run_dir, monkeypatch):
    asked = []

    def scontrol(words):
        asked.append((words, run_dir.read_events()[-1]["event"]))

    monkeypatch.setattr(order, "_scontrol", scontrol)
    assert finish_attempt(run_dir, 75, {"SLURM_JOB_ID": "7", "HPCDDP_ATTEMPT": "3"}) == 75
    assert asked == [(WHILE_IT_RUNS, "requeued")]
    assert run_dir.read_events()[-1]["attempt"] == 3


def test_only_the_own_element_of_an_array_is_requeued(run_dir, monkeypatch):
    asked = []
    monkeypatch.setattr(order, "_scontrol", lambda words: asked.append(words))
    array = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    finish_attempt(run_dir, 75, array)
    assert asked == [["requeue", "incomplete", "7_2"]]


def test_where_requeueing_is_disabled_it_is_allowed_first(run_dir, monkeypatch):
    asked = []

    def scontrol(words):
        asked.append(words)
        return "Requested operation is presently disabled" if len(asked) == 1 else None

    monkeypatch.setattr(order, "_scontrol", scontrol)
    assert finish_attempt(run_dir, 75, {"SLURM_JOB_ID": "7"}) == 75
    assert asked == [WHILE_IT_RUNS, ["update", "jobid=7", "requeue=1"], WHILE_IT_RUNS]


def test_a_refused_requeue_is_a_recorded_failure(run_dir, monkeypatch, capsys):
    monkeypatch.setattr(order, "_scontrol", lambda words: "no such job")
    finish_attempt(run_dir, 75, {"SLURM_JOB_ID": "7"})
    assert run_dir.read_events()[-1]["event"] == "failed"
    assert "no new job either" in run_dir.read_events()[-1]["reason"]
    assert "no new job either" in capsys.readouterr().err


def test_an_absent_controller_is_waited_for(run_dir, monkeypatch, slurm_says, naps):
    asked, back = [], slurm_says[0]
    monkeypatch.setattr(order, "_scontrol", lambda words: asked.append((words, naps.count)))
    slurm_says[0] = SILENT
    naps.calls = [lambda: None, lambda: slurm_says.insert(0, back)]
    assert finish_attempt(run_dir, 75, {"SLURM_JOB_ID": "7"}) == 75
    assert asked == [(WHILE_IT_RUNS, 2)]


def test_what_is_cancelled_while_the_controller_is_away_stays_so(
    run_dir, monkeypatch, slurm_says, naps
):
    monkeypatch.setattr(order, "_scontrol", lambda words: pytest.fail(f"asked for {words}"))
    slurm_says[0] = SILENT
    naps.calls = [lambda: run_dir.append_event("cancelled", by="ada")]
    finish_attempt(run_dir, 75, {"SLURM_JOB_ID": "7"})
    assert run_dir.read_events()[-1]["event"] == "cancelled"


def test_a_controller_that_stays_away_is_left_to_the_script_and_no_new_job_is_sent(
    run_dir, monkeypatch, slurm_says, naps
):
    monkeypatch.setattr(requeue, "_CONTROLLER_AWAY_S", 0.0)
    monkeypatch.setattr(order, "_scontrol", lambda words: SILENT.reason)
    monkeypatch.setattr(requeue, "send_anew", lambda *_: pytest.fail("sent anew"))
    slurm_says[0] = SILENT
    assert finish_attempt(run_dir, 75, FIRST) == 75
    reason = run_dir.read_events()[-1]["reason"]
    assert reason.startswith("Slurm did not answer the order to requeue: Unable to contact")
    assert not run_dir.handled(0).exists()


TOO_LATE = "Job is pending execution"


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        (["timed out"], [COMES_BACK]),  # heard although nobody answered
        (["timed out"], [SILENT, SILENT, COMES_BACK]),
        (["timed out", None], [RUNS, COMES_BACK]),  # not heard
        (["timed out", "timed out", None], [RUNS, RUNS, COMES_BACK]),
        # heard so late that the second order came to a job that waits already
        (["timed out", TOO_LATE, TOO_LATE], [RUNS, COMES_BACK]),
    ],
)
def test_an_order_that_slurm_did_not_answer_may_have_been_heard(
    run_dir, monkeypatch, naps, answers, says
):
    answers, says = [*answers], [RUNS, *says]
    monkeypatch.setattr(stop_reason, "show_job", lambda job_id: says.pop(0))
    monkeypatch.setattr(
        order, "_scontrol", lambda words: answers.pop(0) if words[0] == "requeue" else None
    )
    monkeypatch.setattr(requeue, "send_anew", lambda *_: pytest.fail("sent anew"))
    assert finish_attempt(run_dir, 75, FIRST) == 75
    assert (answers, says) == ([], [])
    assert run_dir.read_events()[-1]["event"] == "requeued"
    assert run_dir.handled(0).exists()


@pytest.mark.parametrize("first", [None, "timed out"])
@pytest.mark.parametrize(
    ("says", "asked", "event"),
    [
        ([CANCELLED], [WHILE_IT_RUNS], "cancelled"),
        ([PREEMPTED], [WHILE_IT_RUNS, IN_ANY_CASE], "requeued"),
        ([JobInfo("7", state="TIMEOUT")], [WHILE_IT_RUNS, IN_ANY_CASE], "requeued"),
    ],
)
def test_what_ends_between_the_question_and_the_order_comes_back_unless_its_user_wants_it_to_end(
    run_dir, monkeypatch, naps, first, says, asked, event
):
    """Slurm revives a job that is cancelled already, for half a minute and longer."""
    says = [RUNS, *says, *(says if first and event == "requeued" else [])]
    answers, orders = [first, None, None], []
    monkeypatch.setattr(stop_reason, "show_job", lambda job_id: says.pop(0))
    monkeypatch.setattr(order, "_scontrol", lambda words: orders.append(words) or answers.pop(0))
    finish_attempt(run_dir, 75, FIRST)
    again = [WHILE_IT_RUNS] if first and event == "requeued" else []
    assert (orders, says) == ([*again, *asked], [])
    assert run_dir.read_events()[-1]["event"] == event
    assert run_dir.handled(0).exists()


def test_an_order_that_a_requeue_by_slurm_itself_has_overtaken_is_no_failure(run_dir, monkeypatch):
    says, answers = [RUNS, PREEMPTED, COMES_BACK], [None, TOO_LATE, None, TOO_LATE]
    monkeypatch.setattr(stop_reason, "show_job", lambda job_id: says.pop(0))
    monkeypatch.setattr(order, "_scontrol", lambda words: answers.pop(0))
    monkeypatch.setattr(requeue, "send_anew", lambda *_: pytest.fail("sent anew"))
    assert finish_attempt(run_dir, 75, FIRST) == 75
    assert run_dir.read_events()[-1]["event"] == "requeued"


@pytest.mark.parametrize(
    ("then", "away_s", "orders", "num_naps"),
    [
        (PREEMPTED, 900.0, [WHILE_IT_RUNS, IN_ANY_CASE], 2),
        (COMES_BACK, 900.0, [WHILE_IT_RUNS], 2),
        (None, -1.0, [WHILE_IT_RUNS], 0),
    ],
)
def test_what_slurm_made_of_an_accepted_order_is_asked_until_it_answers_or_the_order_stands(
    run_dir, monkeypatch, naps, then, away_s, orders, num_naps
):
    says, asked = [RUNS, SILENT, *([SILENT, then] if then else [])], []
    run_dir.append_event("stop_reason", attempt=0, reason="preempted", end_time=1.0)
    monkeypatch.setattr(requeue, "_CONTROLLER_AWAY_S", away_s)
    monkeypatch.setattr(stop_reason, "show_job", lambda job_id: says.pop(0))
    monkeypatch.setattr(order, "_scontrol", lambda words: asked.append(words))
    assert finish_attempt(run_dir, 75, FIRST) == 75
    assert (asked, says, naps.count) == (orders, [], num_naps)
    assert run_dir.read_events()[-1]["event"] == "requeued"


@pytest.mark.parametrize("terminated", [True, False])
def test_nobody_waits_for_slurm_in_the_final_kill_or_where_it_has_no_tools(
    run_dir, monkeypatch, slurm_says, naps, terminated
):
    run_dir.append_event("stop_reason", attempt=0, reason="preempted")
    monkeypatch.setattr(order, "_scontrol", lambda words: slurm_says.insert(0, COMES_BACK))
    slurm_says[0] = SILENT if terminated else JobInfo("7", reason="`scontrol` was not found")
    finish_attempt(run_dir, 75, {"SLURM_JOB_ID": "7"}, terminated=terminated)
    assert (naps.count, run_dir.read_events()[-1]["event"]) == (0, "requeued")


def test_what_slurm_has_requeued_already_is_left_alone(run_dir, monkeypatch, slurm_says):
    slurm_says[0] = JobInfo("7", state="COMPLETING", restarts=1)
    monkeypatch.setattr(order, "_scontrol", lambda words: pytest.fail(f"asked for {words}"))
    assert finish_attempt(run_dir, 75, {"SLURM_JOB_ID": "7"}) == 75
    event = run_dir.read_events()[-1]
    assert (event["event"], event["reason"]) == ("requeued", "requeued by Slurm")


def test_a_call_that_was_ended_with_its_order_unanswered_is_made_again_if_the_job_was_preempted(
    run_dir, slurm_says, monkeypatch
):
    asked = []
    monkeypatch.setattr(order, "_scontrol", lambda words: asked.append(words))
    monkeypatch.setattr(requeue, "_CONTROLLER_AWAY_S", -1.0)
    run_dir.append_event("stop_reason", attempt=0, reason="preempted", end_time=1.0)
    run_dir.append_event("requeued", attempt=0, reason="preempted", exit_code=75)
    slurm_says[0] = SILENT
    assert finish_attempt(run_dir, 75, FIRST, terminated=True) == 75
    assert asked == [WHILE_IT_RUNS]


def test_a_call_that_its_own_requeue_ended_is_not_made_twice(run_dir, monkeypatch):
    monkeypatch.setattr(order, "_scontrol", lambda words: None)
    environ = {"SLURM_JOB_ID": "7", "HPCDDP_ATTEMPT": "3"}
    finish_attempt(run_dir, 75, environ)
    assert finish_attempt(run_dir, 75, environ, terminated=True) == 75
    assert [event["event"] for event in run_dir.read_events()].count("requeued") == 1


@pytest.mark.parametrize("code", [75, 1])  # a stop, and a failure that may be tried again once
def test_a_call_that_slurm_ended_before_it_heard_of_the_requeue_is_made_again(
    run_dir, monkeypatch, slurm_says, code
):
    run_dir.config.write_text(
        config_text(resolve([Layer("test", {"requeue": {"max_failures": 1}, **ONE_STEP})]))
    )
    asked = []
    monkeypatch.setattr(order, "_scontrol", lambda words: asked.append(words))
    finish_attempt(run_dir, code, FIRST)
    slurm_says[0] = PREEMPTED
    assert finish_attempt(run_dir, code, FIRST, terminated=True) == code
    assert asked == [WHILE_IT_RUNS, WHILE_IT_RUNS, IN_ANY_CASE]
    assert [e["event"] for e in run_dir.read_events()] == ["submitted", "started", "requeued"]


def test_a_requeue_that_slurm_hears_after_the_call_for_it_was_ended_is_the_only_one(
    run_dir, monkeypatch
):
    says = [PREEMPTED, dataclasses.replace(PREEMPTED, restarts=1)]
    monkeypatch.setattr(stop_reason, "show_job", lambda job_id: says.pop(0))
    monkeypatch.setattr(order, "_scontrol", lambda words: "Job is pending execution for job 7")
    monkeypatch.setattr(requeue, "send_anew", lambda *_: pytest.fail("sent anew"))
    run_dir.append_event("requeued", attempt=0, reason="signalled", exit_code=75)
    assert finish_attempt(run_dir, 75, FIRST, terminated=True) == 75
    assert run_dir.read_events()[-1]["event"] == "requeued"


def test_a_call_that_a_cancellation_ended_before_slurm_heard_of_the_requeue_says_so(
    run_dir, monkeypatch, slurm_says
):
    asked = []
    monkeypatch.setattr(order, "_scontrol", lambda words: asked.append(words))
    finish_attempt(run_dir, 75, FIRST)
    slurm_says[0] = JobInfo("7", state="COMPLETING", restarts=0)
    finish_attempt(run_dir, 75, FIRST, terminated=True)
    assert asked == [WHILE_IT_RUNS]
    assert [e["event"] for e in run_dir.read_events()][-2:] == ["requeued", "cancelled"]
