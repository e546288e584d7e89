"""Whether a run starts again: a pure decision over srun's exit code and the run's history."""

import dataclasses
import errno
import re
import shutil
import signal
import socket
import time
from functools import partial
from types import SimpleNamespace

import pytest

from hpcddp.config.load import Layer, resolve
from hpcddp.config.schema import RequeueConfig
from hpcddp.config.write import config_text
from hpcddp.errors import SubmissionFailed
from hpcddp.launch import decision as rules
from hpcddp.launch import exclusion, order, requeue, slurm, stop_reason, takeover
from hpcddp.launch.decision import Ending
from hpcddp.launch.history import since_sent
from hpcddp.launch.requeue import finish_attempt
from hpcddp.launch.scheduler import JobInfo
from hpcddp.launch.stop_reason import StopReason
from hpcddp.launch.watch.failure import failure_log
from hpcddp.run_dir import RunDir

ONE_STEP = {"train": {"max_steps": 1}}


def decide(exit_code, events, budget, why=StopReason.UNKNOWN, *, terminated=False):
    attempt = max((event.get("attempt", 0) for event in events), default=0)
    ending = Ending(exit_code, attempt, why, terminated)
    return rules.decide(ending, since_sent(events), budget)


def history(*kinds):
    """Events from words such as `started` or `checkpoint:20`; each `begun` is a new attempt, and
    so is a `started` after another one.
    """
    events, attempt, has_started = [], 0, False
    for word in kinds:
        kind, _, step = word.partition(":")
        attempt += kind == "begun" or (kind == "started" and has_started)
        has_started = kind == "started" or (has_started and kind != "begun")
        events.append({"event": kind, "attempt": attempt, **({"step": int(step)} if step else {})})
    return events


@pytest.mark.parametrize(
    ("exit_code", "kinds", "event", "code"),
    [
        (0, ["submitted", "started"], "finished", 0),
        (75, ["submitted", "started", "checkpoint:5", "stopped:5"], "requeued", 75),
        # kill-on-bad-exit ended a process that was slower to leave; all is saved
        (137, ["submitted", "started", "checkpoint:5", "stopped:5"], "requeued", 75),
        (137, ["submitted", "started", "checkpoint:5"], "failed", 137),
        # `stopped` of an earlier attempt says nothing of this one
        (137, ["started", "checkpoint:5", "stopped:5", "requeued", "started"], "failed", 137),
        # nor does it where this attempt was killed before it could start
        (137, ["started", "checkpoint:5", "stopped:5", "requeued", "begun"], "failed", 137),
        # SIGTERM came while Python was starting up: no handler, nothing lost
        (143, ["submitted"], "requeued", 75),
        (143, ["started", "checkpoint:5", "stopped:5", "requeued", "begun"], "requeued", 75),
        (143, ["submitted", "started"], "failed", 143),
        (1, ["submitted", "started"], "failed", 1),
        (2, ["submitted"], "failed", 2),
    ],
)
def test_the_decision_follows_exit_code_and_history(exit_code, kinds, event, code):
    decision = decide(exit_code, history(*kinds), RequeueConfig())
    assert (decision.event, decision.exit_code) == (event, code)


def test_attempts_without_progress_end_the_run():
    idle = ["submitted", "started", "checkpoint:4", *["started", "stopped:4"] * 3]
    decision = decide(75, history(*idle), RequeueConfig(max_without_progress=3))
    assert decision.event == "failed"
    assert "3 attempts in a row made no progress" in decision.reason
    assert decide(75, history(*idle), RequeueConfig(max_without_progress=4)).event == "requeued"
    assert decide(75, history(*idle), RequeueConfig(max_without_progress=0)).event == "requeued"


def test_saving_the_same_step_again_is_no_progress():
    again = ["started", "checkpoint:4", *["started", "checkpoint:4", "stopped:4"] * 3]
    assert decide(75, history(*again), RequeueConfig(max_without_progress=3)).event == "failed"


