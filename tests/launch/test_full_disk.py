"""A disk that is full when a run starts again: no failure, within a budget, with its reason."""

import errno
import subprocess
import sys
from contextlib import suppress
from functools import partial

import pytest

from hpcddp.config.load import Layer, resolve
from hpcddp.config.write import config_text
from hpcddp.launch import ending, order, stop_reason
from hpcddp.launch.history import read_history
from hpcddp.launch.requeue import finish_attempt
from hpcddp.launch.scheduler import JobInfo
from hpcddp.launch.watch.status import status_of
from hpcddp.run_dir import RunDir, space_problem

RUNNING = JobInfo("7", state="RUNNING", restarts=0)


@pytest.fixture
def asked(monkeypatch):
    """What was asked of a Slurm in which the job runs."""
    asked = []
    monkeypatch.setattr(stop_reason, "show_job", lambda job_id: RUNNING)
    monkeypatch.setattr(order, "_scontrol", lambda words: asked.append(words))
    return asked


def make_run(folder, *kinds, **settings):
    """A run whose first attempt has stopped without saving a step, or these events of it."""
    run_dir = RunDir(folder / "demo")
    for attempt in range(4):
        run_dir.attempt_logs(attempt).mkdir(parents=True)
    values = {"train": {"max_steps": 1}, **settings}
    run_dir.config.write_text(config_text(resolve([Layer("test", values)])))
    run_dir.append_event("submitted", launcher="slurm", job_id="7")
    for kind in kinds or ("started", "stopped", "requeued"):
        run_dir.append_event(kind, attempt=0, job_id="7", step=1)
    return run_dir


def fill(folder):
    with suppress(OSError), (folder / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def environ_of(attempt):
    job = {"SLURM_JOB_ID": "7", "HPCDDP_ATTEMPT": str(attempt)}
    return job | ({"SLURM_RESTART_COUNT": str(attempt)} if attempt else {})


def test_a_start_on_a_full_disk_wants_to_run_again_and_the_last_act_says_why(
    small_disk, workplace, asked
):
    run_dir = make_run(small_disk)
    fill(small_disk)
    words = [sys.executable, "-m", "hpcddp", "run", "--run-dir", run_dir.path]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 75, done.stderr
    assert "No space left on device" in done.stderr
    assert not list(run_dir.path.glob(".*"))
    assert finish_attempt(run_dir, 75, environ_of(1)) == 75
    assert asked == [["requeue", "incomplete", "7"]]
    waiting = status_of(read_history(run_dir), JobInfo("7", "PENDING", "BeginTime", restarts=2), 0)
    assert (waiting.state, waiting.attempts[-1].end) == ("requeued", "no space left on device")
    finish_attempt(run_dir, 75, environ_of(2))
    finished = status_of(read_history(run_dir), None, 0)
    assert finished.state == "failed"
    assert "no space left on device, 3 attempts in a row made no progress" in finished.reason
    assert asked == [["requeue", "incomplete", "7"]]


def test_a_log_that_takes_no_word_more_changes_no_exit_code(small_disk, workplace):
    run_dir = make_run(small_disk)
    with run_dir.events.open("a") as events:
        events.write(" " * (-events.tell() % 4096))  # no room for one more line
    fill(small_disk)
    with (small_disk / "log").open("w") as log:
        python = partial(subprocess.run, stdout=log, stderr=log, timeout=240, check=False)
        start = python([sys.executable, "-m", "hpcddp", "run", "--run-dir", run_dir.path])
        last_act = ["hpcddp.launch.requeue", "--run-dir", run_dir.path, "--exit-code=75"]
        ended = python([sys.executable, "-m", *last_act])
    assert (start.returncode, ended.returncode) == (75, 75)
    assert (small_disk / "log").read_text() == ""


def test_a_process_that_leaves_no_word_on_a_full_disk_is_explained_by_it(small_disk, asked):
    run_dir = make_run(small_disk)
    fill(small_disk)
    assert finish_attempt(run_dir, 1, environ_of(1)) == 1
    assert run_dir.read_events()[-1]["reason"] == "no space left on device, exit code 1"


def test_where_there_is_room_nothing_is_said_of_it_and_nothing_is_left(tmp_path, asked):
    run_dir = make_run(tmp_path)
    before = sorted(run_dir.path.iterdir())
    assert space_problem(run_dir.path) == ""
    assert sorted(run_dir.path.iterdir()) == before
    finish_attempt(run_dir, 75, environ_of(1))
    assert run_dir.read_events()[-1]["reason"] == "signalled"


@pytest.mark.parametrize(
    ("told", "last", "code", "settings"),
    [
        ((), 2, 75, {}),
        (("checkpoint",), 3, 75, {}),
        (("checkpoint", "requeued"), 3, 75, {}),
        ((), 2, 75, {"command": ["true"]}),
        ((), 1, 1, {"requeue": {"max_failures": 1}}),
        ((), 1, 1, {"requeue": {"max_failures": 1}, "command": ["true"]}),
    ],
)
def test_attempts_that_could_not_be_recorded_are_counted_too(
    tmp_path, asked, monkeypatch, told, last, code, settings
):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    run_dir = make_run(tmp_path, "started", *told, **settings)
    monkeypatch.setattr(RunDir, "append_event", full)
    monkeypatch.setattr(ending, "space_problem", lambda folder: "no space left on device")
    for attempt in range(last + 1):
        finish_attempt(run_dir, code, environ_of(attempt))
    assert asked == [["requeue", "incomplete", "7"]] * last
    assert run_dir.handled(last).exists()  # else the script would ask for the requeue


def test_attempts_that_say_nothing_are_not_counted_where_there_is_room(tmp_path, asked):
    """Their nodes were lost, and Slurm has started the job again by itself."""
    run_dir = make_run(tmp_path, "started", requeue={"max_failures": 1})
    assert finish_attempt(run_dir, 1, environ_of(3)) == 1
    assert asked == [["requeue", "incomplete", "7"]]


@pytest.mark.parametrize("is_full", [True, False])
def test_the_local_executor_learns_from_the_code_whether_to_start_again(
    tmp_path, monkeypatch, is_full
):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    run_dir = make_run(tmp_path, "started")
    if is_full:
        monkeypatch.setattr(RunDir, "append_event", full)
        monkeypatch.setattr(ending, "space_problem", lambda folder: "no space left on device")
    count = [{"HPCDDP_ATTEMPT": n, "HPCDDP_RESTART_COUNT": n} for n in "012"]
    codes = [finish_attempt(run_dir, 75, environ) for environ in count]
    assert codes == [75, 75, 1]
    ends = [e for e in run_dir.read_events() if e["event"] == "failed"]
    assert [end["exit_code"] for end in ends] == [75] * (not is_full)  # what `wait` exits with


def test_attempts_of_an_earlier_job_are_not_counted(tmp_path, asked, monkeypatch):
    run_dir = make_run(tmp_path)
    monkeypatch.setattr(ending, "space_problem", lambda folder: "no space left on device")
    run_dir.append_event("submitted", launcher="slurm", job_id="8")
    finish_attempt(run_dir, 75, {"SLURM_JOB_ID": "8", "HPCDDP_ATTEMPT": "3"})
    assert asked == [["requeue", "incomplete", "8"]]
