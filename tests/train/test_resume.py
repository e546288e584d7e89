"""Interrupted and uninterrupted runs end with the same bits; what cannot go on is refused."""

import logging
import shutil
from functools import partial

import pytest
import torch
from train_ranks import (
    before_call,
    differing,
    events_of,
    final_state,
    kinds_of,
    losses_of,
    small_config,
    train_here,
    train_on,
    train_until,
)

from hpcddp.checkpoint_dir import list_checkpoints, read_manifest, write_manifest
from hpcddp.errors import HpcddpError
from hpcddp.run_dir import RunDir

# Dropout, augmentation, accumulation and batch norm, all of which could hide state somewhere;
# three steps make 1.2 epochs of 30 images.
SETTINGS = (
    "train.model=mobilenet_v3_small",
    "train.model_options={dropout: 0.3}",
    "train.global_batch=12",
    "train.micro_batch=2",
    "data.synthetic_samples=30",
    "data.augment=shift",
    "train.eval_every_epochs=1",
    "ddp.bucket_cap_mib=1",
)
KINDS = ("started", "resumed")


def train_cold(steps, config, layout, run_dir):
    """In a child: as `train_until`, without the warm-up."""
    from hpcddp.train import setup

    setup.warm_up = lambda forward, images_nchw, labels_n: None
    return train_until(steps, config, layout, run_dir)


def test_two_equal_runs_end_with_equal_bits(tmp_path):
    config = small_config(*SETTINGS, "train.max_steps=3")
    for folder in ("first", "second"):
        train_on(3, tmp_path / folder, config)
    assert differing(final_state(tmp_path / "first"), final_state(tmp_path / "second")) == []


def test_another_seed_ends_with_other_bits(tmp_path):
    for seed in (0, 1):
        config = small_config(*SETTINGS, "train.max_steps=1", f"train.seed={seed}")
        train_on(1, tmp_path / str(seed), config)
    assert "model" in differing(final_state(tmp_path / "0"), final_state(tmp_path / "1"))


def test_without_the_warm_up_three_processes_would_not_resume_exactly(tmp_path):
    """Why there is a warm-up. Should this fail one day, torch no longer needs it."""
    # A static graph cannot even begin with a pass that skips the reduction.
    config = small_config(*SETTINGS, "train.max_steps=4", "ddp.static_graph=false")
    through, broken = tmp_path / "same" / "run", tmp_path / "other" / "run"
    train_on(3, through, config, partial(train_cold, -1))
    train_on(3, broken, config, partial(train_cold, 2))
    train_on(3, broken, config, partial(train_cold, -1))
    assert "model" in differing(final_state(through), final_state(broken))


def train_logged(steps, config, layout, run_dir):
    """In a child: as `train_until`, with the main process's log in `attempt-N.log`."""
    if layout.is_main:
        logging.basicConfig(
            filename=run_dir / f"attempt-{layout.attempt}.log", level=logging.INFO, force=True
        )
    return train_until(steps, config, layout, run_dir)


def test_going_on_with_other_world_sizes_keeps_the_curve_and_says_what_changed(tmp_path):
    settings = (
        "train.model=squeezenet1_1",
        "train.model_options={dropout: 0.0}",
        "train.max_steps=6",
        "train.ema_decay=0.9",
        "data.augment=shift",
        "optim.lr=0.005",
    )
    config = small_config(*settings)
    through, broken = tmp_path / "same" / "run", tmp_path / "other" / "run"
    train_on(2, through, config)
    for attempt, (world_size, stop) in enumerate([(2, 2), (1, 4), (4, -1)]):
        train_on(world_size, broken, config, partial(train_logged, stop), attempt=attempt)
    assert losses_of(broken) == pytest.approx(losses_of(through), rel=1e-5)
    assert sorted(losses_of(broken)) == [1, 2, 3, 4, 5, 6]
    first, second = (final_state(run_dir) for run_dir in (through, broken))
    assert first["samples_seen"] == second["samples_seen"] == 72
    torch.testing.assert_close(first["ema"], second["ema"], rtol=1e-4, atol=1e-6)
    of_kind = {kind: [e for e in events_of(broken) if e["event"] == kind] for kind in KINDS}
    sizes = [
        (e["world_size"], e["micro_batch"], e["accumulation_steps"]) for e in of_kind["started"]
    ]
    # One process has no more memory and sees no other batch than each of two had; of four it is
    # too much for a step.
    assert sizes == [(2, 6, 1), (1, 6, 2), (4, 3, 1)]
    assert [e["changed"]["world_size"] for e in of_kind["resumed"]] == [[2, 1], [1, 4]]
    assert [e["changed"].get("micro_batch") for e in of_kind["resumed"]] == [None, [6, 3]]
    for attempt, words in ((1, "world_size was 2 and is 1"), (2, "world_size was 1 and is 4")):
        text = (broken / f"attempt-{attempt}.log").read_text()
        assert words in text
        assert "the weights will not be bit-identical" in text


def test_a_run_that_changes_its_mode_keeps_the_images_on_each_device(tmp_path):
    """Six on each of two devices; four would need more than there are, and forget nothing."""
    starts = [(1, "dp", (12, 1)), (4, "ddp", (3, 1)), (1, "single", (6, 2)), (1, "dp", (12, 1))]
    for attempt, (world_size, mode, _) in enumerate(starts):
        config = small_config(f"train.max_steps={attempt + 1}", f"train.replicas={mode}")
        assert set(train_on(world_size, tmp_path, config, attempt=attempt)) == {0}
    started = [event for event in events_of(tmp_path) if event["event"] == "started"]
    plans = [(event["micro_batch"], event["accumulation_steps"]) for event in started]
    assert plans == [plan for _, _, plan in starts]


