"""A stop signal from outside at every kind of moment: one step, one whole checkpoint, code 75.

Each child says when it has come to the moment in question and stays there until it is signalled.
"""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from test_stop import ENDLESS
from train_ranks import DEADLINE_S, before_call, events_of, kinds_of, layouts, small_config, start
from waiting import wait_until

from hpcddp.checkpoint_dir import list_checkpoints
from hpcddp.cluster.layout import process_environment
from hpcddp.run_dir import RunDir
from hpcddp.stop_flag import STOP_SIGNALS

ROOT = Path(__file__).parents[2]
SIGNALLED = "signalled"  # the file by which the test says that it has sent its signals
SETTLE_S = 0.3  # for the other ranks to come as far as they can, and for a signal to be noticed


class Moment:
    """Tells the test that a process is there, once."""

    def __init__(self, run_dir, layout):
        self.path = run_dir / f"there-{layout.global_rank}"
        self.signalled = run_dir / SIGNALLED
        self.global_rank = layout.global_rank

    def stay(self):
        if not self.path.exists():
            self.path.touch()
            wait_until(self.signalled.exists, DEADLINE_S)
            time.sleep(SETTLE_S)


def in_collective(moment):
    """Rank 0 waits in the reduction of its gradients for rank 1, which comes late."""
    from hpcddp.train import loop

    def at_third_step(session):
        if session.state.step == 2:
            if moment.global_rank == 0:
                moment.path.touch()
            else:
                moment.stay()

    before_call(loop, "train_step", at_third_step)


def in_loader(moment):
    from hpcddp.train.feed import Feed

    taken = []

    def at_third_batch(feed):
        taken.append(feed)
        if len(taken) == 3:
            moment.stay()

    before_call(Feed, "next", at_third_batch)


def in_evaluation(moment):
    from hpcddp.train import evaluate

    before_call(evaluate, "_loss_correct_samples", lambda *_: moment.stay())


def in_save(moment):
    """In the thread that writes; only rank 0 ever comes here."""
    from hpcddp.train import saving

    before_call(saving, "save_snapshot", lambda *_: moment.stay())


def in_last_save(moment):
    """As `in_save`, after a first signal to this very process in step 3."""
    from hpcddp.train import loop

    def signalled(session):
        if session.state.step == 2:
            os.kill(os.getpid(), signal.SIGUSR2)

    before_call(loop, "train_step", signalled)
    in_save(moment)


def train_paused(come_to, config, layout, run_dir):
    """In a child: train, and say when the moment has come."""
    from hpcddp.stop_flag import StopFlag
    from hpcddp.train import loop

    come_to(Moment(run_dir, layout))
    return loop.train(config, layout, RunDir(run_dir), StopFlag.install())


def stop_at(come_to, run_dir, *settings, signums=(signal.SIGTERM,), victim=0, children=False):
    """Train on two ranks, signal `victim` at the moment; the steps of the checkpoints there are."""
    config = small_config(*ENDLESS, *settings)
    calls = [(config, layout, run_dir) for layout in layouts(2)]
    started = start(partial(train_paused, come_to), calls)
    wait_until((run_dir / f"there-{victim}").exists, DEADLINE_S)
    time.sleep(SETTLE_S)
    process = psutil.Process(started.processes[victim].pid)
    for child in process.children(recursive=True) if children else ():
        for signum in STOP_SIGNALS:
            child.send_signal(signum)
    for signum in signums:
        process.send_signal(signum)
    (run_dir / SIGNALLED).touch()
    assert started.results() == [75, 75]
    return [info.step for info in list_checkpoints(RunDir(run_dir).checkpoints)]


def stopped_step(run_dir):
    kinds = kinds_of(run_dir)
    assert kinds[-1] == "stopped"
    assert [kinds.count(kind) for kind in ("started", "signal", "stopped")] == [1, 1, 1]
    return events_of(run_dir)[-1]["step"]


def test_in_a_collective(tmp_path):
    assert stop_at(in_collective, tmp_path) == [3]
    assert stopped_step(tmp_path) == 3


def test_in_the_loader_and_its_workers_go_on(tmp_path):
    # Three passes make a step: the third batch is that of step 1.
    settings = ("train.micro_batch=2", "data.workers=1")
    assert stop_at(in_loader, tmp_path, *settings, victim=1, children=True) == [1]
    assert stopped_step(tmp_path) == 1


def test_in_an_evaluation_which_then_reports_nothing(tmp_path):
    settings = ("train.eval_every_epochs=0.4", "data.synthetic_samples=60")  # after two steps
    assert stop_at(in_evaluation, tmp_path, *settings, victim=1) == [2]
    assert stopped_step(tmp_path) == 2
    assert not RunDir(tmp_path).metrics.read_text().count("accuracy")


def test_in_a_save_on_the_way(tmp_path):
    kept = stop_at(in_save, tmp_path, "checkpoint.every_steps=2", "checkpoint.keep_last=9")
    events = events_of(tmp_path)
    saved = [event["step"] for event in events if event["event"] == "checkpoint"]
    last = stopped_step(tmp_path)
    # The save of step 4 waits for that of step 2, and is left out when the signal has come.
    assert saved == kept == [2, last]
    assert last <= 5


def test_more_signals_in_the_save_before_leaving_do_not_hurt_it(tmp_path):
    assert stop_at(in_last_save, tmp_path, signums=STOP_SIGNALS * 2) == [3]
    assert stopped_step(tmp_path) == 3
    [told] = [event for event in events_of(tmp_path) if event["event"] == "signal"]
    assert told["signal"] == "SIGUSR2"


def has_loaded_torch(process):
    """True once the library is mapped; its Python half takes most of the time and comes later."""
    return any("libtorch_cpu" in part.path for part in process.memory_maps())


def waits_for_others(process):
    """True once it listens for the processes that are to come."""
    return any(each.status == psutil.CONN_LISTEN for each in process.net_connections())


@pytest.mark.parametrize(
    ("has_come", "signum"),
    [
        (has_loaded_torch, signal.SIGTERM),
        (has_loaded_torch, signal.SIGUSR2),
        (waits_for_others, signal.SIGUSR1),
    ],
)
def test_before_the_processes_have_met_one_leaves_at_once(has_come, signum, tmp_path):
    environ = {**os.environ, "HPCDDP_RUNS_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    words = ["--name", "run", "train.max_steps=3", "train.model=resnet18", "data.name=synthetic"]
    with subprocess.Popen(
        [sys.executable, "-m", "hpcddp", "run", "--cluster", "local", *words],
        env=process_environment(environ, nodes=2, processes_per_node=1, global_rank=0),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        deadline = time.monotonic() + DEADLINE_S
        while not has_come(psutil.Process(run.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        run.send_signal(signum)
        output, _ = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 75, output
    assert f"{signum.name} before training: nothing to save" in output
    assert kinds_of(tmp_path / "run") == ["submitted", "launched", "stop_reason"]
