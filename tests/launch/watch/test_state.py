"""The state of a run follows from all evidence; and the figures that stand beside it."""

import json
import os
from pathlib import Path

import pytest
import yaml

from hpcddp.launch.history import read_history
from hpcddp.launch.scheduler import JobInfo
from hpcddp.launch.watch.failure import exit_words
from hpcddp.launch.watch.state import Evidence, decide_state, is_settled
from hpcddp.launch.watch.status import RunStatus, status_of
from hpcddp.run_dir import RunDir

CASES = yaml.safe_load(
    (Path(__file__).parents[2] / "cases" / "run_states.yaml").read_text(encoding="utf-8")
)
STATES = "pending, running, stopping, requeued, finished, failed, cancelled, unknown"


def event(place, text):
    kind, *fields = text.split()
    record = {"event": kind, "time": 1000.0 + place, "host": "gpu-01"}
    if kind == "submitted":
        record |= {"job_id": "38", "launcher": "slurm"}
    for key, value in (field.split("=", 1) for field in fields):
        record[key] = int(value) if value.isdigit() and key != "job_id" else value
        if key in ("error", "reason"):
            record[key] = value.replace("_", " ")
    return record


def make_run(root, *events, metrics=(), name="demo"):
    """A run directory with these events (texts as in run_states.yaml) and metrics records."""
    run_dir = RunDir(Path(root) / name)
    run_dir.batch_log.parent.mkdir(parents=True)
    run_dir.batch_log.touch()
    records = [event(place, text) for place, text in enumerate(events)]
    run_dir.events.write_text("".join(json.dumps(record) + "\n" for record in records))
    if metrics:
        run_dir.metrics.write_text("".join(json.dumps(record) + "\n" for record in metrics))
    return run_dir


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in CASES])
def test_the_state_follows_from_events_and_scheduler(case, tmp_path):
    history = read_history(make_run(tmp_path, *case["events"]))
    job = JobInfo("38", **case["job"]) if "job" in case else None
    times = {"last_write_time": case.get("wrote", 1900), "prepared_time": case.get("prepared", 0)}
    seen = Evidence(history.run_dir, history.current, job, now=2000, **times)
    state, reason = decide_state(seen)
    assert state == case["state"]
    for part in case["reason"]:
        assert part in reason
        assert part or not reason
    assert not [part for part in case.get("not", ()) if part in reason]


def test_the_cases_cover_every_state():
    assert {case["state"] for case in CASES} == set(STATES.split(", "))


@pytest.mark.parametrize(
    ("events", "settled"),
    [
        (["submitted", "started", "finished", "checkpoint"], True),
        (["submitted", "started", "failed exit_code=1"], True),
        (["submitted", "started", "failed error=x exit_code=1"], False),
        (["submitted", "failed exit_code=1", "submitted"], False),
        (["submitted", "failed exit_code=1", "requeued"], False),
        (["submitted", "started", "cancelled"], True),
        (["submitted", "cancelled time=1990"], False),
        (["submitted", "started", "stopped"], False),
        ([], False),
    ],
)
def test_slurm_is_not_asked_about_runs_whose_events_tell_their_end(events, settled):
    assert is_settled([event(*pair) for pair in enumerate(events)], now=2000) is settled


def status(run_dir, job=None, now=2000.0):
    return status_of(read_history(run_dir), job, now)


def test_figures_come_from_the_newest_records(tmp_path):
    metrics = [
        {"step": 10, "epoch": 0.5, "loss": 2.0, "images_per_s": 100.0},
        {"step": 20, "epoch": 1.0, "accuracy": 0.9, "eval_loss": 0.3, "samples": 10},
        {"step": 20, "epoch": 1.0, "loss": 1.5, "images_per_s": 120.0},
    ]
    run_dir = make_run(
        tmp_path, "submitted cluster=generic", "started attempt=0 max_steps=40", metrics=metrics
    )
    found = status(run_dir, JobInfo("38", "RUNNING", nodes="gpu-[01-02]"))
    assert (found.step, found.max_steps, found.epoch, found.loss) == (20, 40, 1.0, 1.5)
    assert (found.images_per_s, found.accuracy, found.attempt) == (120.0, 0.9, 0)
    assert (found.run, found.job_id, found.cluster, found.nodes) == (
        "demo", "38", "generic", "gpu-[01-02]",
    )  # fmt: skip
    assert (found.started_time, found.ended_time, found.run_dir) == (1001, None, str(run_dir.path))


def test_a_finished_run_tells_its_last_step_accuracy_and_end(tmp_path):
    run_dir = make_run(tmp_path, "submitted", "started", "finished step=40")
    with run_dir.events.open("a") as file:
        file.write('{"event": "finished", "time": 1500, "step": 40, "accuracy": 0.975}\n')
    found = status(run_dir)
    assert (found.step, found.accuracy, found.exit_code) == (40, 0.975, 0)
    assert found.ended_time == 1500


@pytest.mark.parametrize(
    "later", ["stop_reason reason=preempted", "failed reason=not_submitted:_x exit_code=1"]
)
def test_what_follows_a_finish_changes_neither_its_exit_code_nor_its_time(tmp_path, later):
    found = status(make_run(tmp_path, "submitted", "started", "finished step=40", later))
    assert (found.state, found.exit_code, found.ended_time) == ("finished", 0, 1002)


def test_a_resumed_attempt_counts_from_its_checkpoint_until_it_reports(tmp_path):
    events = ["submitted", "started attempt=0", "started attempt=1", "resumed attempt=1 step=20"]
    run_dir = make_run(tmp_path, *events, metrics=[{"step": 27, "loss": 1.0}])
    os.utime(run_dir.metrics, (1001.5, 1001.5))  # written by attempt 0
    assert (status(run_dir).step, status(run_dir).attempt) == (20, 1)
    os.utime(run_dir.metrics, (1500, 1500))  # written by attempt 1
    assert status(run_dir).step == 27
    run_dir.metrics.write_text('{"step": 27, "loss": 1.0, "time": 1001.5}\n')
    assert status(run_dir).step == 20