def test_a_resume_by_hand_begins_a_new_budget_and_a_new_job_by_itself_does_not():
    idle = [{"event": "submitted"}, *history("started", "stopped:4", "started", "stopped:4")]
    budget = RequeueConfig(max_without_progress=3)
    one_more = history("started", "stopped:4")
    by_itself = {"event": "submitted", "again": True}
    assert decide(75, [*idle, by_itself, *one_more], budget).event == "failed"
    assert decide(75, [*idle, {"event": "submitted"}, *one_more], budget).event == "requeued"


def test_failures_have_a_budget_of_their_own():
    budget = RequeueConfig(max_failures=2)
    first = decide(1, history("submitted", "started"), budget)
    assert (first.event, first.exit_code) == ("requeued", 1)
    used = [*history("submitted"), *[{"event": "requeued", "failure": 1}] * 2]
    assert decide(1, used, budget).event == "failed"


def test_a_job_that_slurm_says_is_cancelled_is_never_requeued():
    saved = history("submitted", "started", "checkpoint:5", "stopped:5")
    decision = decide(75, saved, RequeueConfig(), StopReason.CANCELLED)
    assert (decision.event, decision.exit_code) == ("cancelled", 75)


@pytest.mark.parametrize(
    ("why", "event"),
    [
        (StopReason.UNKNOWN, "cancelled"),
        (StopReason.SIGNALLED, "cancelled"),
        (StopReason.PREEMPTED, "requeued"),
        (StopReason.TIME_LIMIT, "requeued"),
        (StopReason.REQUEUED, "requeued"),
    ],
)
def test_a_job_that_slurm_ends_for_no_known_reason_is_not_revived(why, event):
    saved = history("submitted", "started", "checkpoint:5", "stopped:5")
    assert decide(75, saved, RequeueConfig(), why, terminated=True).event == event


@pytest.mark.parametrize("code", [1, 75, 137])
def test_what_a_lost_node_ends_where_slurm_may_not_requeue_goes_on_whatever_the_code(code):
    decision = decide(
        code, history("started"), RequeueConfig(), StopReason.NODE_FAILURE, terminated=True
    )
    assert (decision.event, decision.reason, decision.exit_code) == (
        *("requeued", "node failure"),
        75,
    )


@pytest.mark.parametrize("code", [1, 9, 137, 143])
def test_what_slurm_requeues_by_itself_is_no_failure_whatever_the_code(code):
    decision = decide(code, history("submitted", "started"), RequeueConfig(), StopReason.REQUEUED)
    assert (decision.event, decision.reason) == ("requeued", "requeued by Slurm")
    assert decision.exit_code != 0


def test_a_program_without_a_handler_that_is_preempted_goes_on():
    started = history("submitted", "started")
    assert decide(143, started, RequeueConfig(), StopReason.PREEMPTED).event == "requeued"
    assert decide(140, started, RequeueConfig(), StopReason.TIME_LIMIT).event == "requeued"
    assert decide(139, started, RequeueConfig(), StopReason.PREEMPTED).event == "failed"


@pytest.mark.parametrize(
    ("kinds", "why", "event"),
    [
        (["submitted", "begun"], StopReason.PREEMPTED, "requeued"),
        (["submitted", "begun"], StopReason.TIME_LIMIT, "requeued"),
        (["submitted", "begun"], StopReason.SIGNALLED, "failed"),
        (["submitted", "started"], StopReason.PREEMPTED, "failed"),
        (["submitted", "begun", "failed"], StopReason.PREEMPTED, "failed"),
    ],
)
def test_a_start_that_slurm_kills_has_lost_nothing(kinds, why, event):
    assert decide(137, history(*kinds), RequeueConfig(), why).event == event


def test_attempts_that_end_before_they_start_make_no_progress():
    early = ["submitted", "begun", "requeued", "begun", "requeued", "begun"]
    assert decide(143, history(*early), RequeueConfig(max_without_progress=3)).event == "failed"
    assert decide(143, history(*early), RequeueConfig(max_without_progress=4)).event == "requeued"


