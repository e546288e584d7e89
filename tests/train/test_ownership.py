"""Of two starts of one run only one ever commits."""

import errno
import json
import os
import shutil
import signal
import time

import psutil
import pytest
from train_ranks import DEADLINE_S, events_of, layouts, small_config, start

from hpcddp.checkpoint_dir import list_checkpoints, start_partial
from hpcddp.config.layout import ProcessLayout
from hpcddp.errors import HpcddpError
from hpcddp.launch.failure import exit_code_of
from hpcddp.run_dir import RunDir
from hpcddp.train import ownership
from hpcddp.train.checkpoint import Retention, save_snapshot
from hpcddp.train.ownership import Ownership, is_of_another_job, take_over


@pytest.fixture
def run_dir(tmp_path):
    return RunDir(tmp_path)


@pytest.fixture
def claim(run_dir):
    claimed = []

    def claim(job="7", attempt=0, **fields):
        fields = {"launcher": "slurm", "restart_count": attempt, **fields}
        layout = ProcessLayout(requeue_target=job, attempt=attempt, **fields)
        owner = Ownership(run_dir, layout, beat_s=0.02, silent_s=0.5)
        owner.claim()
        claimed.append(owner)
        return owner

    yield claim
    for owner in claimed:
        owner.release()


def refusal(call):
    with pytest.raises(HpcddpError) as caught:
        call()
    return caught.value


def pretend(run_dir, **fields):
    """Rewrite the owner's record in place."""
    path = run_dir.path / "owner.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.fixture
def at_once(monkeypatch):
    """Nobody watches whether the owner touches its file, which takes a while."""
    monkeypatch.setattr(ownership, "_last_touch", lambda path: pytest.fail("it was waited for"))


def test_a_later_start_of_the_job_takes_over_at_once_and_the_older_one_notices(claim, at_once):
    older = claim(attempt=1)
    older.check()
    newer = claim(attempt=2)
    newer.check()
    error = refusal(older.check)
    assert error.code == "superseded"
    assert "job 7, attempt 2" in error.message
    assert "This is job 7, attempt 1" in error.message
    older._thread.join(DEADLINE_S)  # it beats no longer
    assert refusal(older.check_heard).code == "superseded"
    newer.check_heard()


def test_an_older_copy_of_the_job_cannot_claim_even_when_the_owner_is_silent(claim, run_dir):
    claim(attempt=2)
    pretend(run_dir, host="elsewhere")
    assert refusal(lambda: claim(attempt=1)).code == "superseded"


def test_a_second_job_is_refused_while_the_first_lives(claim):
    first = claim(job="7")
    error = refusal(lambda: claim(job="8", attempt=1))
    assert error.code == "run_in_use"
    assert "is being trained by job 7" in error.message
    assert "hpcddp cancel" in error.message
    first.check()


def test_a_second_job_takes_over_when_the_first_has_left(claim):
    claim(job="7", attempt=4).release()
    claim(job="8", attempt=0).check()


def test_a_second_job_takes_over_when_the_first_was_killed_on_this_host(claim, run_dir, at_once):
    claim(job="7")
    pretend(run_dir, process_start="1", nonce="other")
    claim(job="8")


def test_an_owner_on_another_host_is_alive_while_it_touches_its_file(run_dir, claim):
    claim(job="7")
    pretend(run_dir, host="elsewhere")
    assert refusal(lambda: claim(job="8")).code == "run_in_use"


def test_an_owner_on_another_host_that_is_silent_is_replaced(run_dir, claim):
    claim(job="7").release()
    pretend(run_dir, host="elsewhere", released=False)
    claim(job="8").check()


def looks_like_another_jobs(run_dir, job):
    place = ProcessLayout(1, 2, launcher="slurm", requeue_target=job)
    return is_of_another_job(run_dir, place, silent_s=0.5)


def test_a_run_is_another_jobs_only_while_that_lives(run_dir, claim):
    owner = claim(job="7")
    assert looks_like_another_jobs(run_dir, "8")
    assert not looks_like_another_jobs(run_dir, "7")
    pretend(run_dir, host="elsewhere")
    assert looks_like_another_jobs(run_dir, "8")  # it touches its file
    owner.release()
    assert not looks_like_another_jobs(run_dir, "8")
    pretend(run_dir, host="elsewhere", released=False)
    assert not looks_like_another_jobs(run_dir, "8")