def test_the_number_of_steps_is_known_before_a_start_with_the_same_settings_tells_it(tmp_path):
    run_dir = make_run(tmp_path, "submitted", "started attempt=0 max_steps=70", "submitted")
    assert status(run_dir).max_steps is None  # with which settings, nothing says
    run_dir.config.touch()
    os.utime(run_dir.config, (1000.5, 1000.5))
    assert status(run_dir).max_steps == 70
    os.utime(run_dir.config, (1001.5, 1001.5))  # sent with others: `resume RUN train.max_steps=N`
    assert status(run_dir).max_steps is None


def test_torn_and_foreign_lines_are_passed_over(tmp_path):
    run_dir = make_run(tmp_path, "submitted", "started", metrics=[{"step": 3, "loss": 1.0}])
    for path in (run_dir.events, run_dir.metrics):
        with path.open("ab") as file:
            file.write(b'\xff\xfe\n[1]\n"x"\n{"step": 99, "event": "fini')
    found = status(run_dir, JobInfo("38", "RUNNING"))
    assert (found.state, found.step) == ("running", 3)


def test_only_the_end_of_a_long_metrics_file_is_read(tmp_path):
    long = [{"step": step, "loss": 1.0, "padding": "x" * 200} for step in range(5000)]
    run_dir = make_run(tmp_path, "submitted", "started", metrics=long)
    assert status(run_dir).step == 4999
    history = read_history(run_dir)
    assert history.train["step"] == 4999
    assert history._metrics._offset == run_dir.metrics.stat().st_size


def test_slurms_estimate_is_told_only_while_the_run_waits(tmp_path):
    run_dir = make_run(tmp_path, "submitted")
    assert status(run_dir, JobInfo("38", "PENDING", start_time=3000)).expected_start_time == 3000
    assert status(run_dir, JobInfo("38", "RUNNING", start_time=3000)).expected_start_time is None


@pytest.mark.parametrize(
    ("events", "job", "code"),
    [
        (["submitted", "finished"], None, 0),
        (["submitted", "failed exit_code=3"], None, 3),
        (["submitted", "failed exit_code=75 reason=x"], None, 75),
        (["submitted", "started", "stopped"], JobInfo("38", "COMPLETED", exit_code=0), 1),
        (["submitted", "requeued"], JobInfo("38", "COMPLETED", exit_code=0, restarts=1), 0),
        (["submitted"], JobInfo("38", "FAILED", exit_code=127), 127),
        (["submitted", "cancelled"], None, 1),
        (["submitted"], JobInfo("38", forgotten=True), 1),
    ],
)
def test_who_waits_for_a_run_exits_with_its_code(tmp_path, events, job, code):
    assert status(make_run(tmp_path, *events), job).run_exit_code == code


def test_the_contract_of_the_first_fields_holds():
    needed = "run, state, step, max_steps, epoch, images_per_s, attempt, job_id, reason, run_dir"
    assert set(needed.split(", ")) <= set(RunStatus.__dataclass_fields__)


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exit code 0"), (137, "exit code 137 (SIGKILL)"), (None, "exit code not known"),
     (200, "exit code 200"), (253, "exit code 253")],
)  # fmt: skip
def test_exit_codes_read_as_words(code, words):
    assert exit_words(code) == words


def test_an_error_is_shown_to_the_end_where_it_says_what_to_do(tmp_path):
    error = f"no interface fits. There: {'eth0, ' * 60}. Change it in the profile"
    run_dir = make_run(tmp_path, "submitted")
    run_dir.append_event("failed", attempt=0, global_rank=0, error=error)
    assert f"{error}; see " in status(run_dir, JobInfo("38", "FAILED")).reason


def test_of_an_endless_error_the_middle_is_left_to_the_log(tmp_path):
    run_dir = make_run(tmp_path, "submitted")
    error = f"begins {'x' * 9000} ends"
    run_dir.append_event("failed", attempt=0, global_rank=0, error=error)
    reason = status(run_dir, JobInfo("38", "FAILED")).reason
    assert len(reason) < 1100 + len(str(run_dir.path))
    assert "begins x" in reason
    assert "x ends; see " in reason


def test_what_a_process_says_of_an_attempt_whose_main_process_is_silent_still_counts(tmp_path):
    run_dir = make_run(tmp_path, "submitted", "failed attempt=3 global_rank=1 exit_code=1 error=x")
    found = status(run_dir, JobInfo("38", "FAILED"))
    assert (found.state, found.attempt) == ("failed", 3)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("hpcddp: attempt 0\nhpcddp: /runs/demo/config.yaml: cannot be read: No such file\n",
         "exit code 1; /runs/demo/config.yaml: cannot be read: No such file; see "),
        ("hpcddp: attempt 0\n", "exit code 1; see "),
        ("hpcddp: Slurm does not answer; asking again\nslurmstepd: error\n", "exit code 1; see "),
        ("", "exit code 1; see "),
    ],
)  # fmt: skip
def test_what_the_batch_script_could_not_record_is_read_from_its_log(tmp_path, log, reason):
    run_dir = make_run(tmp_path, "submitted", "started attempt=0")
    run_dir.batch_log.write_text(log)
    assert reason in status(run_dir, JobInfo("38", "FAILED", exit_code=1)).reason
    run_dir.append_event("failed", attempt=0, exit_code=1, reason="exit code 1")
    assert "cannot be read" not in status(run_dir, JobInfo("38", "FAILED", exit_code=1)).reason
