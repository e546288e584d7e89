"""What the main process notes: its begin, why it is told to stop, how the last attempt ended."""

import errno
import os
import signal
import subprocess
import sys

import pytest
from waiting import wait_until

from hpcddp.config.layout import ProcessLayout
from hpcddp.config.schema import RunConfig
from hpcddp.launch import witness
from hpcddp.launch.stop_reason import SlurmSays, StopReason
from hpcddp.run_dir import RunDir
from hpcddp.stop_flag import StopFlag, StopNotice

ON_SLURM = {"launcher": "slurm", "requeue_target": "7", "attempt": 1, "restart_count": 1}


def launched(attempt, job_id="7", **fields):
    return "launched", {"attempt": attempt, "job_id": job_id, **fields}


class ToldLater(StopFlag):
    def wait(self):
        return StopNotice(signal.SIGTERM, 123.0)


@pytest.fixture
def attend(tmp_path, monkeypatch):
    monkeypatch.setattr(
        witness, "ask_stop_reason", lambda environ, lead: SlurmSays(StopReason.PREEMPTED, 143.0)
    )
    monkeypatch.setattr(witness, "lost_nodes", lambda hosts: ["n1"] if "n1" in hosts else [])
    monkeypatch.setattr(
        witness, "restarted_nodes", lambda hosts, since: ["n2"] if since < 50 else []
    )
    run_dir = RunDir(tmp_path)

    def attend(*before, **place):
        for kind, fields in before:
            run_dir.append_event(kind, **fields)
        layout = ProcessLayout(**place)
        environ = {**os.environ, "HPCDDP_ATTEMPT_TIME": "100.5"}
        witness.attend(RunConfig(), layout, run_dir, ToldLater(), environ)
        wait_until(lambda: run_dir.read_events()[-1]["event"] == "stop_reason")
        return {event["event"]: event for event in run_dir.read_events()[len(before) :]}

    return attend


def test_slurm_is_asked_as_soon_as_a_signal_comes(attend):
    told = attend(**ON_SLURM)["stop_reason"]
    assert (told["reason"], told["signal_time"], told["end_time"]) == ("preempted", 123.0, 143.0)
    assert told["attempt"] == 1


def test_without_slurm_only_the_signal_is_noted(attend):
    events = attend(launcher="local")
    assert events["stop_reason"]["reason"] == "signalled"
    assert events["launched"]["began"] == 100.5
    assert "ended" not in events


@pytest.mark.parametrize(
    ("hosts", "began", "reason"),
    [
        (["n0", "n1"], 60.0, "node failure"),
        (["n0"], 40.0, "daemon of its node restarted"),
        (["n0"], 60.0, "requeued by Slurm"),
    ],
)
def test_an_attempt_that_left_no_word_is_explained(attend, hosts, began, reason):
    before = [launched(0, began=began), ("started", {"attempt": 0, "hosts": hosts})]
    events = attend(*before, **ON_SLURM)
    assert (events["ended"]["reason"], events["ended"]["attempt"]) == (reason, 0)


def test_a_process_that_failed_for_a_lost_one_does_not_hide_the_loss(attend):
    hosts = ("started", {"attempt": 0, "hosts": ["n0", "n1"]})
    failed = ("failed", {"attempt": 0, "global_rank": 0, "exit_code": 1})
    ended = attend(launched(0), hosts, failed, **ON_SLURM)["ended"]
    assert (ended["reason"], ended["lost_nodes"]) == ("node failure", ["n1"])


def test_whether_it_was_preempted_is_asked_for_the_queue_of_the_job(attend, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_PARTITION", "p")
    monkeypatch.setenv("SLURM_JOB_QOS", "spare")
    monkeypatch.setattr(witness, "requeues_preempted", lambda *queue: queue == ("p", "spare"))
    assert attend(launched(0), **ON_SLURM)["ended"]["preemptible"]


def test_an_attempt_that_told_its_end_is_left_alone(attend):
    requeued = {"attempt": 0, "reason": "preempted"}
    assert "ended" not in attend(launched(0), ("requeued", requeued), **ON_SLURM)


def test_a_start_to_which_the_run_was_refused_comes_not_back_as_an_attempt(attend):
    requeued = {"attempt": 0, "reason": "preempted"}
    after_refused = ON_SLURM | {"attempt": 2}
    assert "ended" not in attend(launched(0), ("requeued", requeued), **after_refused)


def test_an_attempt_that_was_lost_before_another_was_refused_is_explained(attend):
    ended = attend(launched(0), **ON_SLURM | {"attempt": 2})["ended"]
    assert (ended["attempt"], ended["reason"]) == (0, "requeued by Slurm")


def test_how_the_job_before_this_one_ended_is_not_for_this_one_to_say(attend):
    assert "ended" not in attend(launched(0, job_id="6"), **ON_SLURM)


_WAITS = """
import os, signal
from hpcddp.stop_flag import StopFlag
flag = StopFlag.install()
os.kill(os.getpid(), signal.SIGUSR2)
assert flag.wait().signum == signal.SIGUSR2
"""


def test_a_full_disk_ends_neither_the_start_nor_the_notes(tmp_path, monkeypatch, caplog):
    tried = []

    def full(run_dir, kind, **_):
        tried.append(kind)
        raise OSError(errno.ENOSPC, "No space left on device")

    run_dir = RunDir(tmp_path)
    kind, fields = launched(0)
    run_dir.append_event(kind, **fields)
    monkeypatch.setattr(RunDir, "append_event", full)
    monkeypatch.setattr(witness, "ask_stop_reason", lambda *_: SlurmSays(StopReason.PREEMPTED))
    layout = ProcessLayout(**ON_SLURM)
    witness.attend(RunConfig(), layout, run_dir, ToldLater(), {}).join(100)
    assert tried == ["ended", "launched", "stop_reason"]
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "Cannot write to the run directory"
    ] * 3


def test_a_waiting_thread_is_told_of_a_real_signal():
    assert subprocess.run([sys.executable, "-c", _WAITS], timeout=120).returncode == 0