@pytest.mark.parametrize("why", [StopReason.PREEMPTED, StopReason.TIME_LIMIT])
def test_the_reason_of_a_stop_is_recorded(why):
    saved = history("submitted", "started", "checkpoint:5", "stopped:5")
    assert decide(75, saved, RequeueConfig(), why).reason == why.value


@pytest.fixture(autouse=True)
def own_signals():
    """The last act stops to listen to SIGTERM; the next test must not."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(autouse=True)
def slurm_says(monkeypatch):
    """What `scontrol show job` answers; a test may put another JobInfo first."""
    answers = [JobInfo("7", state="RUNNING", restarts=0)]
    monkeypatch.setattr(stop_reason, "show_job", lambda job_id: answers[0])
    monkeypatch.setattr(requeue, "send_anew", lambda *_: "no new job either")
    monkeypatch.setattr(requeue, "lack_of_tools", lambda: "")
    return answers


@pytest.fixture
def run_dir(tmp_path):
    run_dir = RunDir(tmp_path)
    run_dir.config.write_text(config_text(resolve([Layer("test", ONE_STEP)])))
    run_dir.attempt_logs(0).mkdir(parents=True)
    run_dir.append_event("submitted")
    run_dir.append_event("started")
    return run_dir


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


FIRST = {"SLURM_JOB_ID": "7", "HPCDDP_ATTEMPT": "0"}
SILENT = JobInfo("7", reason="Unable to contact slurm controller (connect failure)")


@pytest.fixture
def naps(monkeypatch):
    """How often the last act has waited; what is in `calls` is then called once."""
    naps = SimpleNamespace(count=0, calls=[])

    def sleep(seconds):
        naps.count += 1
        if naps.calls:
            naps.calls.pop(0)()

    monkeypatch.setattr(order.time, "sleep", sleep)
    return naps


def test_an_absent_controller_is_waited_for(run_dir, monkeypatch, slurm_says, naps):
    asked, back = [], slurm_says[0]
    monkeypatch.setattr(order, "_scontrol", lambda words: asked.append((words, naps.count)))
    slurm_says[0] = SILENT
    naps.calls = [lambda: None, lambda: slurm_says.insert(0, back)]
    assert finish_attempt(run_dir, 75, {"SLURM_JOB_ID": "7"}) == 75
    assert asked == [(WHILE_IT_RUNS, 2)]


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


def test_what_is_cancelled_while_the_controller_is_away_stays_so(
    run_dir, monkeypatch, slurm_says, naps
):
    monkeypatch.setattr(order, "_scontrol", lambda words: pytest.fail(f"asked for {words}"))
    slurm_says[0] = SILENT
    naps.calls = [lambda: run_dir.append_event("cancelled", by="ada")]
    finish_attempt(run_dir, 75, {"SLURM_JOB_ID": "7"})
    assert run_dir.read_events()[-1]["event"] == "cancelled"


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


RUNS, COMES_BACK = (JobInfo("7", state="RUNNING", restarts=n) for n in (0, 1))
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


CANCELLED = JobInfo("7", state="COMPLETING", restarts=0)
PREEMPTED = dataclasses.replace(CANCELLED, end_time=9.0, preempt_time=9.0)
WHILE_IT_RUNS, IN_ANY_CASE = ["requeue", "incomplete", "7"], ["requeue", "7"]


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


@pytest.fixture
def accepted(run_dir, monkeypatch):
    """Whether sbatch would accept the run's job without the nodes that are to be excluded."""
    run_dir.script.write_text("#!/bin/sh\n")
    accepted = [True]
    monkeypatch.setattr(exclusion, "ask_sbatch", lambda *_: (accepted[0], ""))
    return accepted


