"""The same run on one process and on several: the same curve."""

import pytest
from train_ranks import evaluations_of, losses_of, small_config, train_on

# One process: the global batch of 24 in one go, or in passes of 2.
SPLITS = [(2, 4), (2, 12), (3, 4), (3, 8), (4, 2), (4, 6)]
NO_BATCH_NORM = (
    "train.model=squeezenet1_1",
    "train.model_options={dropout: 0.0}",
    "train.global_batch=24",
    "train.max_steps=6",
    "optim.lr=0.005",
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The loss curve of one process without accumulation."""
    run_dir = tmp_path_factory.mktemp("alone")
    assert train_on(1, run_dir, small_config(*NO_BATCH_NORM)) == [0]
    return losses_of(run_dir)


@pytest.mark.parametrize(("world_size", "micro_batch"), SPLITS)
def test_ddp_follows_the_curve_of_one_process(alone, world_size, micro_batch, tmp_path):
    config = small_config(*NO_BATCH_NORM, f"train.micro_batch={micro_batch}")
    assert train_on(world_size, tmp_path, config) == [0] * world_size
    assert losses_of(tmp_path) == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize(("devices", "micro_batch"), [(2, 24), (3, 8)])
def test_data_parallel_follows_the_curve_of_one_process(alone, devices, micro_batch, tmp_path):
    words = ("train.replicas=dp", f"train.dp_devices={devices}", f"train.micro_batch={micro_batch}")
    assert train_on(1, tmp_path, small_config(*NO_BATCH_NORM, *words)) == [0]
    assert losses_of(tmp_path) == pytest.approx(alone, rel=1e-5)


def test_a_run_may_change_its_mode_whenever_it_goes_on(tmp_path):
    """There and back."""
    modes = ("single", "dp", "ddp", "dp", "single")
    for steps, mode in enumerate(modes, start=1):
        length = (f"train.max_steps={steps}", "optim.schedule=constant")
        words = (f"train.replicas={mode}", "train.dp_devices=3", *length)
        config = small_config(*NO_BATCH_NORM, *words)
        assert set(train_on(2 if mode == "ddp" else 1, tmp_path / "mixed", config)) == {0}
    constant = ("optim.schedule=constant", f"train.max_steps={len(modes)}")
    train_on(1, tmp_path / "one", small_config(*NO_BATCH_NORM, *constant))
    assert losses_of(tmp_path / "mixed") == pytest.approx(losses_of(tmp_path / "one"), rel=1e-5)


def test_the_curve_would_show_a_wrong_gradient(alone, tmp_path):
    """The bound above is far below what one percent more step length makes of the curve."""
    config = small_config(*NO_BATCH_NORM, "optim.lr=0.00505")
    train_on(1, tmp_path, config)
    assert losses_of(tmp_path)[6] != pytest.approx(alone[6], rel=1e-5)


@pytest.mark.parametrize("world_size", [2, 3])
def test_batch_norm_sees_the_same_micro_batches_whatever_the_world_size(world_size, tmp_path):
    settings = (
        "train.global_batch=24",
        "train.micro_batch=4",
        "data.image_size=64",  # at 32 batch norm ends on maps of 1 x 1, and rounding explodes
        "optim.lr=0.001",
        "train.max_steps=2",
    )
    for processes, folder in ((1, "one"), (world_size, "many")):
        assert set(train_on(processes, tmp_path / folder, small_config(*settings))) == {0}
    assert losses_of(tmp_path / "one") == pytest.approx(losses_of(tmp_path / "many"), rel=1e-4)


def test_evaluation_counts_each_sample_once_on_any_world_size(tmp_path):
    # 50 training images make 10 test images: 3, 3, 2, 2 of them on four ranks.
    settings = (*NO_BATCH_NORM, "data.synthetic_samples=50", "train.max_steps=1")
    for world_size in (1, 4):
        train_on(world_size, tmp_path / str(world_size), small_config(*settings))
    one, four = (evaluations_of(tmp_path / folder)[1] for folder in ("1", "4"))
    assert one["samples"] == four["samples"] == 10
    assert one["accuracy"] == pytest.approx(four["accuracy"])
    assert one["eval_loss"] == pytest.approx(four["eval_loss"], rel=1e-5)
