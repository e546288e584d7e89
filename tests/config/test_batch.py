"""global_batch = micro_batch x accumulation_steps x world_size, or an error that helps."""

import pytest

from hpcddp.config.batch import plan_batches
from hpcddp.errors import ConfigError


@pytest.mark.parametrize(
    ("global_batch", "micro_batch", "world_size", "expected"),
    [(256, 32, 8, (32, 1)), (256, 32, 4, (32, 2)), (96, None, 3, (32, 1)), (5, 5, 1, (5, 1))],
)
def test_batches_are_divided(global_batch, micro_batch, world_size, expected):
    plan = plan_batches(global_batch=global_batch, micro_batch=micro_batch, world_size=world_size)
    assert (plan.micro_batch, plan.accumulation_steps) == expected
    assert plan.micro_batch * plan.accumulation_steps * plan.world_size == global_batch


@pytest.mark.parametrize(
    ("global_batch", "micro_batch", "world_size", "below", "above"),
    [(250, 32, 4, "128", "256"), (10, None, 4, "8", "12")],
)
def test_the_nearest_values_that_divide_are_named(
    global_batch, micro_batch, world_size, below, above
):
    with pytest.raises(ConfigError, match=f"{below} or {above}"):
        plan_batches(global_batch=global_batch, micro_batch=micro_batch, world_size=world_size)


def test_zero_is_never_proposed():
    with pytest.raises(ConfigError, match=r"Set train\.global_batch to 8\."):
        plan_batches(global_batch=3, micro_batch=None, world_size=8)