@pytest.mark.parametrize(
    ("exclude", "lost", "accepts", "update"),
    [
        (None, ["n2"], True, [["update", "jobid=7", "ExcNodeList=n2"]]),
        ("n9", ["n2"], True, [["update", "jobid=7", "ExcNodeList=n9,n2"]]),
        ("n9", [], True, []),
        (None, ["n2"], False, []),  # without it the job would wait for ever
    ],
)
def test_after_a_failure_a_lost_node_is_kept_from_the_next_attempt(
    run_dir, monkeypatch, accepted, exclude, lost, accepts, update
):
    accepted[0] = accepts
    asked = []
    sbatch = {"exclude": exclude} if exclude else {}
    values = {
        "train": {"max_steps": 1},
        "requeue": {"max_failures": 1},
        "resources": {"sbatch": sbatch},
    }
    run_dir.config.write_text(config_text(resolve([Layer("test", values)])))
    monkeypatch.setattr(exclusion, "lost_nodes", lambda hosts: lost)
    monkeypatch.setattr(requeue.signal, "signal", lambda *_: None)
    monkeypatch.setattr(order, "_scontrol", lambda words: asked.append(words))
    finish_attempt(run_dir, 1, {"SLURM_JOB_ID": "7"})
    assert asked == [WHILE_IT_RUNS, *update]
    asked.clear()
    finish_attempt(run_dir, 75, {"SLURM_JOB_ID": "7"})
    assert asked == [WHILE_IT_RUNS]


def test_a_node_whose_loss_slurm_tells_is_kept_from_the_next_attempt(
    run_dir, monkeypatch, accepted, slurm_says
):
    asked = []
    monkeypatch.setattr(exclusion, "lost_nodes", lambda hosts: ["n2"])
    monkeypatch.setattr(exclusion, "ask_sbatch", lambda *_: asked.append("?") or (True, ""))
    monkeypatch.setattr(order, "_scontrol", lambda words: asked.append(words))
    slurm_says[0] = JobInfo("7", state="COMPLETING", reason="NodeDown", restarts=0)
    finish_attempt(run_dir, 137, {"SLURM_JOB_ID": "7"}, terminated=True)
    # the order comes first: Slurm ends this script within KillWait
    assert asked[2:] == ["?", ["update", "jobid=7", "ExcNodeList=n2"]]
    assert asked[:2] == [WHILE_IT_RUNS, IN_ANY_CASE]


def test_what_slurm_has_requeued_already_is_left_alone(run_dir, monkeypatch, slurm_says):
    slurm_says[0] = JobInfo("7", state="COMPLETING", restarts=1)
    monkeypatch.setattr(order, "_scontrol", lambda words: pytest.fail(f"asked for {words}"))
    assert finish_attempt(run_dir, 75, {"SLURM_JOB_ID": "7"}) == 75
    event = run_dir.read_events()[-1]
    assert (event["event"], event["reason"]) == ("requeued", "requeued by Slurm")


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


def test_a_cancellation_is_recorded_once(run_dir, slurm_says):
    slurm_says[0] = JobInfo("7", state="COMPLETING", restarts=0)
    environ = {"SLURM_JOB_ID": "7", "HPCDDP_ATTEMPT": "3"}
    run_dir.append_event("cancelled", by="ada")  # says nothing of how the attempt ended
    for _ in range(2):
        assert finish_attempt(run_dir, 143, environ, terminated=True) == 143
    told = [event for event in run_dir.read_events() if event.get("attempt") == 3]
    assert [event["event"] for event in told] == ["cancelled"]


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


def own_program(*attempts):
    """Events of a user's own program: for each attempt how long it ran and why it ended."""
    events, now = [], 1000.0
    for number, (seconds, reason) in enumerate(attempts):
        events.append({"event": "started", "attempt": number, "time": now})
        now += seconds
        events.append({"event": "requeued", "attempt": number, "time": now, "reason": reason})
    why, number, began = StopReason(attempts[-1][1]), len(attempts) - 1, now - attempts[-1][0]
    return events[:-1], Ending(75, number, why, is_own_program=True, began=began, time=now)


