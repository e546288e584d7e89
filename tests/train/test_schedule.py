from pathlib import Path

import pytest
import yaml

from hpcddp.config.schema import OptimConfig
from hpcddp.train.schedule import build_schedule, describe, lr_at

CASES = yaml.safe_load((Path(__file__).parents[1] / "cases" / "lr_schedules.yaml").read_text())


def schedule_of(case):
    return build_schedule(
        OptimConfig(**case["optim"]),
        global_batch=case["global_batch"],
        num_samples=case["num_samples"],
        total_steps=case["total_steps"],
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_learning_rates_are_those_computed_by_hand(case):
    found = {step: lr_at(step, schedule_of(case)) for step in case["at"]}
    assert found == pytest.approx(case["at"], rel=1e-4)


def test_the_start_of_the_log_says_peak_and_warm_up():
    config = OptimConfig(lr=0.1, scale_lr=True, lr_warmup_epochs=5)
    schedule = build_schedule(config, global_batch=512, num_samples=5120, total_steps=900)
    said = describe(schedule, config, 512)
    assert "learning rate 0.2 (optim.lr=0.1 x global batch 512 / 256)" in said
    assert "warm-up over 50 of 900 steps" in said


def test_a_run_that_ends_in_its_warm_up_says_so():
    config = OptimConfig(lr_warmup_epochs=0.5)
    schedule = build_schedule(config, global_batch=32, num_samples=1442, total_steps=6)
    assert describe(schedule, config, 32).endswith(
        "warm-up over 23 steps, of which this run does 6"
    )
