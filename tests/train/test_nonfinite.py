"""A loss that is no number stops all ranks or is left out, and never reaches a checkpoint."""

import math

import pytest
import torch
from test_step import close_vote, session_of
from train_ranks import events_of, kinds_of, losses_of, small_config, train_on

from hpcddp.checkpoint_dir import list_checkpoints
from hpcddp.run_dir import RunDir, read_json_lines
from hpcddp.train.loop import train_step
from hpcddp.train.nonfinite import LossWatch, NonFiniteError, first_nonfinite
from hpcddp.train.process_group import LoneProcess

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_the_first_bad_step_is_remembered(bad):
    watch = LossWatch(torch.device("cpu"))
    for step, loss in enumerate([1.0, 2.0, bad, 1.0, bad], start=1):
        watch.note(torch.tensor(loss), step)
        assert watch.has_heard == (step >= 3)
    message = str(watch.error(LoneProcess(), 0, 1))
    assert message.startswith("The loss of step 3 is not finite on rank 0 (1 in all).")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_first_bad_tensor_of_a_state_is_named(dtype):
    state = {"model": {"a": torch.ones(3, dtype=dtype), "n": torch.tensor(3)}, "step": 2}
    assert first_nonfinite(state) is None
    state["model"]["b"] = torch.tensor([1.0, INF], dtype=dtype)
    assert first_nonfinite(state) == "state.model.b"


def spoil(loop, layout, *, step, global_rank, value=NAN):
    """Make one image of one step of one rank no number."""
    original = loop.train_step

    def spoiled(session):
        if session.state.step + 1 == step and layout.global_rank == global_rank:
            images_nchw, labels_n = session.feed.next()
            images_nchw[0] = value
            follow, given = session.feed.next, iter([(images_nchw, labels_n)])
            session.feed.next = lambda: next(given, None) or follow()
        return original(session)

    loop.train_step = spoiled


def train_spoiled(config, layout, run_dir):
    """In a child: the exit code, or the words of the failure."""
    from hpcddp.stop_flag import StopFlag
    from hpcddp.train import loop

    spoil(loop, layout, step=3, global_rank=1)
    try:
        return loop.train(config, layout, RunDir(run_dir), StopFlag.install())
    except NonFiniteError as error:
        return str(error)


@pytest.mark.parametrize("log_every", [1, 100])
def test_training_stops_on_all_ranks_and_names_step_and_rank(log_every, tmp_path):
    settings = ("train.max_steps=6", "checkpoint.every_steps=2", f"log.every_steps={log_every}")
    first, second = train_on(2, tmp_path, small_config(*settings), train_spoiled)
    assert first == second
    assert first.startswith("The loss of step 3 is not finite on rank 1 (2 in all).")
    assert [info.step for info in list_checkpoints(RunDir(tmp_path).checkpoints)] == [2]
    assert "finished" not in kinds_of(tmp_path)


@pytest.mark.parametrize(
    "settings",
    [(), ("train.precision=fp16",), ("train.precision=fp16", "train.max_grad_norm=1.0")],
    ids=["fp32", "fp16", "fp16_clipped"],
)
def test_a_skipped_step_is_skipped_on_all_ranks_and_counted(settings, tmp_path):
    config = small_config("train.on_nonfinite=skip", "train.max_steps=6", *settings)
    assert train_on(2, tmp_path, config, train_spoiled) == [0, 0]
    losses = losses_of(tmp_path)
    assert [step for step, loss in losses.items() if not math.isfinite(loss)] == [3]
    counts = [r["skipped_steps"] for r in read_json_lines(RunDir(tmp_path).metrics) if "lr" in r]
    assert counts[2] - counts[1] == 1
    assert settings or counts == [0, 0, 1, 1, 1, 1]  # fp16 finds its scale by skipping
    assert [info.step for info in list_checkpoints(RunDir(tmp_path).checkpoints)] == [6]


def test_a_skipped_step_changes_nothing_but_the_count_of_steps(tmp_path):
    session = session_of(tmp_path, "train.on_nonfinite=skip")
    train_step(session)
    close_vote(session)
    before = [tensor.clone() for tensor in session.state.tensors()]
    images_nchw, labels_n = session.feed.next()
    images_nchw[0] = NAN
    session.feed.next = lambda: (images_nchw, labels_n)
    train_step(session)
    close_vote(session)
    assert session.state.step == 2
    assert session.skipper.count == 1
    pairs = zip(before, session.state.tensors(), strict=True)
    assert all(torch.equal(old, new) for old, new in pairs)
    del session.feed.next
    train_step(session)
    close_vote(session)
    assert session.skipper.count == 1
    assert not torch.equal(before[0], next(session.state.tensors()))


def test_without_bad_losses_skipping_changes_no_bit(tmp_path):
    sessions = [session_of(tmp_path, f"train.on_nonfinite={mode}") for mode in ("stop", "skip")]
    for session in sessions:
        for _ in range(2):
            train_step(session)
            close_vote(session)
    pairs = zip(*(session.state.tensors() for session in sessions), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_a_state_that_is_not_finite_is_saved_neither_on_the_way_nor_at_the_end(tmp_path):
    session = session_of(tmp_path)
    train_step(session)
    close_vote(session)
    next(session.state.model.parameters()).data[0] = NAN
    session.saver.save(session.state)
    session.saver._writer.wait()
    with pytest.raises(NonFiniteError, match=r"after step 1 is not finite \(state\.model\.conv1"):
        session.saver.save_last(session.state)
    assert list_checkpoints(RunDir(tmp_path).checkpoints) == []
    assert "not finite" in events_of(tmp_path)[-1]["error"]
