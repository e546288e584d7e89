"""Saving, choosing and thinning out checkpoints."""

import json
import os
import re
import shutil
import stat
from pathlib import Path

import pytest
import torch
import yaml

from hpcddp import checkpoint_dir
from hpcddp.checkpoint_dir import (
    CheckpointError,
    check_sizes,
    checkpoint_path,
    list_checkpoints,
    verify_checkpoint,
)
from hpcddp.train.checkpoint import (
    Retention,
    load_checkpoint,
    load_newest,
    save_checkpoint,
    save_snapshot,
)
from hpcddp.train.checkpoint_diff import diff_states

CASES = yaml.safe_load(
    (Path(__file__).parents[1] / "cases" / "checkpoints.yaml").read_text(encoding="utf-8")
)


def some_state(step, size=1000):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.rand(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "weights": torch.full((size,), float(step)),
        "step": step,
        "names": ["a", ("b", None, True, 1.5)],
    }


def save(folder, step, keep_last=100, **options):
    return save_checkpoint(folder, step, some_state(step, **options), {"run": "x"}, keep_last)


def steps(folder):
    return [info.step for info in list_checkpoints(folder)]


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def identical(first, second):
    return all(section.identical for section in diff_states(first, second))


# ---------------------------------------------------------------- content


def test_what_was_saved_comes_back_bit_by_bit(tmp_path):
    state = some_state(1200)
    state["model"]["odd"] = torch.tensor([float("nan"), -0.0, float("inf"), 1e-40])
    state["model"]["half"] = torch.randn(5).bfloat16()
    state["model"]["last"] = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    info = save_checkpoint(tmp_path / "checkpoints", 1200, state, {"run": "x", "seed": 3}, 2)
    loaded = load_newest(tmp_path / "checkpoints")
    assert info.path == loaded.path == tmp_path / "checkpoints" / "step_000001200"
    assert (loaded.step, loaded.extra, loaded.skipped) == (1200, {"run": "x", "seed": 3}, ())
    assert identical(state, loaded.state)
    assert loaded.state["model"]["last"].is_contiguous(memory_format=torch.channels_last)
    assert loaded.state["names"] == ["a", ("b", None, True, 1.5)]


def test_a_model_and_its_optimizer_can_be_restored_from_it(tmp_path):
    save(tmp_path, 1)
    state = load_newest(tmp_path).state
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert identical(model.state_dict(), state["model"])


def test_the_file_loads_without_running_code(tmp_path):
    info = save(tmp_path, 3)
    state = torch.load(info.path / "state.pt", weights_only=True)
    assert state["step"] == 3
    assert type(state["model"]) is dict


@pytest.mark.parametrize("value", [Path("x"), object(), {1, 2}, torch.float32, lambda: None])
def test_a_value_that_could_not_be_loaded_again_is_refused_at_once(tmp_path, value):
    with pytest.raises(CheckpointError, match=r"state\.optimizer\.groups\.1\.x"):
        save_checkpoint(tmp_path, 1, {"optimizer": {"groups": [{}, {"x": value}]}}, {}, 1)
    assert not steps(tmp_path)


def test_a_checkpoint_does_not_follow_the_weights_that_were_saved(tmp_path):
    state = some_state(1)
    save_checkpoint(tmp_path, 1, state, {}, 1)
    state["weights"].fill_(99)
    assert load_newest(tmp_path).state["weights"].unique().item() == 1


def test_the_manifest_can_be_read_without_torch(tmp_path):
    info = save(tmp_path, 7)
    manifest = json.loads((info.path / "manifest.json").read_text())
    assert manifest["step"] == 7
    assert manifest["extra"] == {"run": "x"}
    size = (info.path / "state.pt").stat().st_size
    assert manifest["files"]["state.pt"]["size_bytes"] == size == check_sizes(info.path).size_bytes


# ---------------------------------------------------------------- choosing


