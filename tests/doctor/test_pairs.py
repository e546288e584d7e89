"""The schedule of the pairwise test, and what its results say of nodes and links."""

from itertools import chain

import pytest

from hpcddp.doctor.pairs import doubtful, pair_rounds, slow_ones


@pytest.mark.parametrize(
    ("num_nodes", "rounds"),
    [(1, 0), (2, 1), (3, 3), (4, 3), (5, 5), (8, 7), (16, 4), (64, 6), (65, 14), (100, 14),
     (1024, 10), (10_000, 28)],
)  # fmt: skip
def test_the_number_of_rounds_grows_with_the_logarithm(num_nodes, rounds):
    assert len([pairs for pairs in pair_rounds(num_nodes) if pairs]) == rounds


@pytest.mark.parametrize("num_nodes", [*range(2, 20), 63, 64, 65, 100, 129])
def test_no_node_is_in_two_pairs_of_a_round_and_each_meets_several_others(num_nodes):
    partners = {node: set() for node in range(num_nodes)}
    for pairs in pair_rounds(num_nodes):
        nodes = list(chain.from_iterable(pairs))
        assert len(nodes) == len(set(nodes))
        for first, second in pairs:
            assert first < second < num_nodes
            partners[first].add(second)
            partners[second].add(first)
    fewest = min(map(len, partners.values()))
    if num_nodes <= 8:
        assert fewest == num_nodes - 1
    else:
        assert fewest >= num_nodes.bit_length() - 1


def measured(num_nodes, speed):
    """A result for every pair that the schedule lets meet."""
    pairs = chain.from_iterable(pair_rounds(num_nodes))
    return [(f"n{a}", f"n{b}", speed(a, b)) for a, b in pairs]


def results_with_slow_node(num_nodes, slow):
    return measured(num_nodes, lambda a, b: 1.0 if slow in (a, b) else 10.0)


@pytest.mark.parametrize("num_nodes", [3, 4, 7, 9, 16, 64, 65, 100])
def test_one_slow_node_is_named_and_no_other_wherever_it_is(num_nodes):
    for slow in {0, 1, num_nodes // 2, num_nodes - 1}:
        nodes, links = slow_ones(results_with_slow_node(num_nodes, slow))
        assert [suspect.hosts for suspect in nodes] == [(f"n{slow}",)]
        assert nodes[0].is_very_slow
        assert not links


@pytest.mark.parametrize("num_nodes", [4, 9, 64, 100])
def test_a_slow_link_is_told_from_a_slow_node(num_nodes):
    first, second = pair_rounds(num_nodes)[0][0]

    def speed(a, b):
        return 4.0 if (a, b) == (first, second) else 10.0

    nodes, links = slow_ones(measured(num_nodes, speed))
    assert not nodes
    assert {suspect.hosts for suspect in links} == {(f"n{first}", f"n{second}")}
    assert not links[0].is_very_slow


@pytest.mark.parametrize("num_nodes", [2, 3, 4, 64])
def test_where_all_are_alike_nobody_is_blamed(num_nodes):
    assert slow_ones(measured(num_nodes, lambda a, b: 10.0 + (a + b) % 3)) == ([], [])


def test_slow_pairs_are_tested_again_the_slowest_first_and_never_very_many():
    pairs = list(chain.from_iterable(pair_rounds(64)))
    speeds = dict.fromkeys(pairs, 10.0) | {pairs[7]: 2.0, pairs[3]: 1.0}
    assert doubtful([(*pair, speed) for pair, speed in speeds.items()]) == [pairs[3], pairs[7]]
    assert doubtful([(0, 1, 0.001)]) == []  # nothing to compare it with
    half = {pair: 1.0 if pair[0] % 2 else 10.0 for pair in pairs}
    assert len(doubtful([(*pair, speed) for pair, speed in half.items()])) == 16
