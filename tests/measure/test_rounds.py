"""A cell that fails costs a comparison that cell, and what was measured before is kept."""

import os

import pytest
import torch

from hpcddp.config.load import Layer, command_line_layer, resolve
from hpcddp.measure import node_comparison
from hpcddp.measure.blocks import Block
from hpcddp.measure.cells import MODES, Cell, Wanted, config_of
from hpcddp.measure.gpu_use import GpuUse
from hpcddp.measure.groups import Group, GroupFailed
from hpcddp.measure.node_comparison import Node, compare_on
from hpcddp.measure.rounds import take_rounds
from hpcddp.measure.worker import WorkerTask, trouble_of

SMALL = {
    "train": {"model": "shufflenet_v2_x0_5", "global_batch": 4, "max_steps": 1, "device": "cpu"},
    "data": {"name": "synthetic", "synthetic_samples": 16, "image_size": 32},
}
WANTED = Wanted(MODES, (1, 2), rounds=3, steps=1)


def run(*words):
    return resolve([Layer("test", SMALL), command_line_layer(words)]).config


class Stub:
    """A group whose processes fail when it is asked for something for the nth time."""

    def __init__(self, cell, fails_at=None):
        self.cell, self.config, self.fails_at = cell, config_of(cell, WANTED, run()), fails_at
        self.asked, self.is_open = 0, True

    def wait_until_ready(self):
        self.asked += 1
        if self.asked == self.fails_at:
            raise GroupFailed(f"{self.cell.name}: it broke", "group_failed")

    def take(self, steps, *, discard, sync=True):
        assert self.is_open
        self.wait_until_ready()
        return [Block([1.0] * steps, discard, 1.0)] * self.cell.processes

    def close(self):
        self.is_open = False


@pytest.mark.parametrize(("fails_at", "visits"), [(1, 0), (2, 0), (3, 0), (4, 0), (6, 1), (8, 2)])
def test_a_cell_that_fails_anywhere_ends_alone(fails_at, visits):
    """It is asked whether it is ready, to warm up, and in each round for steps with and without."""
    broken, sound = Stub(Cell("ddp", 2), fails_at), Stub(Cell("single", 1))
    seen = []
    for contenders in take_rounds([broken, sound], WANTED, GpuUse([])):
        seen.append([each.is_in for each in contenders])
        assert len(contenders[1].record.visits) == len(seen)
    assert seen == [[n <= visits, True] for n in (1, 2, 3)]
    assert (broken.is_open, sound.is_open) == (False, True)


def test_where_all_fail_the_first_says_why():
    groups = [Stub(Cell("single", 1), fails_at=3), Stub(Cell("dp", 1), fails_at=1)]
    with pytest.raises(GroupFailed, match="single x 1: it broke"):
        next(take_rounds(groups, WANTED, GpuUse([])))


def test_a_comparison_outlives_one_of_its_cells(monkeypatch):
    """Of three rounds, in the second of which the processes of ddp are gone."""
    groups, kept = {}, []

    class Noted(Group):
        def __init__(self, cell, config, own, *rest):
            super().__init__(cell, config, own, *rest)
            self.cpus = own
            groups[cell.name] = self

    def keep(document):
        kept.append(document)
        if len(kept) == 1:
            for process in groups["ddp x 2"]._processes:
                process.kill()

    monkeypatch.setattr(node_comparison, "Group", Noted)
    first, last = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
    node = Node([[first], [last]], (), near=(frozenset({last}), None))
    wanted = Wanted(("dp", "ddp"), (2,), rounds=3, steps=1)
    document = compare_on(node, run(), wanted, os.environ, keep)
    modes = [[row["mode"] for row in each["rows"]] for each in (*kept, document)]
    assert modes == [["dp", "ddp"], ["dp"], ["dp"]]
    assert len(document["rows"][0]["round_s_medians"]) == 3
    assert [each["not_measured"][0] for each in kept] == [
        f"all rounds: this was kept after {n} of 3" for n in (1, 2)
    ]
    [said] = [line for line in document["not_measured"] if line.startswith("ddp x 2: process")]
    assert "was killed (SIGKILL)" in said
    assert "\n" not in said
    assert groups["ddp x 2"].cpus == [[last], [first]]
    assert any("may have been bound to the far side" in line for line in document["not_measured"])


@pytest.mark.parametrize(
    ("cell", "words", "images"),
    [
        (Cell("single", 1), [], 4),
        (Cell("single", 1), ["train.micro_batch=1"], 1),
        (Cell("dp", 2), [], 2),
        (Cell("dp", 2), ["train.micro_batch=1"], 1),  # of each device
        (Cell("ddp", 2), [], 2),
    ],
)
def test_want_of_memory_is_named_with_what_helps(cell, words, images, tmp_path):
    config = config_of(cell, WANTED, run(*words))
    task = WorkerTask(config, {}, cell.processes, [0], 1, tmp_path, tmp_path / "log")
    for error in (
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."),
    ):
        trouble = trouble_of(error, task)
        assert trouble.code == "out_of_memory"
        said = f"out of memory with {images} images per device in one pass: set train.micro_batch"
        assert trouble.words.startswith(said)
    assert trouble_of(RuntimeError("a shape is wrong"), task).code is None
