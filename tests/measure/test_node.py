"""What a node is taken for: its GPUs and whether they reach each other."""

import pytest
import torch

from hpcddp.measure.node_comparison import _have_peers


@pytest.mark.parametrize(
    ("count", "strangers", "expected"),
    [
        (1, set(), None),
        (2, set(), True),
        (4, set(), True),
        (4, {(3, 1)}, False),  # one direction suffices
        (2, {(0, 2), (2, 0)}, True),  # the third is not compared
    ],
)
def test_gpus_are_peers_where_each_reaches_each(monkeypatch, count, strangers, expected):
    monkeypatch.setattr(
        torch.cuda, "can_device_access_peer", lambda one, other: (one, other) not in strangers
    )
    assert _have_peers(count) is expected