def lay(folder, entries):
    folder.mkdir(exist_ok=True)
    for name, kind in entries.items():
        step = int(re.sub(r"\D", "", name.split(".node")[0]) or 0)
        if kind == "foreign" and "." in name:
            (folder / name).write_text("mine")
            continue
        if kind == "foreign":
            (folder / name).mkdir()
            continue
        made = save(folder / "made", step).path
        if kind == "torn":
            state = made / "state.pt"
            os.truncate(state, state.stat().st_size // 2)
        if kind == "partial":
            (made / "manifest.json").unlink()
        if kind == "empty":
            shutil.rmtree(made)
            made.mkdir()
        made.rename(folder / name)
        shutil.rmtree(folder / "made")


@pytest.mark.parametrize("case", CASES["select"], ids=lambda case: case["id"])
def test_the_newest_usable_checkpoint_is_chosen_and_others_are_named(tmp_path, case):
    folder = tmp_path / "checkpoints"
    lay(folder, case["entries"])
    lay(tmp_path / "other", case.get("sibling", {}))
    if "error" in case:
        with pytest.raises(CheckpointError, match=r"start this run again.*rm -r") as caught:
            load_newest(folder)
        assert all(name in caught.value.message for name in case["error"])
        return
    loaded = load_newest(folder)
    assert (loaded.path.name if loaded else None) == case["pick"]
    skipped = loaded.skipped if loaded else ()
    assert len(skipped) == len(case["skipped"])
    assert all(f"{name}/" in text for name, text in zip(case["skipped"], skipped, strict=True))
    assert set(names(folder)) == set(case["entries"])  # choosing changes nothing


def test_a_run_without_checkpoints_starts_fresh(tmp_path):
    assert load_newest(tmp_path / "not" / "there") is None
    assert list_checkpoints(tmp_path / "not" / "there") == []


def test_a_checkpoint_of_another_format_is_not_guessed_at(tmp_path):
    info = save(tmp_path, 1)
    file = info.path / "manifest.json"
    file.write_text(file.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(CheckpointError, match="format 2, this version reads 1"):
        load_checkpoint(info.path)


# ---------------------------------------------------------------- writing beside others


@pytest.mark.parametrize("case", CASES["mode"], ids=lambda case: case["id"])
def test_modes_follow_the_umask(tmp_path, case):
    before = os.umask(int(case["umask"], 8))
    try:
        info = save(tmp_path / "checkpoints", 1)
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (info.path, *info.path.iterdir())}
    assert oct(modes.pop(info.path)) == oct(int(case["directory"], 8))
    assert {oct(mode) for mode in modes.values()} == {oct(int(case["file"], 8))}


def test_only_the_last_ones_are_kept_counted_as_numbers(tmp_path):
    for step in (5, 50, 500, 1000):
        save(tmp_path, step, keep_last=2)
    assert names(tmp_path) == ["step_000000500", "step_000001000"]


def test_the_first_one_at_each_multiple_is_kept_for_good(tmp_path):
    for step in (30, 60, 90, 120, 150, 180, 210, 240):
        made = save_snapshot(tmp_path, step, {"step": step}, {}, Retention(2, 100))
        if step == 120:
            os.truncate(made.path / "state.pt", 10)  # the next one takes its place
    assert steps(tmp_path) == [150, 210, 240]


def test_a_damaged_checkpoint_does_not_count_as_kept(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step)
    os.truncate(checkpoint_path(tmp_path, 2) / "state.pt", 10)
    save(tmp_path, 4, keep_last=3)
    assert steps(tmp_path) == [1, 2, 3, 4]
    save(tmp_path, 5, keep_last=2)
    assert steps(tmp_path) == [4, 5]


def test_the_checkpoint_just_written_survives_damaged_later_ones(tmp_path):
    for step in (10, 20):
        save(tmp_path, step)
    state = checkpoint_path(tmp_path, 20) / "state.pt"
    raw = bytearray(state.read_bytes())
    raw[500] ^= 1  # right size, wrong bits: only a full check finds it
    state.write_bytes(raw)
    assert load_newest(tmp_path).step == 10
    save(tmp_path, 15, keep_last=1)
    assert steps(tmp_path) == [15, 20]
    loaded = load_newest(tmp_path)
    assert loaded.step == 15
    assert "CRC-32" in loaded.skipped[0]
    save(tmp_path, 20, keep_last=1)
    assert steps(tmp_path) == [20]
    assert load_newest(tmp_path).skipped == ()


def test_the_same_step_in_order_is_kept_and_damaged_is_replaced(tmp_path):
    info = save(tmp_path, 8)
    before = (info.path / "manifest.json").stat().st_ino
    save(tmp_path, 8)
    assert (info.path / "manifest.json").stat().st_ino == before
    os.truncate(info.path / "state.pt", 100)
    save(tmp_path, 8)
    assert verify_checkpoint(info.path).step == 8
    assert names(tmp_path) == ["step_000000008"]


def test_left_overs_of_killed_writers_go_and_foreign_things_stay(tmp_path):
    foreign = [".step_mine", "notes.txt", "step_x", ".git"]
    for name in [".step_000000001.node7-12.partial", ".step_000000002.node7-12.old", *foreign]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.pt").write_text("half")
    save(tmp_path, 3, keep_last=1)
    assert names(tmp_path) == sorted([*foreign, "step_000000003"])


def test_the_old_one_goes_only_after_the_new_one_was_looked_at(tmp_path, monkeypatch):
    save(tmp_path, 1, keep_last=1)
    rename = os.rename

    def tearing(source, target):
        rename(source, target)
        if Path(target).name == "step_000000002":
            os.truncate(Path(target) / "state.pt", 10)

    monkeypatch.setattr(checkpoint_dir.os, "rename", tearing)
    with pytest.raises(CheckpointError, match="its manifest says"):
        save(tmp_path, 2, keep_last=1)
    assert load_newest(tmp_path).step == 1
