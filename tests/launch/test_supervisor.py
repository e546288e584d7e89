"""A supervisor is one process on one host, not whatever has its number now."""

import json
import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest
from ended import has_ended
from waiting import wait_until

from hpcddp.errors import HpcddpError
from hpcddp.launch.supervisor import (
    read_supervisor,
    record_supervisor,
    stop_supervisor,
    supervisor_alive,
)
from hpcddp.run_dir import RunDir

# A supervisor with a child in its group and one that has left it; both ignore SIGTERM on demand,
# as what it starts then does: an ignored signal stays ignored in a child.
SUPERVISOR = """
import signal, subprocess, sys
from pathlib import Path
from hpcddp.launch.supervisor import record_supervisor
from hpcddp.run_dir import RunDir
if sys.argv[2] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
children = [subprocess.Popen(["sleep", "600"], start_new_session=left) for left in (False, True)]
record_supervisor(RunDir(Path(sys.argv[1])))
print(*(child.pid for child in children), flush=True)
children[0].wait()
"""

# The first process of a container: orphans become its children, and it never asks how they ended.
CARELESS = """
import ctypes, subprocess, sys
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
child = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], start_new_session=True)
sys.stdin.read()
"""


@pytest.fixture
def run_dir(tmp_path):
    return RunDir(tmp_path)


@pytest.fixture
def start(run_dir):
    """Start a supervisor in a session of its own; returns it and its children's processes."""
    started = []

    def start(manner, below=None):
        words = [*filter(None, [below]), SUPERVISOR, str(run_dir.path), manner]
        process = subprocess.Popen(
            [sys.executable, "-c", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        children = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
        started.extend([process, *children])
        return process, children

    yield start
    for process in started:
        if isinstance(process, subprocess.Popen) or process.is_running():
            process.kill()
        if isinstance(process, subprocess.Popen):
            process.wait()
        wait_until(lambda pid=process.pid: has_ended(pid))


def test_the_record_says_who_where_and_since_when(run_dir):
    record_supervisor(run_dir)
    record = read_supervisor(run_dir)
    assert (record["pid"], record["host"]) == (os.getpid(), socket.gethostname())
    assert record["create_time"] == psutil.Process().create_time()
    assert supervisor_alive(run_dir) is True


def test_no_record_and_a_torn_one_are_no_supervisor(run_dir):
    assert (read_supervisor(run_dir), supervisor_alive(run_dir)) == (None, False)
    (run_dir.path / "supervisor.json").write_text('{"pid": 1')
    assert (read_supervisor(run_dir), supervisor_alive(run_dir)) == (None, False)


def test_another_process_with_the_same_number_is_not_the_supervisor(run_dir):
    record_supervisor(run_dir)
    record = read_supervisor(run_dir)
    record["create_time"] -= 3600
    (run_dir.path / "supervisor.json").write_text(json.dumps(record))
    assert supervisor_alive(run_dir) is False
    assert stop_supervisor(run_dir) is False


def test_another_host_cannot_be_asked_nor_stopped(run_dir):
    record = {"pid": os.getpid(), "create_time": 0, "host": "elsewhere"}
    (run_dir.path / "supervisor.json").write_text(json.dumps(record))
    assert supervisor_alive(run_dir) is None
    with pytest.raises(HpcddpError, match="Cancel it there"):
        stop_supervisor(run_dir)


def test_a_supervisor_that_ended_and_was_not_reaped_is_not_alive(run_dir, start):
    process, children = start("polite")
    assert supervisor_alive(run_dir) is True
    for each in (process, children[0]):
        each.send_signal(signal.SIGKILL)
    wait_until(lambda: supervisor_alive(run_dir) is False)
    assert process.returncode is None  # a zombie until we wait for it


@pytest.mark.parametrize("is_reaped", [True, False])
def test_what_a_killed_supervisor_left_behind_lives_and_can_be_stopped(run_dir, start, is_reaped):
    process, children = start("polite")
    process.send_signal(signal.SIGKILL)
    if is_reaped:
        process.wait()
    else:
        wait_until(lambda: has_ended(process.pid))
    assert supervisor_alive(run_dir) is True
    assert stop_supervisor(run_dir, grace_s=5) is True
    wait_until(lambda: has_ended(children[0].pid))
    assert supervisor_alive(run_dir) is False


@pytest.fixture
def killed(monkeypatch):
    """The numbers of the processes that did not end by themselves in their grace time."""
    killed, kill = [], psutil.Process.kill
    monkeypatch.setattr(psutil.Process, "kill", lambda self: killed.append(self.pid) or kill(self))
    return killed


@pytest.mark.parametrize(("manner", "grace_s"), [("polite", 60.0), ("stubborn", 0.3)])
def test_stopping_ends_the_supervisor_and_all_that_it_started(
    run_dir, start, manner, grace_s, killed
):
    _, children = start(manner)
    children[1].send_signal(signal.SIGTERM)  # what left the group gets no signal from us at first
    assert stop_supervisor(run_dir, grace_s=grace_s) is True
    assert bool(killed) == (manner == "stubborn")
    assert all(has_ended(child.pid) for child in children)
    assert supervisor_alive(run_dir) is False
    assert stop_supervisor(run_dir) is False


def test_what_ended_and_was_not_reaped_is_not_waited_for(run_dir, start, killed):
    _, children = start("polite", below=CARELESS)
    children[1].send_signal(signal.SIGTERM)
    assert stop_supervisor(run_dir, grace_s=60.0) is True
    assert killed == []
    assert {child.status() for child in children} == {psutil.STATUS_ZOMBIE}


def test_what_has_left_the_group_is_killed_after_the_grace_time(run_dir, start):
    _, children = start("polite")
    assert stop_supervisor(run_dir, grace_s=0.3) is True
    assert all(has_ended(child.pid) for child in children)
