"""When Slurm is asked: at once, then ever more seldom, and never about what is settled."""

import itertools
import os
import socket

import pytest

from hpcddp.launch.scheduler import JobInfo
from hpcddp.launch.supervisor import record_supervisor
from hpcddp.launch.watch.observer import SLURM_LONGEST_PAUSE_S, SLURM_PAUSE_S, Observer
from hpcddp.run_dir import RunDir


class Slurm:
    """Answers with `job` for every id and notes when it was asked; its clock is the observer's."""

    def __init__(self):
        self.now = 1_000_000.0
        self.asked = []
        self.job = {"state": "RUNNING"}

    def query(self, job_ids):
        self.asked.append((self.now, list(job_ids)))
        return {job_id: JobInfo(job_id, **self.job) for job_id in job_ids}

    def observe(self, *run_dirs):
        return Observer(run_dirs, query=self.query, clock=lambda: self.now)


@pytest.fixture
def slurm():
    return Slurm()


def make_run(root, name="demo", job_id="38", launcher="slurm"):
    run_dir = RunDir(root / name)
    run_dir.path.mkdir()
    run_dir.append_event("submitted", job_id=job_id, launcher=launcher)
    return run_dir


def test_slurm_is_asked_once_for_all_runs_and_not_about_settled_ones(slurm, tmp_path):
    runs = [make_run(tmp_path, f"run{number}", job_id=str(number)) for number in range(4)]
    runs[1].append_event("finished")
    runs[2].append_event("failed", exit_code=1)
    states = [status.state for status in slurm.observe(*runs).look()]
    assert slurm.asked == [(slurm.now, ["0", "3"])]
    assert states == ["running", "finished", "failed", "running"]


def test_of_a_single_failed_run_slurm_is_asked_why(slurm, tmp_path):
    run_dir = make_run(tmp_path)
    run_dir.append_event("failed", exit_code=137)
    slurm.job = {"state": "OUT_OF_MEMORY"}
    [status] = slurm.observe(run_dir).look()
    assert status.reason.startswith("out of memory")


def test_the_pause_grows_to_a_minute_while_nothing_happens(slurm, tmp_path):
    observer = slurm.observe(make_run(tmp_path))
    for _ in range(600):
        observer.look()
        slurm.now += 1
    times = [when for when, _ in slurm.asked]
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses[0] == SLURM_PAUSE_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == SLURM_LONGEST_PAUSE_S == 60


def test_an_event_makes_the_next_question_come_sooner(slurm, tmp_path):
    run_dir = make_run(tmp_path)
    observer = slurm.observe(run_dir)
    for _ in range(600):
        observer.look()
        slurm.now += 1
    slurm.asked.clear()
    run_dir.append_event("checkpoint", step=3)  # this one tells nothing about the job
    observer.look()
    assert slurm.asked == []
    slurm.now += SLURM_PAUSE_S
    run_dir.append_event("stopped", step=3)
    observer.look()
    assert len(slurm.asked) == 1


def test_a_new_job_of_a_resumed_run_is_asked_about_at_once(slurm, tmp_path):
    run_dir = make_run(tmp_path)
    observer = slurm.observe(run_dir)
    observer.look()
    run_dir.append_event("submitted", job_id="39", launcher="slurm")
    [status] = observer.look()
    assert slurm.asked[-1][1] == ["39"]
    assert status.job_id == "39"


def test_the_end_that_a_run_wrote_while_slurm_was_asked_is_seen(slurm, tmp_path):
    run_dir = make_run(tmp_path)

    def finish_meanwhile(job_ids):
        run_dir.append_event("finished", step=9, accuracy=0.9)
        return {job_id: JobInfo(job_id, "COMPLETED") for job_id in job_ids}

    observer = Observer([run_dir], query=finish_meanwhile)
    [status] = observer.look()
    assert (status.state, status.accuracy, observer.is_over) == ("finished", 0.9, True)
    assert [record["event"] for record in observer.news] == ["submitted", "finished"]


def test_a_job_that_slurm_has_forgotten_is_given_up_after_a_minute(slurm, tmp_path):
    observer = slurm.observe(make_run(tmp_path))
    slurm.job = {"forgotten": True, "reason": "Slurm knows no job 38 (any more)"}
    observer.look()
    slurm.now += 59
    [status] = observer.look()
    assert (status.state, observer.is_over) == ("unknown", False)
    slurm.now += 1
    observer.look()
    assert observer.is_over


def test_a_controller_that_is_down_for_hours_ends_nothing(slurm, tmp_path):
    observer = slurm.observe(make_run(tmp_path))
    slurm.job = {"reason": "Slurm cannot be asked"}
    for _ in range(10):
        observer.look()
        slurm.now += 3600
    assert not observer.is_over


def test_runs_that_appear_later_are_added_once(slurm, tmp_path):
    first = make_run(tmp_path, "first", job_id="1")
    observer = slurm.observe(first)
    second = make_run(tmp_path, "second", job_id="2")
    for _ in range(2):
        observer.add([first, second])
    assert [status.run for status in observer.look()] == ["first", "second"]


def local_state(tmp_path, record):
    """The status of a local run whose supervisor.json is `record`, 31 s after its submission."""
    run_dir = make_run(tmp_path, job_id="local-7", launcher="local")
    if record:
        (run_dir.path / "supervisor.json").write_text(record)
    now = run_dir.read_events()[0]["time"] + 31
    [status] = Observer([run_dir], clock=lambda: now).look()
    return status.state, status.reason


def test_a_local_run_whose_supervisor_never_came_has_failed(tmp_path):
    state, reason = local_state(tmp_path, None)
    assert (state, "never started" in reason) == ("failed", True)


def test_a_local_run_on_another_host_is_unknown_here(tmp_path):
    state, reason = local_state(tmp_path, '{"pid": 7, "create_time": 1, "host": "elsewhere"}')
    assert (state, "only host elsewhere can tell" in reason) == ("unknown", True)


def test_a_local_run_whose_supervisor_is_gone_has_failed(tmp_path):
    record = f'{{"pid": 7, "create_time": 1, "host": "{socket.gethostname()}"}}'
    state, reason = local_state(tmp_path, record)
    assert (state, "process 7, is gone" in reason) == ("failed", True)


def test_a_local_run_is_pending_until_its_supervisor_says_who_it_is(tmp_path):
    run_dir = make_run(tmp_path, job_id="local-7", launcher="local")
    [status] = Observer([run_dir]).look()
    assert (status.state, status.reason) == ("pending", "its supervisor is starting")


def test_a_local_run_lives_as_long_as_its_supervisor(tmp_path):
    run_dir = make_run(tmp_path, job_id=f"local-{os.getpid()}", launcher="local")
    record_supervisor(run_dir)
    run_dir.append_event("started", attempt=0)
    [status] = Observer([run_dir]).look()
    assert (status.state, status.reason) == ("running", "")
