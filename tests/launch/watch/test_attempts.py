"""The story of the attempts: what each line of the table follows from."""

import pytest

from hpcddp.launch.watch.attempts import attempts_of
from hpcddp.launch.watch.words import attempts_table


def event(kind, attempt, time, **fields):
    return {"event": kind, "attempt": attempt, "time": time, **fields}


PREEMPTED = [
    {"event": "submitted", "time": 90.0, "job_id": "7"},
    event("launched", 0, 102.0, job_id="7", began=100.0),
    event("started", 0, 104.0, job_id="7"),
    event("first_step", 0, 106.0, step=1),
    event("stop_reason", 0, 120.1, reason="preempted", signal_time=120.0),
    event("stopped", 0, 121.0, step=9),
    event("requeued", 0, 121.5, reason="preempted", exit_code=75),
]
GOES_ON = [
    event("launched", 1, 151.0, job_id="7", began=150.0, last_step=9),
    event("resumed", 1, 152.0, step=9),
    event("first_step", 1, 157.5, step=10),
]


def test_a_preempted_attempt_and_the_one_after_it_tell_their_times():
    first, second = attempts_of([*PREEMPTED, *GOES_ON], "running")
    assert (first.end, first.steps_lost, first.signal_to_exit_s) == ("preempted", 0, 1.5)
    assert (first.began_time, first.ended_time, first.job_id) == (100.0, 121.5, "7")
    assert (first.restart_to_first_step_s, second.restart_to_first_step_s) == (6.0, 7.5)
    assert (second.end, second.steps_lost) == ("", None)


@pytest.mark.parametrize(("told", "end"), [(PREEMPTED[4:6], "preempted"), ([], "not known")])
def test_without_a_last_act_the_reason_told_at_the_signal_counts_once_another_began(told, end):
    begun = [*PREEMPTED[:4], *told]
    assert [attempt.end for attempt in attempts_of([*begun, *GOES_ON], "running")] == [end, ""]
    assert [attempt.end for attempt in attempts_of(begun, "running")] == [""]


BY_USER = {"event": "cancelled", "time": 130.0, "by": "ada"}


@pytest.mark.parametrize(
    ("told", "end", "ended_time"),
    [
        ([BY_USER], "cancelled", 130.0),
        ([PREEMPTED[4], BY_USER], "cancelled", 130.0),
        ([BY_USER, {"event": "cancel_failed", "time": 131.0}], "not known", None),
        ([event("failed", 0, 125.0, exit_code=1), BY_USER], "failed", 125.0),
    ],
)
def test_an_attempt_that_its_user_cancelled_and_that_told_no_end_ended_then(told, end, ended_time):
    begun = [*PREEMPTED[:4], *told]
    first, second = attempts_of([*begun, *GOES_ON], "running")
    assert (first.end, first.ended_time) == (end, ended_time)
    assert (second.end, second.ended_time) == ("", None)
    [stopping] = attempts_of([*PREEMPTED[:4], BY_USER], "stopping")
    assert (stopping.end, stopping.ended_time) == ("", None)
    [ended] = attempts_of([*PREEMPTED[:4], BY_USER], "cancelled")
    assert (ended.end, ended.ended_time) == ("cancelled", 130.0)


@pytest.mark.parametrize("last", ["stopped", "failed"])
def test_without_a_last_act_an_attempt_ends_when_a_process_says_that_it_leaves(last):
    begun = [*PREEMPTED[:4], event(last, 0, 121.0, global_rank=0)]
    first, second = attempts_of([*begun, *GOES_ON], "running")
    assert (first.ended_time, second.ended_time) == (121.0, None)


def test_the_steps_after_the_last_checkpoint_are_lost_with_a_killed_attempt():
    killed = [event("launched", 0, 100.0), event("first_step", 0, 101.0)]
    found = event("ended", 0, 150.0, reason="node failure", nodes=["n1"])
    later = [event("launched", 1, 151.0, last_step=30), event("resumed", 1, 152.0, step=20)]
    first, _ = attempts_of([*killed, found, *later, event("first_step", 1, 153.0)], "running")
    assert (first.end, first.steps_lost, first.ended_time) == ("node failure", 10, None)