@pytest.mark.parametrize(
    ("attempts", "event"),
    [
        ([(5, "stopped early")] * 2, "requeued"),
        ([(5, "stopped early")] * 3, "failed"),
        ([(5, "stopped early"), (5, "signalled"), (5, "stopped early")], "failed"),
        # one that ran for a while has done something
        ([(5, "stopped early"), (5, "stopped early"), (90, "stopped early")], "requeued"),
        ([(5, "stopped early"), (90, "stopped early"), (5, "stopped early")], "requeued"),
        # what Slurm ends early is not the program's doing
        ([(5, "stopped early"), (5, "stopped early"), (5, "preempted")], "requeued"),
        ([(5, "preempted"), (5, "stopped early"), (5, "stopped early")], "requeued"),
        # a limit so short that each attempt is near it from the first second on
        ([(5, "time limit")] * 3, "failed"),
        ([(5, "time limit"), (90, "time limit"), (5, "time limit")], "requeued"),
    ],
)
def test_an_own_program_that_always_asks_for_one_more_start_is_stopped(attempts, event):
    events, ending = own_program(*attempts)
    decision = rules.decide(ending, events, RequeueConfig(max_without_progress=3))
    assert decision.event == event
    assert rules.decide(ending, events, RequeueConfig(max_without_progress=0)).event == "requeued"


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ("stopped early", "within 60 s by themselves"),
        ("time limit", "within 60 s of their start, this one at its time limit"),
    ],
)
def test_what_a_time_limit_has_ended_is_not_said_to_have_ended_by_itself(last, said):
    events, ending = own_program(*[(5, "stopped early")] * 2, (5, last))
    reason = rules.decide(ending, events, RequeueConfig(max_without_progress=3)).reason
    assert reason == f"3 attempts in a row ended {said} (requeue.max_without_progress)"


@pytest.mark.parametrize(
    ("reasons", "event"),
    [
        (["Slurm's controller was away at the start"] * 2, "failed"),
        (["Slurm's controller was away at the start"], "requeued"),
        (["Slurm's controller was away at the start", "preempted"], "requeued"),
    ],
)
@pytest.mark.parametrize("end", [{"unstarted": "away"}, {"unreached": ("n2",)}])
def test_starts_of_an_own_program_that_never_were_are_counted_however_long_they_took(
    reasons, event, end
):
    events = [
        {"event": "requeued", "attempt": attempt, "time": 900.0 * attempt, "reason": reason}
        for attempt, reason in enumerate(reasons)
    ]
    ending = Ending(75, len(reasons), is_own_program=True, began=2000.0, time=2900.0, **end)
    assert rules.decide(ending, events, RequeueConfig(max_without_progress=3)).event == event


def test_an_own_program_is_told_how_long_it_ran_by_its_script_where_it_could_not_say_so():
    """The disk is full: there is no event of three attempts, and the newest ran for hours."""
    budget = RequeueConfig(max_without_progress=3)
    ending = Ending(75, 3, unended=(2, 1), is_own_program=True, began=0.0, time=7200.0)
    assert rules.decide(ending, [], budget).event == "requeued"
    at_once = dataclasses.replace(ending, began=7190.0)
    assert rules.decide(at_once, [], budget).event == "failed"


def test_an_attempt_that_could_not_go_on_from_the_newest_step_makes_progress_from_an_older_one():
    """Step 100 is torn: each start goes on from 80 or later, is preempted and saves."""
    events = [{"event": "started", "attempt": 0}, {"event": "checkpoint", "step": 100}]
    for attempt, step in enumerate((80, 85, 90), start=1):
        events += [
            {"event": "requeued", "attempt": attempt - 1},
            {"event": "started", "attempt": attempt},
            {"event": "resumed", "step": step},
            {"event": "checkpoint", "step": step + 5},
        ]
    ending = Ending(75, 3, StopReason.PREEMPTED)
    assert rules.decide(ending, events, RequeueConfig(max_without_progress=3)).event == "requeued"


LOST = {"event": "ended", "attempt": 0, "reason": "node failure", "lost_nodes": ["gpu-01"]}


