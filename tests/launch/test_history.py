"""Files are read piece by piece: nothing twice, nothing torn, nothing lost."""

import json

from hypothesis import given
from hypothesis import strategies as st

from hpcddp.launch.history import (
    FileTail,
    RunHistory,
    last_step,
    newest_step,
    read_history,
    since_submission,
)
from hpcddp.run_dir import RunDir


def append(path, data):
    with path.open("ab") as file:
        file.write(data)


def test_a_tail_yields_each_line_once_and_only_whole(tmp_path):
    path = tmp_path / "log"
    tail = FileTail(path)
    assert tail.lines() == []
    append(path, b"one\ntw")
    assert tail.lines() == [b"one"]
    assert tail.lines() == []
    append(path, b"o\nthree")
    assert tail.lines() == [b"two"]
    assert (tail.rest(), tail.rest()) == (b"three", b"")


def test_a_file_that_was_begun_again_is_read_from_its_start(tmp_path):
    path = tmp_path / "log"
    append(path, b"a long first life\n")
    tail = FileTail(path)
    tail.lines()
    path.write_bytes(b"new\n")
    assert tail.lines() == [b"new"]


def test_a_tail_can_begin_near_the_end(tmp_path):
    path = tmp_path / "log"
    append(path, b"first\nsecond\nthird\n")
    assert FileTail(path, last_bytes=9).lines() == [b"nd", b"third"]
    assert FileTail(path, last_bytes=1000).lines() == [b"first", b"second", b"third"]


@given(st.lists(st.binary(max_size=12), max_size=12))
def test_however_a_file_grows_its_lines_are_the_same(tmp_path_factory, pieces):
    path = tmp_path_factory.mktemp("tail") / "log"
    tail, lines = FileTail(path), []
    for piece in pieces:
        append(path, piece)
        lines += tail.lines()
    assert [*lines, tail.rest()] == b"".join(pieces).split(b"\n")


def test_a_history_tells_what_is_new(tmp_path):
    run_dir = RunDir(tmp_path)
    history = read_history(run_dir)
    assert history.refresh() == []
    run_dir.append_event("submitted", job_id="1")
    append(run_dir.metrics, json.dumps({"step": 1, "loss": 2.0}).encode() + b"\n")
    append(run_dir.metrics, json.dumps({"step": 1, "accuracy": 0.5}).encode() + b"\n")
    news = history.refresh()
    assert [record.get("event", record.get("step")) for record in news] == ["submitted", 1, 1]
    assert history.refresh() == []
    assert (history.train["loss"], history.evaluation["accuracy"]) == (2.0, 0.5)
    assert history.submission["job_id"] == "1"
    assert history.last_write_time > 0


def write_metrics(run_dir, *records):
    run_dir.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_of_a_long_history_only_the_newest_is_read(tmp_path):
    run_dir = RunDir(tmp_path)
    for step in range(50):
        run_dir.append_event("checkpoint", step=step)
    run_dir.append_event("stopped", step=49)
    training = [{"step": step, "loss": 1.0, "padding": "x" * 100} for step in range(1000)]
    evaluation = {"step": 300, "accuracy": 0.5}
    write_metrics(run_dir, *training[:300], evaluation, *training[300:])
    history = read_history(run_dir)
    assert [(event["event"], event["step"]) for event in history.events] == [
        ("checkpoint", 49), ("stopped", 49),
    ]  # fmt: skip
    assert (history.train["step"], history.evaluation) == (999, evaluation)
    assert len(RunHistory(run_dir, whole=True).refresh()) == 51 + 1001


def test_what_comes_after_the_first_look_is_told_completely(tmp_path):
    run_dir = RunDir(tmp_path)
    history = read_history(run_dir)
    for step in range(3):
        run_dir.append_event("checkpoint", step=step)
    write_metrics(run_dir, {"step": 1, "loss": 1.0}, {"step": 2, "loss": 1.0})
    assert [record["step"] for record in history.refresh()] == [0, 1, 2, 1, 2]


def record(kind, job_id=None):
    return {"event": kind, **({"job_id": job_id} if job_id else {})}


def test_a_submission_owns_what_its_job_wrote_before_it_was_recorded():
    first = [record("submitted", "1"), record("started", "1"), record("failed")]
    second = [record("started", "2"), record("submitted", "2"), record("checkpoint")]
    assert since_submission(first + second) == second
    assert since_submission(first) == first
    assert since_submission([record("failed")]) == [record("failed")]
    assert since_submission([]) == []


def test_a_job_that_records_its_submission_again_at_each_start_keeps_its_events():
    again = [record("submitted", "1"), record("started", "1"), record("submitted", "1")]
    assert since_submission(again) == again[1:]


def test_the_step_of_the_newest_attempt_counts_though_one_before_had_done_more():
    lines = [b'{"step": 100, "attempt": 0}', b'{"step": 85, "attempt": 1}', b'{"attempt": 1}', b"{"]
    assert (last_step(lines, []), newest_step(lines)) == (85, 100)
    assert last_step([], []) == 0


def test_an_attempt_that_was_ended_before_its_first_record_has_done_its_first_step():
    lines = [b'{"step": 100, "attempt": 0}']
    events = [record("first_step") | {"attempt": attempt, "step": 81} for attempt in (0, 1)]
    assert (last_step(lines, events[:1]), last_step(lines, events)) == (100, 81)
