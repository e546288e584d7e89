"""Whether a run starts again: pure rules over how its attempt ended and the run's history."""

import dataclasses

import pytest

from hpcddp.config.schema import RequeueConfig
from hpcddp.launch import decision as rules
from hpcddp.launch.decision import Ending
from hpcddp.launch.history import since_sent
from hpcddp.launch.stop_reason import StopReason


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


def test_nodes_that_srun_never_reaches_end_the_run():
    lost = {"event": "requeued", "reason": "node failure", "time": 1.0}
    events = [{**lost, "attempt": attempt} for attempt in range(2)]
    ending = Ending(233, 2, StopReason.NODE_FAILURE, is_own_program=True)
    assert rules.decide(ending, events, RequeueConfig()).event == "failed"