def test_an_end_that_was_told_and_then_explained_keeps_its_time():
    requeued = event("requeued", 0, 120.0, reason="requeued by Slurm")
    found = event("ended", 0, 150.0, reason="node failure", nodes=["n1"])
    [attempt] = attempts_of([event("launched", 0, 100.0), requeued, found], "requeued")
    assert (attempt.end, attempt.ended_time) == ("node failure", 120.0)


def test_steps_are_lost_with_the_attempt_that_did_them_whoever_does_them_again():
    events = [
        event("launched", 0, 100.0),
        event("first_step", 0, 101.0),
        event("launched", 1, 110.0, last_step=30),
        event("resumed", 1, 111.0, step=20),  # and is stopped before its first step
        event("launched", 2, 120.0, last_step=30),
    ]
    assert [each.steps_lost for each in attempts_of(events, "running")] == [None, 0, None]
    again = [event("resumed", 2, 121.0, step=20), event("first_step", 2, 122.0)]
    lost = [each.steps_lost for each in attempts_of([*events, *again], "running")]
    assert lost == [10, 0, None]
    del events[2]["last_step"]  # it was killed before it could look
    lost = [each.steps_lost for each in attempts_of([*events, *again], "running")]
    assert lost == [10, 0, None]


def test_a_resume_whose_step_cannot_be_read_is_no_crash():
    events = [event("launched", 0, 1.0), event("first_step", 0, 2.0)]
    events += [event("launched", 1, 3.0, last_step=5), event("resumed", 1, 4.0)]
    events += [event("first_step", 1, 5.0)]
    assert [each.steps_lost for each in attempts_of(events, "running")] == [5, None]


@pytest.mark.parametrize(
    ("last", "run_state", "end"),
    [
        (event("finished", 0, 9.0), "finished", "finished"),
        (event("cancelled", 0, 9.0, exit_code=75), "cancelled", "cancelled"),
        (event("failed", 0, 9.0, reason="exit code 3", exit_code=3), "failed", "failed"),
        (event("failed", 0, 9.0, reason="out of memory, exit code 137"), "failed", "out of memory"),
        (event("failed", 0, 9.0, global_rank=1, error="boom"), "running", "failed"),
        (event("requeued", 0, 9.0, failure=1, reason="failure 1 of at most 2"), "", "failed"),
        (event("requeued", 0, 9.0, reason="time limit"), "requeued", "time limit"),
        (event("requeued", 0, 9.0, reason="requeued by Slurm"), "running", "requeued by Slurm"),
        # a batch script that was killed with its job writes nothing: Slurm knows
        (event("started", 0, 9.0), "cancelled", "cancelled"),
        (event("started", 0, 9.0), "running", ""),
    ],
)
def test_why_an_attempt_ended(last, run_state, end):
    [attempt] = attempts_of([event("launched", 0, 1.0), last], run_state)
    assert attempt.end == end


def test_slurms_own_requeue_after_a_known_signal_is_called_by_its_cause():
    told = event("stop_reason", 0, 5.0, reason="preempted", signal_time=5.0)
    requeued = event("requeued", 0, 9.0, reason="requeued by Slurm", exit_code=75)
    assert attempts_of([told, requeued], "requeued")[0].end == "preempted"


def test_slurms_own_requeue_where_jobs_are_preempted_is_taken_for_that():
    own = [event("launched", 0, 1.0), event("requeued", 0, 9.0, reason="requeued by Slurm")]
    own[1]["preemptible"] = True
    assert attempts_of(own, "requeued")[0].end == "preempted"


def test_a_stop_that_another_process_was_told_of_has_a_duration_too():
    own = [event("signal", 0, 5.0, signal="SIGTERM"), event("requeued", 0, 9.0, exit_code=75)]
    assert attempts_of(own, "requeued")[0].signal_to_exit_s == 4.0


def test_the_table_has_a_line_for_each_attempt():
    lines = attempts_table(attempts_of([*PREEMPTED, *GOES_ON], "running"))
    assert len(lines) == 3
    assert lines[0].split()[0] == "ATTEMPT"
    assert lines[1].endswith("preempted")
    assert "1.5 s" in lines[1]
    assert lines[2].endswith("-")
