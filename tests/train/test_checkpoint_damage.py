"""Torn files, kills at any moment and full disks never cost the last good checkpoint."""

import errno
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch

from hpcddp import checkpoint_dir
from hpcddp.checkpoint_dir import CheckpointError, list_checkpoints, verify_checkpoint
from hpcddp.train.checkpoint import load_newest, save_checkpoint


@pytest.fixture(autouse=True)
def one_thread():
    """A forked child must not wait for threads that only its parent has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def save(folder, step, megabytes=0.02, keep_last=2):
    tensors = [torch.full((int(megabytes * 2**18 / 4),), float(step)) for _ in range(4)]
    return save_checkpoint(folder, step, {"tensors": tensors, "step": step}, {}, keep_last)


def assert_usable(loaded):
    assert loaded.state["step"] == loaded.step
    assert all((tensor == loaded.step).all() for tensor in loaded.state["tensors"])


# ---------------------------------------------------------------- torn files


@pytest.fixture
def two(tmp_path):
    save(tmp_path, 1)
    return tmp_path, save(tmp_path, 2).path


def offsets(size):
    few = {
        0,
        1,
        2,
        511,
        512,
        4095,
        4096,
        4097,
        size // 2,
        size - 4097,
        size - 22,
        size - 2,
        size - 1,
    }
    return sorted(offset for offset in few | set(range(0, size, 997)) if 0 <= offset < size)


def test_a_file_cut_at_any_byte_is_noticed(two):
    folder, newest = two
    for name in ("state.pt", "manifest.json"):
        whole = (newest / name).read_bytes()
        places = range(len(whole)) if name == "manifest.json" else offsets(len(whole))
        for place in places:
            (newest / name).write_bytes(whole[:place])
            with pytest.raises(CheckpointError, match=name):
                verify_checkpoint(newest)
        assert load_newest(folder).step == 1
        (newest / name).write_bytes(whole)
    assert load_newest(folder).step == 2


def test_a_changed_byte_anywhere_is_noticed(two):
    folder, newest = two
    for name in ("state.pt", "manifest.json"):
        whole = (newest / name).read_bytes()
        for place in offsets(len(whole)):
            if whole[place : place + 1].isspace():
                continue  # blanks between JSON tokens mean nothing
            changed = bytearray(whole)
            changed[place] ^= 0x01
            (newest / name).write_bytes(changed)
            with pytest.raises(CheckpointError):
                verify_checkpoint(newest)
        assert load_newest(folder).step == 1
        (newest / name).write_bytes(whole)


def test_zeros_where_the_disk_lost_a_block_are_noticed(two):
    folder, newest = two
    state = newest / "state.pt"
    whole = state.read_bytes()
    for start in range(0, len(whole) - 512, 4096):
        state.write_bytes(whole[:start] + bytes(512) + whole[start + 512 :])
        if state.read_bytes() != whole:
            assert load_newest(folder).step == 1


@pytest.mark.parametrize("name", ["state.pt", "manifest.json"])
def test_a_missing_file_is_named(two, name):
    (two[1] / name).unlink()
    loaded = load_newest(two[0])
    assert loaded.step == 1
    assert f"{name} cannot be read: No such file" in loaded.skipped[0]


# ---------------------------------------------------------------- kills


def in_a_child(action):
    """Fork, run `action`, and return the child's pid; the child never comes back."""
    pid = os.fork()
    if pid:
        return pid
    try:
        action()
    finally:
        os._exit(0)


