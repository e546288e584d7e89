import torch

from hpcddp.train.randomness import seed_step, step_seed


def test_steps_ranks_and_seeds_draw_differently():
    places = [(seed, step, rank) for seed in (0, 1) for step in (0, 1, 11) for rank in (0, 1, 11)]
    assert len({step_seed(*place) for place in places}) == len(places)


def test_what_a_step_draws_does_not_depend_on_what_was_drawn_before():
    seed_step(7, 100, 2)
    straight = torch.rand(5)
    for step in range(3):
        seed_step(7, step, 2)
        torch.rand(step)
    seed_step(7, 100, 2)
    assert torch.equal(torch.rand(5), straight)


def test_seeds_stay_the_same_from_version_to_version():
    """A checkpoint may be continued by a newer hpcddp."""
    assert step_seed(0, 0, 0) == 9617123944752223253
