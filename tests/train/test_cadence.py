"""When checkpoints are due, by the clock of a pretended run."""

import pytest
from train_ranks import events_of, small_config, train_on

from hpcddp.errors import ConfigError
from hpcddp.run_dir import RunDir
from hpcddp.train import cadence
from hpcddp.train.cadence import Cadence, best_interval_s


def test_the_interval_is_youngs():
    # An example of the formula: a kill every 2 hours and 0.15 s to save.
    assert best_interval_s(0.15, 0, 7200, 600) == pytest.approx(46.5, abs=0.05)
    assert best_interval_s(0.15, 0, 4 * 7200, 600) == pytest.approx(2 * 46.5, abs=0.1)


def test_no_interval_is_shorter_than_a_write_or_longer_than_the_bound():
    assert best_interval_s(0.01, 30, 3600, 600) == 30
    assert best_interval_s(10, 30, 360_000, 600) == 600
    assert best_interval_s(10, 900, 3600, 600) == 600


class Run:
    """Trains in pretended time; `saves` are the steps at which it saved."""

    def __init__(self, every_steps=None, mtbf_s=7200.0, max_interval_s=600.0):
        self.seconds, self.step, self.saves = 1000.0, 0, []
        self.cadence = Cadence(every_steps, mtbf_s, max_interval_s, 0, now=lambda: self.seconds)

    def train(self, num_steps, step_s, stall_s=0.15):
        for _ in range(num_steps):
            self.step, self.seconds = self.step + 1, self.seconds + step_s
            if self.cadence.is_due(self.step):
                self.cadence.saved(self.step, stall_s, 1.0)
                self.saves.append(self.step)
        return self.saves


def test_a_fixed_number_of_steps_is_kept_whatever_a_save_costs():
    assert Run(every_steps=3).train(10, step_s=100, stall_s=50) == [3, 6, 9]


def test_after_a_first_save_the_interval_follows_its_cost():
    run = Run()
    saves = run.train(1000, step_s=0.5)
    assert saves[:3] == [120, 213, 306]  # 60 s, then 46.5 s each
    assert run.cadence.every_steps == 93


def test_slower_steps_are_met_by_fewer_of_them():
    run = Run(max_interval_s=90)
    run.train(120, step_s=0.5)
    run.train(500, step_s=10)
    assert run.saves[:4] == [120, 129, 134, 139]  # the bound, then 46.5 s of the new steps


def test_the_bound_holds_for_the_first_save_too():
    assert Run(max_interval_s=10).train(4, step_s=4) == [3]


def test_a_choice_is_said_once(caplog):
    caplog.set_level("INFO")
    Run().train(2000, step_s=0.5)
    assert len(caplog.records) == 1
    assert "about every 46 s: a save stops training for 0.150 s" in caplog.text
    assert "every 2 h (checkpoint.mtbf_hours)" in caplog.text


@pytest.mark.parametrize("key", ["mtbf_hours", "max_interval_s", "keep_every_steps", "every_steps"])
def test_values_must_be_positive(key):
    with pytest.raises(ConfigError, match=f"checkpoint.{key}=0"):
        small_config(f"checkpoint.{key}=0")


def train_with_saves_at_once(config, layout, run_dir):
    from hpcddp.stop_flag import StopFlag
    from hpcddp.train.loop import train

    cadence._FIRST_SAVE_S = 0.0
    return train(config, layout, RunDir(run_dir), StopFlag.install())


def test_only_the_main_process_chooses_and_says_so_in_the_event(tmp_path):
    # Hours between two saves: longer than two steps take anywhere.
    rare = ("checkpoint.mtbf_hours=1000000000", "checkpoint.max_interval_s=1000000")
    config = small_config("checkpoint.every_steps=null", *rare)
    assert train_on(2, tmp_path, config, train_with_saves_at_once) == [0, 0]
    first, *_, last = [e for e in events_of(tmp_path) if e["event"] == "checkpoint"]
    assert (first["step"], last["step"]) == (1, 4)
    assert first["every_steps"] > 1
