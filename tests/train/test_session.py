"""What is built before the first step, what is measured, and what is saved."""

import pytest
import torch
from test_step import close_vote, session_of
from train_ranks import events_of, kinds_of, small_config, train_on

from hpcddp.checkpoint_dir import CheckpointError
from hpcddp.config.batch import BatchPlan
from hpcddp.config.layout import ProcessLayout
from hpcddp.data.datasets import build_dataset
from hpcddp.data.stream import eval_batches
from hpcddp.errors import ConfigError
from hpcddp.run_dir import RunDir, read_json_lines
from hpcddp.train import setup
from hpcddp.train.evaluate import most_batches
from hpcddp.train.journal import Journal
from hpcddp.train.loop import train_step
from hpcddp.train.metrics import StepClock
from hpcddp.train.models import build_model
from hpcddp.train.setup import build_state
from hpcddp.train.task import build_task


def test_the_warm_up_leaves_no_trace(tmp_path):
    torch.manual_seed(5)
    expected = build_model("shufflenet_v2_x0_5", 10, {}, seed=0).state_dict()
    after_building = torch.get_rng_state()
    model = session_of(tmp_path).state.model
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), after_building)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training


@pytest.mark.parametrize(("images", "idle"), [(10, ["3 of 8 devices get no images"]), (16, [])])
def test_devices_that_get_no_images_are_told_of(tmp_path, caplog, images, idle):
    dp = ("train.replicas=dp", "train.dp_devices=8", f"train.global_batch={images}")
    session_of(tmp_path, *dp)
    told = [record.getMessage() for record in caplog.records if "images" in record.getMessage()]
    assert [line.split(":")[0] for line in told] == idle


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ("train.micro_batch=1",),
            "of 1 x 32 x 32 .* to 64 or more.* more than 1 value per channel",
        ),
        (
            ("train.replicas=dp", "train.dp_devices=8", "train.global_batch=9"),
            "replica 4 of 5: Exp",
        ),
        (("train.model=vit_b_16",), r"Change data\.image_size\. torch says: .* but got 32!"),
        (("train.model=convnext_tiny", "data.image_size=8"), "of 12 x 8 x 8 .*Kernel size"),
    ],
)
def test_images_that_the_model_cannot_do_with_are_refused_at_the_start(tmp_path, overrides, said):
    with pytest.raises(ConfigError, match=said):
        session_of(tmp_path, *overrides)


@pytest.mark.parametrize("enough", ["train.micro_batch=2", "data.image_size=64"])
def test_two_values_per_channel_are_enough(tmp_path, enough):
    session_of(tmp_path, "train.micro_batch=1", enough)