@pytest.mark.parametrize(
    ("before", "told", "code", "is_oom", "event"),
    [
        (LOST, [], 137, False, "requeued"),
        (LOST, [], 137, True, "failed"),
        (LOST, [], 1, False, "failed"),
        (LOST, [{"event": "failed", "attempt": 1, "global_rank": 0}], 137, False, "failed"),
        ({**LOST, "lost_nodes": []}, [], 137, False, "failed"),
        ({**LOST, "attempt": -1}, [], 137, False, "failed"),  # that was used up by attempt 0
    ],
)
def test_what_a_node_that_comes_back_may_have_aborted_goes_on_once(
    before, told, code, is_oom, event
):
    events = [before, {"event": "started", "attempt": 1}, *told]
    ending = Ending(code, 1, out_of_memory=is_oom)
    assert rules.decide(ending, events, RequeueConfig()).event == event


@pytest.mark.parametrize(
    ("before", "own", "event"),
    [
        (["started"], [], "requeued"),  # nobody has said how it ended
        (["started", "requeued"], [], "failed"),
        (["started", "failed"], [], "failed"),
        (["started", {"event": "failed", "global_rank": 1}], [], "requeued"),  # one process
        (["started"], ["launched"], "failed"),  # who has looked has found no lost node
        ([], [], "failed"),
    ],
)
def test_an_attempt_that_is_killed_before_it_can_look_for_a_lost_node_goes_on_once(
    before, own, event
):
    events = [
        {**(word if isinstance(word, dict) else {"event": word}), "attempt": attempt}
        for attempt, words in enumerate((before, own))
        for word in words
    ]
    assert rules.decide(Ending(137, 1), events, RequeueConfig()).event == event


def test_attempts_whose_every_save_is_torn_are_bounded():
    events = []
    for attempt in range(4):
        events += [
            {"event": "started", "attempt": attempt},
            {"event": "resumed", "step": 50},
            {"event": "checkpoint", "step": 100},
            {"event": "requeued", "attempt": attempt},
        ]
    ending, budget = Ending(75, 3, StopReason.PREEMPTED), RequeueConfig(max_without_progress=3)
    assert rules.decide(ending, events[:-1], budget).event == "failed"


@pytest.fixture
def own_run(run_dir):
    layer = Layer("test", {"train": {"max_steps": 1}, "command": ["./program"]})
    run_dir.config.write_text(config_text(resolve([layer])))
    return run_dir


def srun_said(run_dir, attempt, *lines):
    with run_dir.batch_log.open("a") as log:
        log.write("\n".join([f"hpcddp: attempt {attempt}", *lines]) + "\n")


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


NOT_REACHED = "srun: error: Task launch for StepId=7.0 failed on node n2: {}"


@pytest.mark.parametrize(
    ("why", "event", "excluded"),
    [
        ("Communication connection failure", "requeued", [["update", "jobid=7", "ExcNodeList=n2"]]),
        ("Socket timed out on send/recv operation", "requeued", ...),
        ("Slurmd could not execve job", "failed", []),
    ],
)
def test_a_node_that_srun_does_not_reach_is_a_lost_one_and_kept_from_the_next_attempt(
    own_run, run_dir, accepted, monkeypatch, why, event, excluded
):
    asked = []
    monkeypatch.setattr(order, "_scontrol", lambda words: asked.append(words))
    srun_said(own_run, 0, NOT_REACHED.format(why), "srun: error: n1: task 0: Killed")
    finish_attempt(own_run, 233, FIRST)
    told = own_run.read_events()[-1]
    assert (told["event"], "node failure" in told["reason"]) == (event, event == "requeued")
    assert excluded in (..., asked[1:])


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


def test_nodes_that_srun_never_reaches_end_the_run(own_run, run_dir):
    lost = {"event": "requeued", "reason": "node failure", "time": 1.0}
    events = [{**lost, "attempt": attempt} for attempt in range(2)]
    ending = Ending(233, 2, StopReason.NODE_FAILURE, is_own_program=True)
    assert rules.decide(ending, events, RequeueConfig()).event == "failed"


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


