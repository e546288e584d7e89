"""Which samples a step trains on, whatever the world size, accumulation and starting point."""

import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcddp.config.batch import BatchPlan
from hpcddp.data.sampler import (
    num_steps,
    rank_samples,
    sample_order,
    step_epoch,
    step_samples,
    stream_samples,
)

CASES = yaml.safe_load(
    (Path(__file__).parents[1] / "cases" / "samples.yaml").read_text(encoding="utf-8")
)
SEEDS = st.integers(0, 2**70)


def plan_of(world_size, micro_batch, accumulation_steps):
    global_batch = world_size * micro_batch * accumulation_steps
    return BatchPlan(global_batch, micro_batch, accumulation_steps, world_size)


def all_parts(seed, step, plan, num_samples):
    """What all processes see in one step, pass by pass."""
    return np.concatenate(
        [
            rank_samples(
                seed, step, plan, global_rank=rank, micro_step=micro_step, num_samples=num_samples
            )
            for micro_step in range(plan.accumulation_steps)
            for rank in range(plan.world_size)
        ]
    )


@given(SEEDS, st.integers(0, 10**6), st.integers(1, 300))
def test_each_epoch_is_a_permutation(seed, epoch, num_samples):
    order = sample_order(seed, epoch, num_samples)
    assert order.dtype == np.int64
    assert sorted(order) == list(range(num_samples))


def test_the_order_never_changes_between_versions():
    # A changed order would break every run that is resumed with a newer hpcddp or NumPy.
    assert list(sample_order(0, 0, 10)) == [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]
    assert list(sample_order(7, 3, 10)) == [2, 8, 9, 4, 0, 6, 7, 5, 1, 3]


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {tuple(sample_order(seed, epoch, 50)) for seed in (0, 1, 2**40) for epoch in range(20)}
    assert len(orders) == 60


def test_every_place_of_an_epoch_is_equally_likely_for_every_sample():
    counts = np.zeros((8, 8))
    for epoch in range(4000):
        counts[np.arange(8), sample_order(3, epoch, 8)] += 1
    # 500 expected, standard deviation 21: six of them is never reached by chance
    assert abs(counts - 500).max() < 6 * 21


@settings(deadline=None)
@given(
    SEEDS,
    st.integers(0, 10**7),
    st.integers(1, 60),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(1, 5),
)
def test_processes_and_passes_together_see_exactly_the_step(
    seed, step, num_samples, world_size, micro_batch, accumulation_steps
):
    plan = plan_of(world_size, micro_batch, accumulation_steps)
    epochs, indices = step_samples(seed, step, plan.global_batch, num_samples)
    parts = all_parts(seed, step, plan, num_samples)
    assert parts.tolist() == np.stack([epochs, indices], axis=1).tolist()


@given(SEEDS, st.integers(1, 40), st.integers(1, 17))
def test_steps_follow_each_other_without_gap_or_overlap(seed, num_samples, global_batch):
    steps = [step_samples(seed, step, global_batch, num_samples) for step in range(30)]
    epochs = np.concatenate([epochs for epochs, _ in steps])
    indices = np.concatenate([indices for _, indices in steps])
    for epoch in range(30 * global_batch // num_samples):
        assert sorted(indices[epochs == epoch]) == list(range(num_samples))
    assert list(epochs) == [place // num_samples for place in range(30 * global_batch)]


def test_a_batch_larger_than_the_data_goes_through_it_several_times():
    epochs, indices = step_samples(0, 0, 10, 3)
    assert list(epochs) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    assert sorted(indices[:9]) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_micro_batches_are_the_same_for_any_split_at_one_micro_batch():
    def micro_batches(plan):
        return all_parts(5, 11, plan, 1000).reshape(-1, 8, 2).tolist()

    plans = [plan_of(4, 8, 1), plan_of(2, 8, 2), plan_of(1, 8, 4)]
    assert micro_batches(plans[0]) == micro_batches(plans[1]) == micro_batches(plans[2])


def test_looking_far_ahead_costs_no_more_than_looking_near():
    def cost_s(step):
        sample_order.cache_clear()
        start = time.process_time()
        step_samples(0, step, 256, 100_000)
        return time.process_time() - start

    pairs = [(cost_s(1_000_000), cost_s(10)) for _ in range(20)]
    far, near = map(min, zip(*pairs, strict=True))
    assert far < 3 * near + 0.001


@pytest.mark.parametrize("case", CASES["resume"], ids=lambda case: case["id"])
def test_a_run_goes_on_with_the_same_samples_at_another_world_size(case):
    before, after, n = plan_of(**case["before"]), plan_of(**case["after"]), case["num_samples"]
    assert before.global_batch == after.global_batch
    seen = case["epoch"] * n + case["samples_seen_in_epoch"]
    assert seen == case["step"] * before.global_batch
    assert step_epoch(case["step"], before.global_batch, n) == seen / n
    rest = [all_parts(1, case["step"] + k, after, n) for k in range(case["steps_left_in_epoch"])]
    past = stream_samples(1, case["epoch"] * n, case["samples_seen_in_epoch"], n)
    epoch = np.concatenate([past, *rest])
    assert set(epoch[:, 0]) == {case["epoch"]}
    assert sorted(epoch[:, 1]) == list(range(n))


@pytest.mark.parametrize(
    ("max_epochs", "global_batch", "num_samples", "steps"),
    [
        (1, 10, 100, 10),
        (1, 10, 101, 11),
        (0.1, 3, 30, 1),
        (90, 256, 1281167, 450411),
        (0.001, 8, 8, 1),
    ],
)
def test_max_epochs_becomes_the_fewest_steps_that_cover_them(
    max_epochs, global_batch, num_samples, steps
):
    assert num_steps(max_epochs, global_batch, num_samples) == steps
