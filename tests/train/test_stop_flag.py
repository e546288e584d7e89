"""Signals are noticed at once, in the right process only, from the start."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from train_ranks import layouts, start

ROOT = Path(__file__).parents[2]


def run_python(code):
    """The standard output of `code`, which exits by itself."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
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


def wait_in_collective(layout, sender):
    """In a child: rank 0 waits for rank 1, is signalled meanwhile, and tells when it noticed."""
    import torch

    from hpcddp.stop_flag import StopFlag
    from hpcddp.train.process_group import open_ranks

    flag = StopFlag.install()
    ranks = open_ranks(layout, torch.device("cpu"), 60)
    if layout.is_main:
        sender.send(os.getpid())
    else:
        time.sleep(2.0)
    ranks.sum_across(torch.zeros(1))
    returned = time.time()
    ranks.close()
    return (flag.notice.time if flag.notice else None), returned


def signal_when_told(receiver):
    """In a child: wait until rank 0 surely waits, then signal it; when that was."""
    pid = receiver.recv()
    time.sleep(0.5)
    sent = time.time()
    os.kill(pid, signal.SIGTERM)
    return sent


def test_a_signal_is_noticed_while_the_main_thread_waits_in_a_collective():
    from train_ranks import CONTEXT

    delays = []
    for _ in range(3):
        receiver, sender = CONTEXT.Pipe(duplex=False)
        both = start(wait_in_collective, [(layout, sender) for layout in layouts(2)])
        [sent] = start(signal_when_told, [(receiver,)]).results()
        (noticed, returned), _ = both.results()
        assert returned - sent > 0.5, "it did not wait"
        delays.append(noticed - sent)
    assert min(delays) < 0.05
