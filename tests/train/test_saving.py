"""Saving beside the loop: what is written, when it is waited for, and how it may fail."""

import errno
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from train_ranks import events_of, kinds_of, small_config, train_on

from hpcddp.checkpoint_dir import list_checkpoints
from hpcddp.checkpoint_kept import Best, read_best
from hpcddp.config.layout import ProcessLayout
from hpcddp.errors import HpcddpError
from hpcddp.launch.failure import exit_code_of
from hpcddp.run_dir import RunDir
from hpcddp.train import saving
from hpcddp.train.background import Background
from hpcddp.train.cadence import Cadence
from hpcddp.train.checkpoint import Retention, load_newest
from hpcddp.train.host_copy import HostCopy
from hpcddp.train.journal import Journal
from hpcddp.train.ownership import Ownership
from hpcddp.train.process_group import LoneProcess
from hpcddp.train.saving import Saver
from hpcddp.train.state import TrainState


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(saving, "_RETRY_AFTER_S", 0.0)


@pytest.fixture
def state():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = TrainState(model, optimizer, torch.amp.GradScaler("cpu", enabled=False))
    advance(state)
    return state


def advance(state):
    """One step; every value of the state is then the number of the step."""
    state.model(torch.rand(2, 3, 8, 8)).sum().backward()
    state.optimizer.step()
    state.step += 1
    with torch.no_grad():
        for tensor in state.tensors():
            tensor.fill_(state.step)


@pytest.fixture
def saver(tmp_path):
    owner = Ownership(RunDir(tmp_path), ProcessLayout())
    owner.claim()
    yield Saver(
        folder=tmp_path / "checkpoints",
        extra={},
        retention=Retention(keep_last=2),
        cadence=Cadence(None, 3600, 600, step=0),
        ranks=LoneProcess(),
        journal=Journal(RunDir(tmp_path), ProcessLayout()),
        is_main=True,
        saved_step=0,
        owner=owner,
    )
    owner.release()


def assert_is_of_step(loaded, step):
    assert loaded.step == loaded.state["step"] == step
    kept = [loaded.state["model"], *loaded.state["optimizer"].values()]
    assert all((tensor == step).all() for part in kept for tensor in part.values())


class Gate:
    """Holds every write until it is opened, and counts those under way."""

    def __init__(self, monkeypatch):
        self.open, self.under_way, self.most = threading.Event(), 0, 0
        self._original = saving.save_snapshot
        monkeypatch.setattr(saving, "save_snapshot", self)

    def __call__(self, *arguments, fence):
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        assert self.open.wait(60)
        self.under_way -= 1
        return self._original(*arguments, fence=fence)


def writers():
    return [thread for thread in threading.enumerate() if thread.name == "checkpoint-writer"]


def test_what_is_written_is_the_state_of_its_step_although_training_goes_on(
    saver, state, monkeypatch
):
    gate = Gate(monkeypatch)
    saver.save(state)
    for _ in range(3):
        advance(state)
    gate.open.set()
    saver._writer.wait()
    assert_is_of_step(load_newest(saver.folder), 1)
    saver.save(state)
    advance(state)
    saver._writer.wait()
    assert_is_of_step(load_newest(saver.folder), 4)


def test_the_loop_goes_on_while_it_is_written_and_never_two_at_a_time(saver, state, monkeypatch):
    gate = Gate(monkeypatch)
    saver.save(state)
    assert not (saver.folder / "step_000000001").exists()
    begin = time.perf_counter()
    threading.Timer(0.3, gate.open.set).start()
    for _ in range(3):
        advance(state)
        saver.save(state)  # the first of them has to wait
    assert time.perf_counter() - begin >= 0.3
    saver.save_last(state)
    assert gate.most == 1
    assert_is_of_step(load_newest(saver.folder), 4)


