"""How a process of a job becomes the user's own program: its signals, and one that came early."""

import errno
import signal
import subprocess
import sys
import threading

import pytest

from hpcddp.cluster.network import Network
from hpcddp.config.layout import ProcessLayout
from hpcddp.config.schema import RunConfig
from hpcddp.launch import job
from hpcddp.launch.job import _tells_all
from hpcddp.run_dir import RunDir
from hpcddp.stop_flag import StopFlag

BECOME = """
import os, sys, time
from hpcddp.launch.job import _become
from hpcddp.stop_flag import StopFlag

stop_flag = StopFlag.install()
if sys.argv[1] == "told":
    os.kill(os.getpid(), 12)
    while not stop_flag.is_set:
        time.sleep(0.01)
_become(tuple(sys.argv[2:]), stop_flag)
"""


def become(told, *command):
    words = [sys.executable, "-c", BECOME, told, *command]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("num_nodes", "launcher", "tellers"),
    [(2, "slurm", [0, 2]), (2, "local", [0]), (1, "slurm", [0]), (65, "slurm", [0])],
)
def test_the_first_process_of_each_host_tells_of_its_network(num_nodes, launcher, tellers):
    layouts = [
        ProcessLayout(
            rank, 130, rank % 2, 2, node_rank=rank // 2, num_nodes=num_nodes, launcher=launcher
        )
        for rank in range(4)
    ]
    assert [each.global_rank for each in layouts if _tells_all(each)] == tellers


def test_the_run_is_told_of_the_network_only_once_all_processes_have_met(tmp_path, monkeypatch):
    run_dir, before = RunDir(tmp_path), []
    layout = ProcessLayout(1, 2, node_rank=1, num_nodes=2, launcher="slurm", attempt=3)
    settled = layout, Network("n0", reasons=("GLOO_SOCKET_IFNAME=ib0: so",))

    def train(config, layout, run_dir, stop_flag, owner, once_met):
        before.extend(run_dir.read_events())
        once_met()
        return 0

    monkeypatch.setattr(job, "with_network", lambda *_, **__: settled)
    monkeypatch.setattr("hpcddp.train.loop.train", train)
    assert job._work(RunConfig(), layout, run_dir, StopFlag(), {}, None) == 0
    assert before == []
    [told] = run_dir.read_events()
    assert (told["event"], told["attempt"], told["node_rank"]) == ("network", 3, 1)


def test_a_full_disk_keeps_no_program_from_its_start(tmp_path, monkeypatch, caplog):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    class Started(Exception):
        pass

    def become(command, stop_flag):
        raise Started

    run_dir, layout = RunDir(tmp_path), ProcessLayout()
    config, network = RunConfig(command=("true",)), Network("n0", reasons=("so",))
    monkeypatch.setattr(RunDir, "append_event", full)
    monkeypatch.setattr(job, "attend", lambda *_: None)
    monkeypatch.setattr(job, "with_network", lambda *_, **__: (layout, network))
    monkeypatch.setattr(job, "_become", become)
    monkeypatch.setattr(job.os, "environ", {})
    owner = job._open_attempt(config, layout, run_dir, StopFlag(), {}, {"job_id": "pid-1"})
    with pytest.raises(Started):
        job._work(config, layout, run_dir, StopFlag(), {}, owner)
    words = ["Cannot write to the run directory"] * 3  # submitted, network and started
    assert [record.message.partition(":")[0] for record in caplog.records] == words


class Told(StopFlag):
    """A stop signal has come; what the thread that leaves does is written down."""

    def __init__(self):
        super().__init__()
        self.hear(signal.SIGTERM)
        self.acts = []

    def join(self):
        self.acts.append("noted")

    def release(self):
        self.acts.append("released")


@pytest.fixture
def told(monkeypatch):
    told = Told()
    monkeypatch.setattr(job, "leave", lambda code: told.acts.append(code))
    return told


def test_who_is_told_before_all_have_met_gives_the_run_free_and_leaves(told):
    job._leave_when_told(told, told, told, lambda: 75)
    assert told.acts == ["noted", "released", 75]


def test_whose_processes_meet_while_slurm_is_asked_keeps_the_run(told, monkeypatch):
    monkeypatch.setattr(told, "join", told.leave_together)
    job._leave_when_told(told, told, told, lambda: 75)
    assert told.acts == []


def test_who_is_giving_the_run_free_does_not_begin_to_train(told, monkeypatch):
    meeting = threading.Thread(target=told.leave_together)

    def release():
        meeting.start()
        meeting.join(0.3)
        told.acts.append(told.leaves_together)

    monkeypatch.setattr(told, "release", release)
    job._leave_when_told(told, told, told, lambda: 75)
    meeting.join()
    assert told.acts == ["noted", False, 75]


def signals_ignored(status):
    """The numbers of the signals a process ignores, from its /proc/PID/status."""
    mask = int(next(line for line in status.splitlines() if "SigIgn" in line).split()[1], 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def test_a_program_ignores_no_signal_that_python_ignored():
    done = become("untold", "cat", "/proc/self/status")
    assert not signals_ignored(done.stdout) & {signal.SIGPIPE, signal.SIGXFSZ}


def test_a_stop_signal_that_came_before_the_program_is_not_lost():
    done = become("told", "echo", "not to be started")
    assert (done.returncode, done.stdout) == (-signal.SIGUSR2, "")


@pytest.mark.parametrize(
    ("failed", "code"),
    [
        ({"job_id": "7", "attempt": 1, "exit_code": 2}, 2),
        ({"job_id": "7", "attempt": 0, "exit_code": 2}, None),  # before Slurm requeued it
        ({"job_id": "6", "attempt": 1, "exit_code": 2}, None),
        ({"attempt": 1, "exit_code": 2}, None),
    ],
)
def test_whoever_is_ended_knows_whether_another_has_failed(failed, code, tmp_path):
    run_dir = RunDir(tmp_path)
    run_dir.append_event("failed", global_rank=1, **failed)
    assert run_dir.failure_of("7", 1) == code


SENT = {"event": "submitted"}
TAKES_OVER = {"event": "submitted", "again": True}
CANCELLED = {"event": "cancelled", "by": "ada"}


@pytest.mark.parametrize(
    ("events", "restarts", "code"),
    [
        ([SENT, CANCELLED], 1, 130),  # Slurm was asked for a requeue all the same
        ([SENT, CANCELLED, SENT], 0, None),  # its user has sent it anew
        ([SENT, CANCELLED, SENT], 1, None),
        (
            [SENT, CANCELLED, TAKES_OVER],
            0,
            130,
        ),  # of a number nobody knew to cancel
        ([SENT, TAKES_OVER], 0, None),
    ],
)
def test_a_cancelled_run_begins_again_only_where_its_user_sends_it(
    tmp_path, events, restarts, code
):
    run_dir = RunDir(tmp_path)
    for event in events:
        run_dir.append_event(event["event"], **{k: v for k, v in event.items() if k != "event"})
    assert job._over_already(ProcessLayout(restart_count=restarts), run_dir) == code
