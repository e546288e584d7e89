"""How many steps after a pause are left out, so that what the loader put by does not count."""

import pytest

from hpcddp.config.load import Layer, command_line_layer, resolve
from hpcddp.measure.bench import unsettled_steps
from hpcddp.measure.blocks import Block, CellRecord
from hpcddp.measure.cells import MODES, Cell, Wanted, config_of
from hpcddp.measure.gpu_use import GpuUse
from hpcddp.measure.node_comparison import _visit_all


def config_with(cell, *words):
    layer = command_line_layer(["train.max_steps=1", "train.global_batch=64", *words])
    return config_of(cell, Wanted(MODES, (1, 4)), resolve([Layer("test", {}), layer]).config)


@pytest.mark.parametrize(
    ("cell", "workers", "micro_batch", "expected"),
    [
        (Cell("ddp", 4), 0, 16, 1),
        (Cell("ddp", 4), 3, 16, 1 + 6),  # one batch per step, two put by for each worker
        (Cell("ddp", 4), 3, 4, 1 + 2),  # four batches per step
        (Cell("ddp", 4), 1, 4, 1 + 1),
        (Cell("dp", 4), 3, 16, 1 + 24),  # its one process has the workers of four
    ],
)
def test_what_the_loader_can_have_put_by_is_used_up_first(cell, workers, micro_batch, expected):
    words = [f"train.micro_batch={micro_batch}", f"data.workers={workers}"]
    assert unsettled_steps(config_with(cell, *words), cell.processes) == expected


class Group:
    """Stands in for one: notes what it is asked for."""

    def __init__(self, cell, config):
        self.cell, self.config, self.asked = cell, config, []

    def take(self, steps, *, discard=1, sync=True):
        self.asked.append((discard, sync))
        return [Block([1.0] * steps, discard, 1.0)]


def test_a_visit_leaves_them_out_but_not_once_more_without_exchange():
    cells = [Cell("dp", 4), Cell("ddp", 4)]
    groups = [Group(cell, config_with(cell, "data.workers=1")) for cell in cells]
    records = [CellRecord() for _ in cells]
    _visit_all(groups, records, Wanted(MODES, (1, 4)), 0, GpuUse([]))
    assert groups[0].asked == [(1 + 8, True)]
    assert groups[1].asked == [(1 + 2, True), (1, False)]
    assert [record.discarded for record in records] == [9, 4]