@pytest.fixture
def sent(monkeypatch):
    """Slurm forbids to requeue; what a new job would be sent with, and how sbatch answers."""
    monkeypatch.undo()  # of `send_anew`
    monkeypatch.setattr(stop_reason, "show_job", lambda job_id: JobInfo("7", state="RUNNING"))
    monkeypatch.setattr(order, "_scontrol", lambda words: "disabled")
    calls = SimpleNamespace(options=[], answer="8")

    def submit(run_dir, *options):
        calls.options.append(options)
        if isinstance(calls.answer, Exception):
            raise calls.answer
        return calls.answer

    monkeypatch.setattr(slurm, "submit_to_slurm", submit)
    return calls


def test_the_new_job_is_described_as_the_newest_submission_was(run_dir, sent):
    run_dir.append_event("submitted", nodes=4, run="r", launcher="slurm", job_id="7")
    finish_attempt(run_dir, 75, {"SLURM_JOB_ID": "7"})
    event = run_dir.read_events()[-1]
    assert (event["event"], event["nodes"], event["job_id"]) == ("submitted", 4, "8")
    assert sent.options == [("--dependency=singleton",)]  # not before this job is gone


def test_a_new_job_keeps_off_a_lost_node_and_off_those_of_its_user(run_dir, sent, monkeypatch):
    values = {
        "train": {"max_steps": 1},
        "requeue": {"max_failures": 1},
        "resources": {"sbatch": {"exclude": "n9"}},
    }
    run_dir.config.write_text(config_text(resolve([Layer("test", values)])))
    monkeypatch.setattr(exclusion, "lost_nodes", lambda hosts: ["n2"])
    monkeypatch.setattr(exclusion, "ask_sbatch", lambda *_: (True, ""))
    run_dir.script.touch()
    finish_attempt(run_dir, 1, {"SLURM_JOB_ID": "7"})
    assert sent.options == [("--dependency=singleton", "--exclude=n9,n2")]


@pytest.fixture
def full_disk(run_dir, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunDir, "append_event", full)


def test_a_new_job_that_a_full_disk_does_not_hear_of_is_sent_and_told(
    sent, full_disk, run_dir, capfd
):
    assert finish_attempt(run_dir, 75, FIRST) == 75
    assert sent.options == [("--dependency=singleton",)]
    said = capfd.readouterr().err
    assert "sent anew as job 8\nhpcddp: not recorded: submitted: no space left on device" in said
    assert run_dir.handled(0).exists()  # else the script would ask for a requeue as well


def test_a_refused_requeue_is_told_on_a_full_disk(run_dir, monkeypatch, full_disk, capfd):
    monkeypatch.setattr(order, "_scontrol", lambda words: "no such job")
    assert finish_attempt(run_dir, 75, FIRST) == 75
    assert "cannot requeue 7: no new job either" in capfd.readouterr().err
    assert run_dir.handled(0).exists()


def test_a_controller_that_goes_away_before_it_takes_the_new_job_is_waited_for(run_dir, sent, naps):
    sent.answer = SubmissionFailed(SILENT.reason)
    naps.calls = [lambda: None, lambda: setattr(sent, "answer", "8")]
    finish_attempt(run_dir, 75, FIRST)
    event = run_dir.read_events()[-1]
    assert (event["event"], event.get("job_id"), len(sent.options)) == ("submitted", "8", 3)


def test_a_new_job_that_may_have_been_taken_is_no_refusal(run_dir, sent):
    sent.answer = SubmissionFailed("timed out", maybe_sent=True)
    finish_attempt(run_dir, 75, {"SLURM_JOB_ID": "7"})
    event = run_dir.read_events()[-1]
    assert (event["event"], "job_id" in event) == ("submitted", False)


