"""Signals are noticed at once, in the right process only, from the start."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from train_ranks import CONTEXT, DEADLINE_S, layouts, start

ROOT = Path(__file__).parents[2]


def run_python(code):
    """The standard output of `code`, which exits by itself."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_installing_loads_no_torch_and_no_configuration():
    code = "import sys, hpcddp.stop_flag; print(*(m for m in sys.modules if m[:6] == 'hpcddp'))"
    assert run_python(code) == ["hpcddp", "hpcddp.stop_flag"]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGUSR2"])
def test_the_first_signal_is_kept_and_a_second_is_harmless(name):
    code = f"""
import os, signal
from hpcddp.stop_flag import StopFlag
flag = StopFlag.install()
print(flag.is_set)
for signum in (signal.{name}, signal.SIGTERM, signal.SIGUSR1):
    os.kill(os.getpid(), signum)
print(flag.is_set, signal.Signals(flag.notice.signum).name)
"""
    assert run_python(code) == ["False", "True", name]


def test_other_signals_set_nothing():
    code = """
import os, signal, time
from hpcddp.stop_flag import StopFlag
flag = StopFlag.install()
signal.signal(signal.SIGWINCH, lambda *_: None)
os.kill(os.getpid(), signal.SIGWINCH)
time.sleep(0.1)
print(flag.is_set)
"""
    assert run_python(code) == ["False"]


def test_children_neither_react_nor_report_to_their_parent():
    code = """
import os, signal, time
from hpcddp.stop_flag import StopFlag
flag = StopFlag.install()
child = os.fork()
if not child:
    time.sleep(0.3)
    os._exit(7)
for signum in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    time.sleep(0.05)
    os.kill(child, signum)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flag.is_set)
"""
    assert run_python(code) == ["7", "False"]


def test_a_library_that_takes_a_signal_is_overruled():
    code = """
import os, signal
from hpcddp.stop_flag import StopFlag
flag = StopFlag.install()
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
flag.rearm()
os.kill(os.getpid(), signal.SIGUSR1)
print(flag.is_set)
"""
    assert run_python(code) == ["True"]


def test_a_signal_while_torch_is_imported_is_kept():
    code = """
import os, signal, threading, time
from hpcddp.stop_flag import StopFlag
flag = StopFlag.install()
threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
import torch
while not flag.is_set: time.sleep(0.01)
print(flag.is_set)
"""
    assert run_python(code) == ["True"]


def wait_in_collective(layout, begins, news, tell):
    """In a child: rank 0 waits for rank 1, which comes when rank 0 has noticed a signal, or a
    minute later; rank 1 says whether it has.
    """
    import torch

    from hpcddp.stop_flag import StopFlag
    from hpcddp.train.process_group import open_ranks

    flag, has_noticed = StopFlag.install(), None
    ranks = open_ranks(layout, torch.device("cpu"), 60)

    def look():
        while not flag.is_set:
            time.sleep(0.01)
        tell.send(True)

    if layout.is_main:
        threading.Thread(target=look, daemon=True).start()
        begins.send(os.getpid())
    else:
        has_noticed = news.poll(60)
    ranks.sum_across(torch.zeros(1))
    ranks.close()
    return has_noticed


def test_a_signal_is_noticed_while_the_main_thread_waits_in_a_collective():
    (where, begins), (news, tell) = CONTEXT.Pipe(duplex=False), CONTEXT.Pipe(duplex=False)
    both = start(wait_in_collective, [(layout, begins, news, tell) for layout in layouts(2)])
    assert where.poll(DEADLINE_S)
    time.sleep(0.5)  # until it waits; a signal that comes earlier proves less
    os.kill(where.recv(), signal.SIGTERM)
    assert both.results() == [None, True]