def test_a_kill_before_any_operation_of_a_save_leaves_a_usable_state(tmp_path, monkeypatch):
    """Every call that changes the file system is, in turn, the last one that does not happen."""
    operations = [
        (os, "rename"), (os, "fsync"), (os, "mkdir"), (os, "open"), (os, "unlink"), (os, "rmdir"),
        (Path, "open"), (shutil, "rmtree"), (checkpoint_dir.ChecksummedFile, "write"),
    ]  # fmt: skip
    count = 0

    def dying_at(fatal, original):
        def operation(*args, **options):
            nonlocal count
            count += 1
            if count == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **options)

        return operation

    def save_and_die(step):
        for owner, name in operations:
            monkeypatch.setattr(owner, name, dying_at(step, getattr(owner, name)))
        save(tmp_path, step, keep_last=1)

    newest, status = save(tmp_path, 0), None
    for step in range(1, 200):
        _, status = os.waitpid(in_a_child(partial(save_and_die, step)), 0)
        before, newest = newest, load_newest(tmp_path)
        assert_usable(newest)
        assert newest.skipped == ()
        assert newest.step in (before.step, step)
        if not os.WIFSIGNALED(status):
            break
    assert step > 15
    assert newest.step == step  # the last child was not killed
    save(tmp_path, 1000, keep_last=1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["step_000001000"]


@pytest.mark.parametrize("kills", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_kills_at_random_moments_leave_a_usable_state(tmp_path, kills):
    chance = random.Random(0)
    newest, longest_s = 0, 0.06
    save(tmp_path, 0, megabytes=2)

    def save_on():
        for step in range(newest + 1, newest + 1000):
            save(tmp_path, step, megabytes=2)

    partials = 0
    for _ in range(kills):
        pid = in_a_child(save_on)
        time.sleep(chance.uniform(0.0, longest_s))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        loaded = load_newest(tmp_path)
        assert_usable(loaded)
        assert loaded.skipped == ()
        assert loaded.step >= newest
        # A busy machine saves slowly: a third of the writers shall not come to their first end.
        longest_s = max(0.06, longest_s * (1.5 if loaded.step == newest else 0.8))
        newest = loaded.step
        partials += any(entry.name.endswith(".partial") for entry in tmp_path.iterdir())
    assert newest > 0
    assert partials > kills // 4  # the kills did hit writers at work
    save(tmp_path, newest + 1)  # on a slow machine the kills may have hit every thinning out
    assert [info.step for info in list_checkpoints(tmp_path)][-1] == newest + 1
    assert len(list_checkpoints(tmp_path)) == 2
    assert all(entry.name.startswith("step_") for entry in tmp_path.iterdir())


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    done = []
    fsync, rename = os.fsync, os.rename

    def record_fsync(descriptor):
        done.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        fsync(descriptor)

    def record_rename(source, target):
        done.append(("rename", Path(target).name))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "rename", record_rename)
    save(tmp_path / "checkpoints", 1)
    partial_name = f".step_000000001.{socket.gethostname()}-{os.getpid()}.partial"
    assert done == [
        ("sync", tmp_path.name),
        ("sync", "state.pt"),
        ("sync", "manifest.json"),
        ("sync", partial_name),
        ("rename", "step_000000001"),
        ("sync", "checkpoints"),
    ]


# ---------------------------------------------------------------- failing writes


def test_a_full_disk_costs_the_new_checkpoint_not_the_old_one(small_disk):
    save(small_disk, 1, megabytes=5, keep_last=1)
    for step in (2, 3):
        with pytest.raises(
            CheckpointError, match=r"No space left on device.*step_000000001 is untouched"
        ):
            save(small_disk, step, megabytes=5, keep_last=1)
        assert [entry.name for entry in small_disk.iterdir()] == ["step_000000001"]
        assert_usable(load_newest(small_disk))
    save(small_disk, 4, megabytes=1, keep_last=1)
    assert load_newest(small_disk).step == 4


def test_space_taken_by_a_killed_writer_is_freed_before_writing(small_disk):
    left_over = small_disk / ".step_000000009.node7-1.partial"
    left_over.mkdir()
    (left_over / "state.pt").write_bytes(bytes(5 * 2**20))
    save(small_disk, 10, megabytes=5)
    assert load_newest(small_disk).step == 10


@pytest.mark.parametrize("failing", ["fsync", "rename"])
@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_an_input_output_error_costs_only_the_checkpoint_being_written(
    tmp_path, monkeypatch, failing, call
):
    save(tmp_path, 1, keep_last=1)
    original, count = getattr(os, failing), 0

    def once(*args):
        nonlocal count
        count += 1
        if count == call:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return original(*args)

    with monkeypatch.context() as patch, suppress(CheckpointError):
        patch.setattr(os, failing, once)
        save(tmp_path, 2, keep_last=1)
    assert_usable(load_newest(tmp_path))
    save(tmp_path, 3, keep_last=1)
    assert load_newest(tmp_path).step == 3


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EROFS, errno.ESTALE])
def test_a_quota_and_a_lost_server_cost_only_the_checkpoint_being_written(
    tmp_path, monkeypatch, number
):
    save(tmp_path, 1, keep_last=1)

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_dir.ChecksummedFile, "write", refuse)
        with pytest.raises(CheckpointError, match=rf"{os.strerror(number)}.*is untouched"):
            save(tmp_path, 2, keep_last=1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["step_000000001"]


def test_a_read_only_file_system_is_said_so_and_what_is_there_can_be_loaded(small_disk):
    save(small_disk, 1)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(CheckpointError, match=r"Read-only.*step_000000001 is untouched"):
        save(small_disk, 2)
    assert load_newest(small_disk).step == 1


def test_a_run_directory_that_has_gone_is_not_made_anew(tmp_path):
    with pytest.raises(CheckpointError, match=r"was not written.*no older one"):
        save(tmp_path / "gone" / "checkpoints", 1)
    assert not (tmp_path / "gone").exists()