def test_a_save_that_has_waited_until_a_signal_came_is_left_to_the_last_one(
    saver, state, monkeypatch
):
    gate, is_told = Gate(monkeypatch), threading.Event()
    saver.is_told = is_told.is_set
    saver.save(state)
    advance(state)
    wait = saver._writer.wait

    def told_while_it_waits(*timeout):
        if not timeout:
            is_told.set()
            gate.open.set()
        return wait(*timeout)

    with monkeypatch.context() as waiting:
        waiting.setattr(saver._writer, "wait", told_while_it_waits)
        saver.save(state)
    advance(state)
    saver.save_last(state)
    assert [info.step for info in list_checkpoints(saver.folder)] == [1, 3]


def test_leaving_waits_for_the_write_under_way_and_saves_the_rest(saver, state, monkeypatch):
    gate = Gate(monkeypatch)
    saver.save(state)
    threading.Timer(0.2, gate.open.set).start()
    saver.save_last(state)  # the same step: nothing else to write
    assert_is_of_step(load_newest(saver.folder), 1)
    advance(state)
    saver.save_last(state)
    assert_is_of_step(load_newest(saver.folder), 2)
    assert kinds_of(saver.folder.parent) == ["checkpoint", "checkpoint"]
    assert writers() == []


def test_a_full_disk_is_reported_costs_no_training_and_no_older_checkpoint(
    saver, state, monkeypatch
):
    saver.save(state)
    saver._writer.wait()
    original = Path.mkdir

    def full(path, *arguments, **options):
        if path.name.endswith(".partial"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(path, *arguments, **options)

    with monkeypatch.context() as broken:
        broken.setattr(Path, "mkdir", full)
        advance(state)
        saver.save(state)
        saver._writer.wait()
    assert_is_of_step(load_newest(saver.folder), 1)
    advance(state)
    saver.save(state)
    saver._writer.wait()
    assert_is_of_step(load_newest(saver.folder), 3)
    [failed] = [e for e in events_of(saver.folder.parent) if e["event"] == "checkpoint_failed"]
    assert failed["step"] == 2
    assert "No space left on device (step_000000001 is untouched)" in failed["error"]


def fail_times(monkeypatch, times, error):
    original, left = saving.save_snapshot, [times]

    def failing(*arguments, **options):
        if left[0] > 0:
            left[0] -= 1
            raise error
        return original(*arguments, **options)

    monkeypatch.setattr(saving, "save_snapshot", failing)


@pytest.mark.parametrize("last", [False, True])
def test_one_failure_is_made_good_at_once(saver, state, monkeypatch, last):
    fail_times(monkeypatch, 1, saving.CheckpointError("hiccup"))
    (saver.save_last if last else saver.save)(state)
    saver._writer.wait()
    assert_is_of_step(load_newest(saver.folder), 1)
    assert kinds_of(saver.folder.parent) == ["checkpoint"]


@pytest.mark.parametrize(("failures", "marked"), [(0, 1), (1, 1), (2, None)])
def test_only_a_state_that_is_on_disk_becomes_the_best(saver, state, monkeypatch, failures, marked):
    fail_times(monkeypatch, failures, saving.CheckpointError("full"))
    saver.keep_best = True
    saver.save_if_best(state, Best(1, 0.5, 1.0))
    saver._writer.wait()
    best = read_best(saver.folder)
    assert (best and best.step) == marked


def test_the_best_before_goes_as_soon_as_another_is_best(saver, state):
    saver.keep_best, saver.retention = True, Retention(keep_last=1)
    for accuracy in (0.5, 0.6):
        advance(state)
        saver.save_if_best(state, Best(state.step, accuracy, 1.0))
    saver._writer.wait()
    assert [info.step for info in list_checkpoints(saver.folder)] == [3]


def test_an_error_nobody_thought_of_is_reported_too(saver, state, monkeypatch, caplog):
    fail_times(monkeypatch, 1, RuntimeError("a bug"))
    saver.save(state)
    saver._writer.wait()
    [failed] = events_of(saver.folder.parent)
    assert (failed["event"], failed["error"]) == ("checkpoint_failed", "RuntimeError('a bug')")
    assert "a bug" in caplog.text
    assert saver.saved_step == 0
    saver.save(state)
    saver._writer.wait()
    assert saver.saved_step == 1


def test_training_survives_a_run_directory_that_cannot_be_written_to(tmp_path, caplog):
    journal = Journal(RunDir(tmp_path / "gone"), ProcessLayout())
    journal.not_saved(3, "full")
    journal.evaluated(3, "model", accuracy=0.5)
    assert caplog.text.count("Cannot write to the run directory") == 2


def test_only_the_main_process_saves(saver, state):
    saver.is_main = False
    saver.save(state)
    assert not saver.folder.exists()


def test_the_copy_uses_the_same_memory_again(state):
    copy = HostCopy()
    places = [
        [tensor.data_ptr() for tensor in copy.take(state.to_dict())["model"].values()]
        for _ in range(2)
    ]
    assert places[0] == places[1]
    assert not set(places[0]) & {tensor.data_ptr() for tensor in state.tensors()}


def test_the_copy_keeps_layout_and_type_and_follows_a_new_shape():
    image = torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last).bfloat16()
    copy = HostCopy()
    taken = copy.take({"a": image, "n": 3})
    assert taken["a"].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(taken["a"], image)
    assert torch.equal(copy.take({"a": torch.ones(5)})["a"], torch.ones(5))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_copy_from_cuda_is_pinned_and_not_overtaken_by_the_next_step():
    weights, copy = torch.zeros(2**26, device="cuda"), HostCopy()
    for step in range(3):
        weights.fill_(step)
        taken = copy.take({"weights": weights})["weights"]
        weights.fill_(-1)
        copy.wait()
        assert taken.is_pinned()
        assert (taken == step).all()