def test_another_error_of_the_first_pass_stays_what_it_is(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(setup, "warm_up", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        session_of(tmp_path)


def test_pixels_become_what_the_data_sets_statistics_say(tmp_path):
    session = session_of(tmp_path, "train.channels_last=true")
    dataset, to_device = session.task.train_set, session.feed._to_device
    raw_nchw = torch.arange(2 * 3 * 4 * 4, dtype=torch.uint8).reshape(2, 3, 4, 4)
    images_nchw, labels_n = to_device((raw_nchw, torch.tensor([1, 2])))
    mean, std = (torch.tensor(x).view(1, 3, 1, 1) for x in (dataset.mean_c, dataset.std_c))
    torch.testing.assert_close(images_nchw, (raw_nchw / 255 - mean) / std)
    assert images_nchw.is_contiguous(memory_format=torch.channels_last)
    assert labels_n.tolist() == [1, 2]


def test_state_survives_the_round_trip_with_plain_names(tmp_path):
    session = session_of(tmp_path)
    for _ in range(2):
        train_step(session)
        close_vote(session)
    saved = session.state.to_dict()
    assert set(saved["optimizer"]) == {name for name, _ in session.state.model.named_parameters()}
    fresh = build_state(session.task, torch.device("cpu"))
    fresh.load(saved)
    assert (fresh.step, fresh.samples_seen) == (2, 24)
    pairs = list(zip(fresh.tensors(), session.state.tensors(), strict=True))
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
    assert len({ours.data_ptr() for ours, theirs in pairs if ours is theirs}) == 0


def test_loading_keeps_the_optimizers_options_as_configured():
    def state_of(momentum):
        config = small_config(f"optim.momentum={momentum}")
        return build_state(build_task(config, ProcessLayout()), torch.device("cpu"))

    changed = state_of(0.5)
    changed.load(state_of(0.9).to_dict())
    assert {group["momentum"] for group in changed.optimizer.param_groups} == {0.5}


def test_rates_are_counted_from_the_steps_alone():
    clock, plan = StepClock(), BatchPlan(64, 16, 2, 2)
    for elapsed_s, wait_s in ((0.5, 0.1), (1.5, 0.3)):
        clock.add(elapsed_s, wait_s)
    assert clock.take_rates(plan) == {
        "images_per_s": 64.0,
        "images_per_s_per_gpu": 32.0,
        "data_wait_s": 0.2,
        "step_s": 1.0,
    }
    clock.add(2.0, 0.0)
    rates = clock.take_rates(plan, devices_per_process=4)
    assert (rates["images_per_s"], rates["images_per_s_per_gpu"]) == (32.0, 4.0)


SHARES = [(10, 4, 2), (7, 3, 5), (9, 2, 2), (3, 4, 1)]


@pytest.mark.parametrize(("samples", "world_size", "micro_batch"), SHARES)
def test_no_share_of_the_test_set_has_more_batches_than_foreseen(samples, world_size, micro_batch):
    config = small_config(f"data.synthetic_samples={5 * samples}")
    test_set = build_dataset(config.data, "test")
    shares = [
        eval_batches(test_set, global_rank=rank, world_size=world_size, micro_batch=micro_batch)
        for rank in range(world_size)
    ]
    counts = [len(list(share)) for share in shares]
    assert max(counts) == most_batches(len(test_set), world_size, micro_batch)


def test_metrics_and_events_have_what_readers_need(tmp_path):
    config = small_config("log.every_steps=2", "train.eval_every_epochs=0.4")
    assert train_on(2, tmp_path, config, attempt=3, requeue_target="77_2") == [0, 0]
    trained, evaluated, *_ = read_json_lines(RunDir(tmp_path).metrics)
    rates = {"images_per_s", "images_per_s_per_gpu", "data_wait_s", "step_s"}
    moved = {"comm_bytes_per_step", "buffer_bytes_per_step"}
    assert set(trained) == {"step", "epoch", "loss", "lr", "attempt", "time"} | rates | moved
    assert (trained["comm_bytes_per_step"], trained["buffer_bytes_per_step"]) == (1_408_168, 32_256)
    assert (trained["step"], trained["epoch"], trained["attempt"]) == (2, 0.4, 3)
    assert trained["images_per_s"] == pytest.approx(2 * trained["images_per_s_per_gpu"], rel=1e-4)
    assert {"step", "epoch", "accuracy", "eval_loss", "samples", "weights"} < set(evaluated)
    started, first_step, saved, finished = events_of(tmp_path)
    assert {event["job_id"] for event in (started, first_step, saved, finished)} == {"77_2"}
    assert (started["max_steps"], started["world_size"]) == (4, 2)
    assert saved["bytes"] > 1_000_000
    assert 0 <= finished["accuracy"] <= 1


def test_only_the_main_process_writes(tmp_path):
    journal = Journal(RunDir(tmp_path), ProcessLayout(global_rank=1, world_size=2))
    journal.signalled(15, 3)
    journal.stopped(3)
    journal.evaluated(3, "model", accuracy=1.0)
    assert not list(tmp_path.iterdir())


def train_without_room(config, layout, run_dir):
    """In a child: the reason why training ended."""
    from hpcddp.stop_flag import StopFlag
    from hpcddp.train.loop import train

    try:
        return train(config, layout, RunDir(run_dir), StopFlag.install())
    except CheckpointError as error:
        return error.code


def test_a_save_that_fails_on_the_way_is_survived_the_last_one_is_not(tmp_path):
    RunDir(tmp_path).checkpoints.write_text("in the way")
    config = small_config("checkpoint.every_steps=2")
    codes = train_on(2, tmp_path, config, train_without_room)
    assert codes == ["checkpoint_not_written"] * 2
    assert kinds_of(tmp_path) == ["started", "checkpoint_failed", "checkpoint_failed"]