def test_a_run_that_our_main_process_takes_over_just_now_is_ours(run_dir, claim, monkeypatch):
    claim(job="7")
    monkeypatch.setattr(ownership, "_lives", lambda *_: pretend(run_dir, job="8") or True)
    assert not looks_like_another_jobs(run_dir, "8")


def test_who_was_replaced_does_not_give_the_run_free(run_dir, claim):
    older, newer = claim(attempt=0), claim(attempt=1)
    older.release()
    newer.check()
    assert not json.loads((run_dir.path / "owner.json").read_text()).get("released")


def test_two_processes_alike_are_two_owners(claim):
    claim(job=None, job_key="single", launcher="single")
    again = refusal(lambda: claim(job=None, job_key="single", launcher="single"))
    assert again.code == "run_in_use"


def test_a_run_directory_that_cannot_be_written_to_is_said_so(tmp_path):
    owner = Ownership(RunDir(tmp_path / "gone"), ProcessLayout())
    assert "No such file" in refusal(owner.claim).message


@pytest.fixture
def trouble(monkeypatch):
    """Lets the next looks at the owner fail, where each is due."""

    def look(path):
        if due and due.pop(0):
            raise OSError(errno.EIO, "Input/output error")
        return read(path)

    due, read = [], ownership._read
    monkeypatch.setattr(ownership, "_read", look)
    monkeypatch.setattr(ownership, "_RETRY_AFTER_S", 0.0)
    return due


@pytest.mark.parametrize(
    "looks", [(True,), (False, True)]
)  # before the claim is written, and after
def test_a_hiccup_of_the_file_system_ends_no_claim(run_dir, trouble, looks):
    owner = Ownership(run_dir, ProcessLayout(), beat_s=600.0)
    trouble.extend(looks)
    owner.claim()
    trouble.append(True)
    owner.claim()
    owner.check()
    trouble.append(True)
    owner.release()  # says nothing: the process leaves anyway
    assert not trouble


def test_who_cannot_know_the_owner_is_refused_by_no_fault_of_the_user(run_dir, trouble):
    trouble.extend((True, True))
    error = refusal(Ownership(run_dir, ProcessLayout()).claim)
    assert (error.code, exit_code_of(error)) == ("owner_not_known", 1)
    assert "Input/output error" in error.message


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_who_finds_no_room_for_the_claim_wants_to_try_again(run_dir, monkeypatch, number):
    def full(path, text):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(ownership, "write_atomically", full)
    monkeypatch.setattr(ownership, "_RETRY_AFTER_S", 0.0)
    error = refusal(Ownership(run_dir, ProcessLayout()).claim)
    assert (error.code, exit_code_of(error)) == ("no_space", 75)
    assert os.strerror(number) in error.message
    assert "Make room or check the quota" in error.message


def test_an_owner_that_cannot_be_read_is_not_taken_for_none(run_dir):
    (run_dir.path / "owner.json").mkdir()
    with pytest.raises(IsADirectoryError):
        ownership._read(run_dir.path / "owner.json")


def test_no_thread_is_left(claim):
    owner = claim()
    owner.release()
    assert not owner._thread.is_alive()


def test_a_replaced_copy_commits_nothing(run_dir, claim):
    older = claim(attempt=0)
    claim(attempt=1)
    folder = run_dir.checkpoints
    error = refusal(lambda: save_snapshot(folder, 5, {}, {}, Retention(2), fence=older.check))
    assert error.code == "superseded"
    assert not folder.exists()


def test_a_copy_frozen_between_its_last_look_and_the_rename_commits_nothing(run_dir, claim):
    older = claim(attempt=0)
    newer = Ownership(run_dir, ProcessLayout(requeue_target="7", launcher="slurm", attempt=1))
    looks = []

    def freeze():
        older.check()
        looks.append(older)
        if len(looks) == 2:
            take_over(newer, run_dir)

    with pytest.raises(HpcddpError, match="No such file"):
        save_snapshot(run_dir.checkpoints, 5, {}, {}, Retention(2), fence=freeze)
    newer.release()
    assert list_checkpoints(run_dir.checkpoints) == []


