"""The moving average of the weights: its arithmetic, where it is kept, used and given out."""

import logging

import pytest
import torch
from test_step import close_vote, session_of
from train_ranks import (
    differing,
    evaluations_of,
    events_of,
    final_state,
    losses_of,
    small_config,
    train_on,
)

from hpcddp.config.layout import ProcessLayout
from hpcddp.errors import ConfigError
from hpcddp.train.checkpoint import LoadedCheckpoint
from hpcddp.train.ema import WeightAverage, decay_at
from hpcddp.train.loop import train_step
from hpcddp.train.process_group import LoneProcess
from hpcddp.train.resume import Found, restore
from hpcddp.train.setup import build_state
from hpcddp.train.task import build_task

DECAY = 0.9
ON = f"train.ema_decay={DECAY}"


@pytest.mark.parametrize(
    ("step", "decay"), [(1, 2 / 11), (2, 3 / 12), (90, 0.9), (10_000, 0.9), (10**9, 0.9)]
)
def test_the_average_forgets_faster_at_first(step, decay):
    assert decay_at(step, DECAY) == pytest.approx(decay)


def test_weights_and_running_means_are_averaged_and_counters_copied(tmp_path):
    session = session_of(tmp_path, ON)
    model, average = session.state.model, session.state.ema
    expected = {name: value.double() for name, value in model.state_dict().items()}
    for step in (1, 2, 3):
        train_step(session)
        close_vote(session)
        kept = min(DECAY, (1 + step) / (10 + step))
        for name, value in model.state_dict().items():
            is_counter = not value.is_floating_point()
            old = expected[name]
            expected[name] = value if is_counter else old * kept + value * (1 - kept)
    assert not torch.equal(model.fc.weight, average.model.fc.weight)
    for name, value in average.state_dict().items():
        torch.testing.assert_close(value.double(), expected[name].double(), rtol=1e-5, atol=1e-6)


def test_training_itself_is_the_same_bit_by_bit(tmp_path):
    for folder, settings in (("with", (ON,)), ("without", ())):
        assert train_on(1, tmp_path / folder, small_config(*settings, "train.max_steps=2")) == [0]
    assert losses_of(tmp_path / "with") == losses_of(tmp_path / "without")
    first, second = final_state(tmp_path / "with"), final_state(tmp_path / "without")
    assert differing(first, second) == ["ema"]
    assert list(first["ema"]) == list(first["model"])


def test_evaluation_is_of_the_average_and_says_so(tmp_path):
    settings = ("data.synthetic_samples=120", "train.eval_every_epochs=1", "train.max_steps=2")
    for folder, more in (("with", (ON,)), ("without", ())):
        train_on(2, tmp_path / folder, small_config(*settings, *more))
    averaged, plain = (evaluations_of(tmp_path / folder)[2] for folder in ("with", "without"))
    assert (averaged["weights"], plain["weights"]) == ("ema", "model")
    assert averaged["eval_loss"] != plain["eval_loss"]
    assert averaged["eval_loss"] == pytest.approx(loss_of_saved_average(tmp_path / "with"))
    started = [events_of(tmp_path / folder)[0] for folder in ("with", "without")]
    assert [event.get("ema_decay") for event in started] == [DECAY, None]


def loss_of_saved_average(run_dir):
    """Over the test set, from the checkpoint alone."""
    session = session_of(run_dir / "check", "data.synthetic_samples=120")
    model = session.state.model
    model.load_state_dict(final_state(run_dir)["ema"])
    model.eval()
    sums = torch.zeros(2, dtype=torch.float64)
    for batch in session.eval_task.batches:
        images_nchw, labels_n = session.eval_task.to_device(batch)
        losses_n = torch.nn.functional.cross_entropy(model(images_nchw), labels_n, reduction="none")
        sums += torch.tensor([losses_n.sum().item(), len(labels_n)])
    return (sums[0] / sums[1]).item()


def test_the_average_is_the_same_on_any_world_size(tmp_path):
    settings = (
        "train.model=squeezenet1_1",
        "train.model_options={dropout: 0.0}",
        "train.micro_batch=2",
        "optim.lr=0.005",
        ON,
    )
    for world_size in (1, 3):
        train_on(world_size, tmp_path / str(world_size), small_config(*settings))
    one, three = (final_state(tmp_path / folder)["ema"] for folder in ("1", "3"))
    torch.testing.assert_close(one, three, rtol=1e-4, atol=1e-6)


def state_of(*settings):
    return build_state(build_task(small_config(*settings), ProcessLayout()), torch.device("cpu"))


def loaded_from(state, path):
    return Found(None, LoadedCheckpoint(path, state.step, state.to_dict(), {}))


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ((), (ON,), "the average begins with the weights of step 7"),
        ((ON,), (), "an average of the weights that does not go on"),
        ((ON,), (ON,), ""),
        ((), (), ""),
    ],
)
def test_a_resume_says_where_the_average_does_not_simply_go_on(before, now, said, tmp_path, caplog):
    old, new = state_of(*before, "train.seed=1"), state_of(*now)
    old.step = 7
    saved = old.to_dict()
    with caplog.at_level(logging.WARNING):
        restore(loaded_from(old, tmp_path), new, LoneProcess())
    assert said in caplog.text
    assert bool(said) == bool(caplog.text)
    if new.ema is not None:
        expected = saved.get("ema", saved["model"])
        pairs = zip(new.ema.state_dict().values(), expected.values(), strict=True)
        assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_the_average_takes_no_gradients_and_shares_no_memory():
    model = torch.nn.BatchNorm1d(3)
    average = WeightAverage(model, DECAY)
    assert not any(parameter.requires_grad for parameter in average.model.parameters())
    with torch.no_grad():
        model.weight.fill_(5.0)
    assert average.model.weight.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("decay", ["1", "1.5", "-0.1"])
def test_a_decay_that_makes_no_average_is_refused(decay):
    with pytest.raises(ConfigError, match=r"train\.ema_decay=.*must be"):
        small_config(f"train.ema_decay={decay}")
