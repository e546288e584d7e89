"""How a process of a job becomes the user's own program: its signals, and one that came early."""

import signal
import subprocess
import sys

import pytest

from hpcddp.config.layout import ProcessLayout
from hpcddp.launch.job import _tells_all

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
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


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