def test_a_replaced_copy_takes_nothing_away(run_dir, claim):
    older = claim(attempt=0)
    claim(attempt=1)
    run_dir.checkpoints.mkdir()
    partial = start_partial(run_dir.checkpoints, 5)
    refusal(lambda: save_snapshot(run_dir.checkpoints, 6, {}, {}, Retention(2), fence=older.check))
    assert partial.exists()


@pytest.mark.parametrize("leaves_mount_point", [False, True])
def test_where_the_file_system_has_gone_the_run_is_not_made_anew(tmp_path, leaves_mount_point):
    run_dir = RunDir(tmp_path / "runs" / "r")
    run_dir.path.mkdir(parents=True)
    owner = Ownership(run_dir, ProcessLayout(), beat_s=0.02)
    owner.claim()
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    if leaves_mount_point:
        run_dir.path.mkdir(parents=True)
    folder = run_dir.checkpoints
    error = refusal(lambda: save_snapshot(folder, 5, {}, {}, Retention(2), fence=owner.check))
    assert error.code == "checkpoint_not_written"
    assert "owner.json is gone" in error.message
    assert "moved or removed" in error.message
    assert "Make room" not in error.message
    assert list(tmp_path.glob("runs/r/*")) == []
    (tmp_path / "runs").exists() and shutil.rmtree(tmp_path / "runs")
    (tmp_path / "elsewhere").rename(tmp_path / "runs")
    save_snapshot(folder, 5, {}, {}, Retention(2), fence=owner.check)  # it has come back
    owner.release()


def test_taking_over_removes_what_others_have_begun(run_dir, claim):
    run_dir.checkpoints.mkdir()
    partial = start_partial(run_dir.checkpoints, 3)
    take_over(Ownership(run_dir, ProcessLayout()), run_dir)
    assert not partial.exists()


# ---------------------------------------------------------------- real processes


def train_with_quick_beats(config, layout, run_dir):
    """In a child: the exit code, or the code of the refusal."""
    from hpcddp.stop_flag import StopFlag
    from hpcddp.train import loop

    defaults = ownership.Ownership.__init__.__kwdefaults__
    defaults |= {"beat_s": 0.05}
    try:
        return loop.train(config, layout, RunDir(run_dir), StopFlag.install())
    except HpcddpError as error:
        return error.code


def begin(run_dir, **fields):
    config = small_config("train.max_steps=100000", "checkpoint.every_steps=5")
    fields = {"requeue_target": "7", **fields}
    [layout] = layouts(1, **fields)
    return start(train_with_quick_beats, [(config, layout, run_dir)])


def wait_for_saves(run_dir, attempt, count=2):
    deadline = time.monotonic() + DEADLINE_S
    while True:
        saved = [e for e in events_of(run_dir) if e["event"] == "checkpoint"]
        if sum(event["attempt"] == attempt for event in saved) >= count:
            return
        assert time.monotonic() < deadline, events_of(run_dir)
        time.sleep(0.05)


def freeze(process):
    os.kill(process.pid, signal.SIGSTOP)
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)


def test_of_two_real_copies_the_frozen_one_ends_when_it_thaws(tmp_path):
    older = begin(tmp_path)
    wait_for_saves(tmp_path, 0)
    freeze(older.processes[0])
    committed = {info.step for info in list_checkpoints(RunDir(tmp_path).checkpoints)}
    newer = begin(tmp_path, attempt=1, restart_count=1)
    wait_for_saves(tmp_path, 1)
    thawed_at = time.time()
    os.kill(older.processes[0].pid, signal.SIGCONT)
    assert older.results() == ["superseded"]
    os.kill(newer.processes[0].pid, signal.SIGTERM)
    assert newer.results() == [75]
    late = [event for event in events_of(tmp_path) if event["time"] > thawed_at]
    saved = {e["step"] for e in late if e["event"] == "checkpoint" and e["attempt"] == 0}
    assert saved <= committed  # it may have been frozen before it could tell of the last one


def test_a_second_real_job_is_refused_and_the_first_goes_on(tmp_path):
    first = begin(tmp_path)
    wait_for_saves(tmp_path, 0)
    assert begin(tmp_path, requeue_target="8", attempt=1).results() == ["run_in_use"]
    wait_for_saves(tmp_path, 0, count=4)
    os.kill(first.processes[0].pid, signal.SIGTERM)
    assert first.results() == [75]