def test_what_a_background_call_raises_comes_out_once():
    background = Background("test")
    background.start(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        background.wait()
    background.wait()


def test_a_run_with_many_saves_leaves_one_event_each_and_the_last_ones(tmp_path):
    config = small_config("checkpoint.every_steps=1", "train.max_steps=5")
    assert train_on(2, tmp_path, config) == [0, 0]
    saved = [event for event in events_of(tmp_path) if event["event"] == "checkpoint"]
    assert [event["step"] for event in saved] == [1, 2, 3, 4, 5]
    assert all(event["stall_s"] >= 0 and event["every_steps"] == 1 for event in saved)
    assert load_newest(RunDir(tmp_path).checkpoints).step == 5


@pytest.fixture
def owned(saver, tmp_path):
    """A saver whose run has an owner, in a folder that can be moved away."""
    run_dir = RunDir(tmp_path / "run")
    run_dir.path.mkdir()
    saver.folder, saver.journal = run_dir.checkpoints, Journal(run_dir, ProcessLayout())
    saver.owner = Ownership(run_dir, ProcessLayout())
    saver.owner.claim()
    yield saver
    saver.owner.release()


def save_next(saver, state):
    advance(state)
    saver.save(state)
    saver._writer.wait()


@pytest.mark.parametrize("remains", [False, True])  # rm -r may race with what is written meanwhile
def test_the_second_save_in_a_row_that_finds_no_folder_ends_the_run(owned, state, remains):
    run_dir = owned.folder.parent
    run_dir.rename(run_dir.with_name("moved"))
    if remains:
        run_dir.mkdir()
    save_next(owned, state)
    owned.check_owner()
    save_next(owned, state)
    with pytest.raises(HpcddpError, match="run, is gone: two saves in a row") as caught:
        owned.check_owner()
    assert exit_code_of(caught.value) == 1
    assert not owned.folder.exists()


def test_a_folder_that_comes_back_and_a_full_disk_end_no_run(owned, state, monkeypatch):
    run_dir = owned.folder.parent
    for _ in range(2):
        run_dir.rename(run_dir.with_name("moved"))
        save_next(owned, state)
        run_dir.with_name("moved").rename(run_dir)
        owned.check_owner()
        save_next(owned, state)
    fail_times(monkeypatch, 6, saving.CheckpointError("full"))
    for _ in range(3):
        save_next(owned, state)
    owned.check_owner()
    assert kinds_of(run_dir) == ["checkpoint"] * 2 + ["checkpoint_failed"] * 3
