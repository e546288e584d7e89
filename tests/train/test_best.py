"""Which state is the best, when it is marked, and that it stays."""

import json
import math
from functools import partial

import pytest
from click.testing import CliRunner
from train_ranks import small_config, train_on, train_until

from hpcddp.checkpoint_dir import CheckpointInfo, checkpoint_path, list_checkpoints
from hpcddp.checkpoint_kept import BEST_FILE, Best, read_best, thin_out, write_best
from hpcddp.cli.checkpoint import command
from hpcddp.errors import HpcddpError
from hpcddp.run_dir import RunDir
from hpcddp.train import saving
from hpcddp.train.checkpoint import Retention, save_checkpoint
from hpcddp.train.saving import Saver

NAN, INF = math.nan, math.inf

# Step -> accuracy and loss of its evaluation, every two steps. The best number, at 8, is none.
SCRIPT = {2: (0.3, 2.0), 4: (0.6, 1.0), 6: (0.5, 1.0), 8: (0.9, NAN), 10: (0.6, 0.5)}
SETTINGS = ("train.max_steps=10", "train.eval_every_epochs=0.4", "checkpoint.keep_last=1")


@pytest.mark.parametrize(
    ("accuracy", "eval_loss", "beats"),
    [
        (0.6, 9.0, True),
        (0.5, 0.1, False),
        (0.4, 0.1, False),
        (0.9, NAN, False),
        (0.9, INF, False),
        (0.9, -INF, False),
        (NAN, 0.1, False),
    ],
)
def test_only_a_higher_accuracy_that_is_a_number_beats_the_best(accuracy, eval_loss, beats):
    assert Best(9, accuracy, eval_loss).beats(Best(3, 0.5, 1.0)) == beats


def test_anything_that_is_a_number_beats_nothing_and_its_own_step():
    assert Best(3, 0.0, 9.0).beats(None)
    assert Best(3, 0.5, 1.0).beats(Best(3, 0.5, 1.0))
    assert not Best(3, 0.0, NAN).beats(None)


def steps_in(folder):
    return [info.step for info in list_checkpoints(folder)]


def test_thinning_out_leaves_the_best_until_another_is(tmp_path):
    for step in (1, 2, 3, 4):
        save_checkpoint(tmp_path, step, {"step": step}, {}, keep_last=9)
    write_best(tmp_path, Best(2, 0.5, 1.0))
    thin_out(tmp_path, CheckpointInfo(checkpoint_path(tmp_path, 4), 4), keep_last=1)
    assert steps_in(tmp_path) == [2, 4]
    write_best(tmp_path, Best(4, 0.6, 1.0))
    save_checkpoint(tmp_path, 5, {"step": 5}, {}, keep_last=1)
    assert steps_in(tmp_path) == [4, 5]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"step": "x"}', '{"step": 7, "accuracy": 1}'])
def test_a_marker_that_cannot_be_read_marks_nothing(text, tmp_path):
    save_checkpoint(tmp_path, 7, {}, {}, keep_last=1)
    (tmp_path / BEST_FILE).write_text(text)
    assert read_best(tmp_path) is None


def test_a_best_that_is_damaged_or_gone_is_none(tmp_path):
    write_best(tmp_path, Best(7, 0.5, 1.0))
    assert read_best(tmp_path) is None
    path = save_checkpoint(tmp_path, 7, {}, {}, keep_last=1).path
    assert read_best(tmp_path) == Best(7, 0.5, 1.0)
    (path / "state.pt").write_bytes(b"torn")
    assert read_best(tmp_path) is None


def train_scripted(function, config, layout, run_dir):
    """In a child: train with `function`; evaluations give what the script says."""
    from hpcddp.train import loop
    from hpcddp.train.evaluate import Evaluation

    original = loop._evaluate

    def evaluate_as_written(session):
        loop.evaluate = lambda *_: Evaluation(*SCRIPT[session.state.step], samples=10)
        return original(session)

    loop._evaluate = evaluate_as_written
    return function(config, layout, run_dir)


def train_with(run_dir, *settings, stops=()):
    config = small_config(*SETTINGS, *settings)
    for stop in (*stops, -1):
        function = partial(train_scripted, partial(train_until, stop))
        assert set(train_on(2, run_dir, config, function)) == {75 if stop > 0 else 0}
    return RunDir(run_dir).checkpoints


@pytest.mark.parametrize("stops", [(), (3, 4, 8)])
def test_the_best_is_saved_at_its_step_and_kept_however_often_the_run_is_stopped(stops, tmp_path):
    folder = train_with(tmp_path, "checkpoint.keep_best=true", stops=stops)
    assert read_best(folder) == Best(4, 0.6, 1.0, "model")
    assert steps_in(folder) == [4, 10]


def test_a_best_whose_step_is_being_saved_anyway_is_marked_too(tmp_path):
    settings = ("checkpoint.keep_best=true", "checkpoint.every_steps=2", "train.ema_decay=0.9")
    folder = train_with(tmp_path, *settings)
    assert read_best(folder) == Best(4, 0.6, 1.0, "ema")
    assert steps_in(folder) == [4, 10]


def test_by_default_no_state_is_the_best(tmp_path):
    folder = train_with(tmp_path)
    assert steps_in(folder) == [10]
    assert not (folder / BEST_FILE).exists()


def test_list_shows_the_best(tmp_path, monkeypatch):
    monkeypatch.setenv("HPCDDP_RUNS_DIR", str(tmp_path))
    folder = tmp_path / "red" / "checkpoints"
    (tmp_path / "red").mkdir()
    (tmp_path / "red" / "config.yaml").write_text("{}")
    for step in (10, 20):
        save_checkpoint(folder, step, {}, {}, keep_last=2)
    write_best(folder, Best(10, 0.97184, 0.1))
    runner = CliRunner()
    first, second = runner.invoke(command, ["list", "red"]).stdout.splitlines()
    assert first.endswith("  best: test accuracy 97.18 %")
    assert "accuracy" not in second
    document = json.loads(runner.invoke(command, ["list", "red", "--json"]).stdout)
    assert document["best"]["step"] == 10


def test_an_older_copy_of_the_run_marks_nothing(tmp_path):
    class Replaced:
        def check(self):
            raise HpcddpError("belongs to another start", "superseded")

    saver = Saver(tmp_path, {}, None, None, None, None, True, 7, owner=Replaced(), keep_best=True)
    with pytest.raises(HpcddpError, match="another start"):
        saver._mark(Best(7, 0.5, 1.0))
    assert not (tmp_path / BEST_FILE).exists()


class Ours:
    def check(self):
        pass


def saver_with(folder, *steps):
    for step in steps:
        save_checkpoint(folder, step, {}, {}, keep_last=9)
    return Saver(
        folder, {}, Retention(1), None, None, None, True, steps[-1], Ours(), keep_best=True
    )


def test_a_worse_state_that_was_asked_for_while_the_best_was_being_written_is_not_marked(tmp_path):
    saver = saver_with(tmp_path, 4, 6)
    saver._mark(Best(4, 0.8, 1.0))
    saver._mark(Best(6, 0.5, 1.0))
    assert read_best(tmp_path) == Best(4, 0.8, 1.0)
    assert steps_in(tmp_path) == [4, 6]


def test_older_ones_that_cannot_be_listed_do_not_end_training(tmp_path, monkeypatch):
    def broken(*_):
        raise OSError(5, "Input/output error")

    saver = saver_with(tmp_path, 4)
    monkeypatch.setattr(saving, "thin_out", broken)
    saver._mark(Best(4, 0.8, 1.0))
    assert read_best(tmp_path) == Best(4, 0.8, 1.0)