def test_a_finished_run_returns_at_once(tmp_path):
    config = small_config("train.max_steps=1")
    assert train_on(2, tmp_path, config) == [0, 0]
    before = kinds_of(tmp_path)
    assert before == ["started", "checkpoint", "finished"]
    assert train_on(2, tmp_path, config) == [0, 0]
    assert kinds_of(tmp_path) == before


def test_a_finished_run_can_be_made_longer(tmp_path):
    train_on(1, tmp_path, small_config("train.max_steps=1"))
    assert train_on(1, tmp_path, small_config("train.max_steps=2")) == [0]
    assert kinds_of(tmp_path)[3:] == ["started", "resumed", "checkpoint", "finished"]


def train_with_another_view(config, layout, run_dir):
    """In a child: the steps that were done here. Rank 1 sees the run's folder as `other/run`."""
    from hpcddp.train import loop

    steps = []
    before_call(loop, "train_step", lambda session: steps.append(session.state.step + 1))
    view = run_dir if layout.is_main else run_dir.parent / "other" / run_dir.name
    assert train_here(config, layout, view) == 0
    return steps


@pytest.mark.parametrize("sees_another_run", [False, True])
def test_a_rank_that_sees_other_checkpoints_resumes_where_rank_0_does(tmp_path, sees_another_run):
    config = small_config("train.max_steps=4", "checkpoint.every_steps=1", "checkpoint.keep_last=9")
    through, broken, view = tmp_path / "through", tmp_path / "run", tmp_path / "other" / "run"
    train_on(2, through, config)
    train_on(2, broken, config, partial(train_until, 2))
    (view / "checkpoints").mkdir(parents=True)
    if sees_another_run:
        name = "step_000000003"
        shutil.copytree(through / "checkpoints" / name, view / "checkpoints" / name)
    before = sorted(view.rglob("*"))
    assert train_on(2, broken, config, train_with_another_view) == [[3, 4], [3, 4]]
    assert differing(final_state(through), final_state(broken)) == []
    assert sorted(view.rglob("*")) == before
    assert [e["step"] for e in events_of(broken) if e["event"] == "resumed"] == [2]


@pytest.mark.parametrize(
    ("change", "way_out"),
    [
        ("train.global_batch=6", "train.global_batch=12"),
        ("train.model=squeezenet1_1", "train.model=shufflenet_v2_x0_5"),
        ("train.model_options={init_weights: true}", "train.model_options={}"),
        ("data.image_size=64", "data.image_size=32"),
        ("train.seed=5", "train.seed=0"),
        ("data.synthetic_classes=5", "data.synthetic_classes=10"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused_on_all_ranks(change, way_out, tmp_path):
    train_on(1, tmp_path, small_config("train.max_steps=1"))
    refusals = train_on(2, tmp_path, small_config("train.max_steps=2", change), train_refused)
    assert {code for code, _ in refusals} == {"foreign_checkpoint"}
    assert all(way_out in message for _, message in refusals)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    train_on(1, tmp_path / "mine", small_config("train.max_steps=1"))
    (tmp_path / "mine").rename(tmp_path / "yours")
    [(code, message)] = train_on(1, tmp_path / "yours", small_config(), train_refused)
    assert code == "foreign_checkpoint"
    assert "run=mine there and yours here" in message


def test_changed_settings_are_said(tmp_path):
    train_on(1, tmp_path, small_config("train.max_steps=1"))
    settings = ("optim.lr=0.01", "data.augment=shift", "data.synthetic_samples=72")
    train_on(1, tmp_path, small_config("train.max_steps=2", "train.micro_batch=6", *settings))
    [resumed] = [event for event in events_of(tmp_path) if event["event"] == "resumed"]
    assert resumed["changed"] == {
        "optim.lr": [0.05, 0.01],
        "data.augment": ["none", "shift"],
        "micro_batch": [12, 6],
        "training images": [60, 72],
    }


@pytest.mark.parametrize(("first", "then"), [("null", "12"), ("6", "null")])
def test_a_micro_batch_that_only_somebody_else_has_chosen_is_no_change(tmp_path, first, then):
    strict = "checkpoint.strict_fingerprint=true"
    train_on(1, tmp_path, small_config("train.max_steps=1", f"train.micro_batch={first}"))
    again = small_config("train.max_steps=2", f"train.micro_batch={then}", strict)
    assert train_on(1, tmp_path, again) == [0]
    [resumed] = [event for event in events_of(tmp_path) if event["event"] == "resumed"]
    assert resumed["changed"] == {}


def test_a_setting_that_only_an_older_version_recorded_is_no_change(tmp_path):
    train_on(1, tmp_path, small_config("train.max_steps=1"))
    [info] = list_checkpoints(RunDir(tmp_path).checkpoints)
    manifest = read_manifest(info.path)
    manifest.extra["settings"]["train.micro_batch"] = 12
    write_manifest(info.path, manifest)
    again = small_config("train.max_steps=2", "checkpoint.strict_fingerprint=true")
    assert train_on(1, tmp_path, again) == [0]


def train_refused(config, layout, run_dir):
    """In a child: the code and message of the refusal."""
    from hpcddp.stop_flag import StopFlag
    from hpcddp.train.loop import train

    try:
        train(config, layout, RunDir(run_dir), StopFlag.install())
    except HpcddpError as error:
        return error.code, error.message
    raise AssertionError("was not refused")