@pytest.fixture
def only_tools(run_dir, tmp_path, monkeypatch):
    """Leave nothing on PATH but these tools, the named ones with a body of their own."""
    monkeypatch.undo()  # of `send_anew`
    run_dir.script.write_text("#!/bin/sh\n")
    monkeypatch.setattr(stop_reason, "show_job", lambda job_id: JobInfo("7", state="RUNNING"))

    def only_tools(*names, **bodies):
        for tool in names:
            (tmp_path / tool).symlink_to(shutil.which(tool))
        for tool, body in bodies.items():
            (tmp_path / tool).write_text(f"#!/bin/sh\n{body}\n")
            (tmp_path / tool).chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return only_tools


def test_a_node_without_sbatch_is_told_and_nobody_there_is_sent_to_a_login_node(
    run_dir, only_tools
):
    only_tools("sh", "env", scontrol="echo disabled; exit 1")
    finish_attempt(run_dir, 75, {"SLURM_JOB_ID": "7"})
    event = run_dir.read_events()[-1]
    assert event["event"] == "failed"
    assert re.fullmatch(
        r"Slurm refused to requeue: \S+ .sbatch.: No such file or directory; "
        rf"`python -m hpcddp resume {run_dir.name}` goes on",
        event["reason"],
    )


def test_a_node_without_any_tool_of_slurm_promises_no_start_and_says_what_to_type(
    run_dir, only_tools
):
    only_tools("sh")
    assert finish_attempt(run_dir, 75, FIRST) == 75
    assert "requeued" not in {event["event"] for event in run_dir.read_events()}
    event = run_dir.read_events()[-1]
    assert (event["event"], event["exit_code"]) == ("failed", 75)
    assert event["reason"] == (
        f"signalled; {socket.gethostname()} has no scontrol and no sbatch to requeue with; "
        f"`python -m hpcddp resume {run_dir.name}` goes on"
    )
    assert run_dir.handled(0).exists()  # the script has no scontrol either


def test_a_run_that_is_cancelled_while_slurm_is_asked_is_not_sent_anew(run_dir, sent, monkeypatch):
    def cancelled_meanwhile(words):
        run_dir.append_event("cancelled", by="ada")
        return "disabled"

    monkeypatch.setattr(order, "_scontrol", cancelled_meanwhile)
    finish_attempt(run_dir, 75, {"SLURM_JOB_ID": "7"})
    assert sent.options == []


@pytest.fixture
def scancelled(sent, monkeypatch):
    """The user has cancelled this job by `scancel` once a new one was sent so often, or before."""
    ended = []

    def show(job_id):
        is_over = len(sent.options) >= sent.sent_before
        return JobInfo("7", state="CANCELLED" if is_over else "RUNNING", end_time=time.time())

    monkeypatch.setattr(stop_reason, "show_job", show)
    monkeypatch.setattr(takeover, "tell", lambda words, timeout_s: ended.append(words))
    return ended


@pytest.mark.parametrize(("sent_before", "ended"), [(0, []), (1, [["scancel", "8"]])])
def test_a_job_whose_user_cancels_it_while_another_takes_over_does_not_come_back(
    run_dir, sent, scancelled, sent_before, ended
):
    sent.sent_before = sent_before
    takeover.send_anew(run_dir, partial(requeue._is_cancelled, run_dir, 0, FIRST), "")
    assert (len(sent.options), scancelled) == (sent_before, ended)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN  # scancel sends it to who asks


def test_a_preempted_job_whose_grace_ends_while_another_takes_over_comes_back(
    run_dir, sent, scancelled
):
    """Slurm then shows it as if its user had cancelled it."""
    run_dir.append_event("stop_reason", attempt=0, reason="preempted", end_time=time.time() - 1)
    sent.sent_before = 0
    takeover.send_anew(run_dir, partial(requeue._is_cancelled, run_dir, 0, FIRST), "")
    assert (len(sent.options), scancelled) == (1, [])


def test_a_line_that_is_no_event_is_passed_over(own_run):
    with own_run.events.open("a") as file:
        file.write('{"note": "by hand"}\n')
    assert finish_attempt(own_run, 7, {}) == 7
    assert own_run.read_events()[-1]["event"] == "failed"


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
