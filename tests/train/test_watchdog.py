"""A process that stands still ends its attempt, and is named."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
from train_ranks import (
    DEADLINE_S,
    before_call,
    events_of,
    kinds_of,
    layouts,
    small_config,
    start,
    train_here,
    train_on,
    train_until,
)
from waiting import wait_until

from hpcddp.cluster.variables import ATTEMPT_VARIABLE
from hpcddp.config.layout import ProcessLayout
from hpcddp.config.load import Layer, resolve
from hpcddp.config.write import config_text
from hpcddp.launch.requeue import finish_attempt
from hpcddp.run_dir import RunDir
from hpcddp.train.watchdog import Watchdog, find_suspects


@pytest.mark.parametrize(
    ("beats", "suspects"),
    [
        ({0: 7, 2: 7}, [1]),  # stopped, or gone: it wrote nothing
        ({0: 7, 1: 6, 2: 7}, [1]),
        ({0: 7, 1: 7, 2: 7}, []),  # a collective that never returns
    ],
)
def test_who_is_silent_or_behind_is_suspected(beats, suspects):
    assert find_suspects(beats, world_size=3) == suspects


class Looks:
    """Stands for the pauses of a watchdog: `act` comes before each look, whose number it gets."""

    def __init__(self, count, act):
        self.numbers, self.count, self.act = iter(range(1, count + 1)), count, act

    def wait(self, pause_s):
        number = next(self.numbers, None)
        if number is not None:
            self.act(number)
        return number is None


@pytest.mark.parametrize(
    ("looks_per_beat", "barks"),
    [(1, []), (19, []), (22, [4.0])],  # a look each 0.2 s, which is a twentieth of the time-out
)
def test_only_a_process_that_does_not_go_on_is_ended(tmp_path, monkeypatch, looks_per_beat, barks):
    watchdog, barked = Watchdog(ProcessLayout(), RunDir(tmp_path), 4.0), []
    monkeypatch.setattr(watchdog, "_bark", lambda silent_s: barked.append(round(silent_s, 1)))
    watchdog.is_stepping = True
    beat = watchdog.beat
    watchdog._over = Looks(22, lambda n: beat() if n % looks_per_beat == 0 else None)
    watchdog._watch()
    assert barked == barks


def test_a_process_that_has_ended_is_left_alone(tmp_path, monkeypatch):
    watchdog, barked = Watchdog(ProcessLayout(), RunDir(tmp_path), 0.4), []
    monkeypatch.setattr(watchdog, "_bark", barked.append)
    watchdog.is_stepping = True
    watchdog.stop()
    watchdog._watch()  # returns
    assert barked == []


def train_with_a_slow_disk(config, layout, run_dir):
    """In a child: stop by a signal in step 2; the save that follows takes longer than a step may,
    which from here on is no time at all.
    """
    from hpcddp.train import loop, saving

    def lose_patience(session, _):
        session.watchdog._timeout_s, session.watchdog._pause_s = 0.2, 0.01

    before_call(loop, "_leave", lose_patience)
    before_call(saving, "save_snapshot", lambda *_: time.sleep(7))
    return train_until(2, config, layout, run_dir)


def test_a_last_save_may_take_longer_than_a_step_and_nobody_who_waits_for_it_is_ended(tmp_path):
    # A look takes 3 s until the time-out has changed.
    config = small_config("train.hang_timeout_s=60", "train.max_steps=100000")
    assert train_on(2, tmp_path, config, train_with_a_slow_disk) == [75, 75]
    assert kinds_of(tmp_path) == ["started", "signal", "checkpoint", "stopped"]


def train_with_collectives_that_wait(config, layout, run_dir):
    """In a child: raise where torch would end a collective before the watchdog does."""
    from hpcddp.train import loop

    def check(session):
        for group in (dist.group.WORLD, session.ranks._control):
            options = group._get_backend(torch.device("cpu")).options
            assert options._timeout > timedelta(seconds=2 * config.train.hang_timeout_s)

    before_call(loop, "train_step", check)
    return train_here(config, layout, run_dir)


def test_no_collective_ends_before_the_watchdog_has_spoken(tmp_path):
    config = small_config("train.hang_timeout_s=100000", "train.max_steps=1")
    assert train_on(2, tmp_path, config, train_with_collectives_that_wait) == [0, 0]


_HANGS_AND_CANNOT_SAY_SO = """
import sys, time
from hpcddp.config.layout import ProcessLayout
from hpcddp.run_dir import RunDir
from hpcddp.train import watchdog
watchdog._MOST_WORDS_S = 0.5
watchdog.write_atomically = lambda *_: time.sleep(600)
dog = watchdog.Watchdog(ProcessLayout(), RunDir(__import__("pathlib").Path(sys.argv[1])), 0.2)
dog.is_stepping = True
dog.start()
time.sleep(600)
"""


def test_a_file_system_that_hangs_does_not_keep_a_process_that_hangs(tmp_path):
    words = [sys.executable, "-c", _HANGS_AND_CANNOT_SAY_SO, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "no progress for" in done.stderr


def start_and_hang(stage, config, layout, run_dir):
    """In a child: train, and stay for ever where rank 0 comes to `stage` of the start."""
    from hpcddp.train import start as stages
    from hpcddp.train import watchdog

    watchdog._LEAST_FOR_FILES_S = 0.0
    # However late the other one speaks: who leaves first takes the word from it.
    before_call(watchdog.Watchdog, "_wait_for_words", wait_for_all_words)
    sys.stderr = (run_dir / f"stderr-{layout.global_rank}").open("w")
    if layout.is_main:
        before_call(stages, stage, lambda *_: time.sleep(600))
    return train_here(config, layout, run_dir)


def wait_for_all_words(watchdog, folder):
    wait_until(lambda: len(watchdog._words(folder)) == watchdog._layout.world_size)


@pytest.mark.parametrize("stage", ["take_over", "build_session"])
def test_a_hang_in_the_start_is_noticed_and_every_rank_says_where_it_stands(stage, tmp_path):
    config = small_config("train.hang_timeout_s=3")
    calls = [(config, layout, tmp_path) for layout in layouts(2)]
    started = start(partial(start_and_hang, stage), calls)
    for process in started.processes:
        process.join(DEADLINE_S)
    assert started.processes[0].exitcode == 1  # the other may find it gone while it ends
    for global_rank in range(2):
        assert "open_session" in (tmp_path / f"stderr-{global_rank}").read_text()
    [hang] = [event for event in events_of(tmp_path) if event["event"] == "hang"]
    assert hang["suspected_ranks"] in ([], [0])


def test_a_hang_counts_as_a_failure(tmp_path, monkeypatch):
    run_dir = RunDir(tmp_path)
    values = {"train": {"max_steps": 1}, "requeue": {"max_failures": 1}}
    run_dir.config.write_text(config_text(resolve([Layer("test", values)])))
    for attempt in range(2):
        for kind in ("started", "hang", "failed"):
            run_dir.append_event(kind, attempt=attempt, global_rank=0, exit_code=1, error="Hang")
        finish_attempt(run_dir, 1, {ATTEMPT_VARIABLE: str(attempt)})
    assert [e["event"] for e in run_dir.read_events()][3::4] == ["requeued", "failed"]


@pytest.fixture
def hpcddp(tmp_path):
    env = {**os.environ, "HPCDDP_RUNS_DIR": str(tmp_path / "runs"), "OMP_NUM_THREADS": "1"}

    def hpcddp(*words):
        command = [sys.executable, "-m", "hpcddp", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=150)

    return hpcddp


def test_a_stopped_rank_ends_the_attempt_and_is_named(hpcddp, tmp_path):
    words = ["train.model=resnet18", "data.name=synthetic", "data.image_size=32"]
    words += ["train.global_batch=8", "train.max_steps=100000", "train.eval_every_epochs=null"]
    words += ["train.hang_timeout_s=12", "log.every_steps=1", "data.synthetic_samples=64"]
    place = ["--cluster", "local", "--nodes", "2", "--name", "r"]
    done = hpcddp("submit", *place, *words)
    assert done.returncode == 0, done.stderr
    run_dir = RunDir(tmp_path / "runs" / "r")
    wait_until(lambda: run_dir.metrics.exists())
    os.kill(process_of_rank(1, run_dir), signal.SIGSTOP)
    wait_until(lambda: any(e["event"] == "hang" for e in run_dir.read_events()))
    hpcddp("wait", "r", "--timeout", "100")
    hang = next(event for event in run_dir.read_events() if event["event"] == "hang")
    assert (hang["suspected_ranks"], hang["global_rank"]) == ([1], 0)
    status = json.loads(hpcddp("status", "r", "--json").stdout)
    assert (status["state"], status["exit_code"]) == ("failed", 1)
    assert "suspected rank: 1" in status["reason"]
    log = run_dir.rank_log(0, 0).read_text()
    assert "train_step" in log  # where the main thread waited
    collectives = (run_dir.attempt_logs(0) / "collectives-rank-0000.json").read_text()
    assert json.loads(collectives)["entries"]


def process_of_rank(global_rank, run_dir):
    import psutil

    for process in psutil.process_iter():
        try:
            environ = process.environ()
            is_ours = str(run_dir.path) in process.cmdline() and "run" in process.cmdline()
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        if is_ours and environ.get("HPCDDP_GLOBAL_RANK") == str(global_rank):
            return process.pid
    raise AssertionError(f"no process of rank {global_rank}")
