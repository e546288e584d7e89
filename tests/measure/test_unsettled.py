"""Who takes steps when, and how many after a pause are left out: what the loader put by."""

import pytest

from hpcddp.config.layout import ProcessLayout
from hpcddp.config.load import Layer, command_line_layer, resolve
from hpcddp.measure import sweep
from hpcddp.measure.bench import unsettled_steps
from hpcddp.measure.blocks import Block, CellRecord, Pace
from hpcddp.measure.cells import MODES, Cell, Wanted, config_of
from hpcddp.measure.evidence import Circumstances
from hpcddp.measure.gpu_use import GpuUse
from hpcddp.measure.rounds import take_rounds


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

    step_s, memory_bytes = 1.0, None

    def __init__(self, cell, config, log=None):
        self.cell, self.config, self.asked = cell, config, []
        self.log = [] if log is None else log

    def take(self, steps, *, discard, sync=True):
        self.asked.append((discard, sync))
        self.log.append((self.cell.name, sync))
        return [Block([self.step_s] * steps, discard, 1.0, memory_bytes=self.memory_bytes)]

    def wait_until_ready(self):
        pass


def measured(groups, rounds):
    """What the groups were seen to do in so many rounds."""
    wanted = Wanted(MODES, (1, 4), rounds=rounds)
    return [*take_rounds(groups, wanted, GpuUse([]))][-1]


def test_a_visit_leaves_them_out_but_not_once_more_without_exchange():
    cells = [Cell("dp", 4), Cell("ddp", 4)]
    groups = [Group(cell, config_with(cell, "data.workers=1")) for cell in cells]
    contenders = measured(groups, 1)
    assert groups[0].asked == [(0, True), (1 + 8, True)]
    assert groups[1].asked == [(0, True), (1 + 2, True), (1, False)]
    assert [each.record.discarded for each in contenders] == [3 + 9, 3 + 4]


def test_modes_take_turns_and_every_other_round_goes_backwards():
    log, cells = [], [Cell("single", 1), Cell("dp", 2), Cell("ddp", 2)]
    measured([Group(cell, config_with(cell), log) for cell in cells], 3)
    there = ["single x 1", "dp x 2", "ddp x 2"]
    visits = log[len(there) :]  # each has warmed up
    assert [name for name, sync in visits if sync] == [*there, *reversed(there), *there]
    at = visits.index(("ddp x 2", True))
    assert visits[at + 1] == ("ddp x 2", False)  # beside it, so that the same disturbs both


@pytest.mark.parametrize(
    ("step_s", "expected"),
    [(1 / 64, Pace(128, 20, 20)), (1 / 8, Pace(16, 3, 3)), (4.0, Pace(10, 3, 1))],
)
def test_on_gpus_a_visit_lasts_long_enough_to_see_how_busy_they_are(step_s, expected):
    group = Group(Cell("ddp", 4), config_with(Cell("ddp", 4), "data.workers=1"))
    group.step_s, group.memory_bytes = step_s, [1]
    [contender] = measured([group], 1)
    assert contender.pace == expected
    assert group.asked[1:] == [(expected.unsettled, True), (expected.discard, False)]
    assert len(contender.record.step_s) == expected.steps


class Bench:
    """One setting of a sweep in one process; a block is its number."""

    def __init__(self, number, log):
        self.number, self.log = number, log

    def take(self, steps, *, discard, sync=True):
        self.log.append((self.number, sync))
        return self.number


@pytest.fixture
def alone(monkeypatch):
    """A sweep's process whose job has no other."""

    def gather(own, found, dst, group):
        found[0] = own

    monkeypatch.setattr(sweep.dist, "new_group", lambda backend: None)
    monkeypatch.setattr(sweep.dist, "gather_object", gather)


def test_settings_of_a_sweep_take_turns_too(alone):
    log = []
    benches = [Bench(number, log) for number in range(3)]
    counts = []
    for records in sweep._Gatherer(ProcessLayout()).measure(benches, Pace(5, 2), 2):
        counts.append([len(record.visits) for record in records])
    assert counts == [[1] * 3, [2] * 3]  # after each round, so that it can be kept
    assert [number for number, sync in log if sync] == [0, 1, 2, 2, 1, 0]
    assert log[:2] == [(0, True), (0, False)]
    assert [record.visits for record in records] == [[[number]] * 2 for number in range(3)]
    assert [record.without_sync for record in records] == [[[number]] * 2 for number in range(3)]


def test_all_processes_of_a_sweep_choose_their_pace_by_the_slowest(alone, monkeypatch):
    def with_a_slower_one(value, op, group):
        assert op == sweep.dist.ReduceOp.MAX
        value.clamp_(min=0.5)

    monkeypatch.setattr(sweep.dist, "all_reduce", with_a_slower_one)
    assert sweep._Gatherer(ProcessLayout()).largest(0.1) == 0.5


def test_a_sweep_claims_no_memory_for_one_of_its_settings():
    config = config_with(Cell("ddp", 4))
    block = Block([1.0], 1, 1.0, resident_bytes=100, memory_bytes=[100])
    records = [CellRecord(visits=[[block, block]]) for _ in range(2)]
    settings = [{"ddp.bucket_cap_mib": mib} for mib in (1, 25)]
    where = Circumstances("gloo", cpus_are_shared=True)
    document = sweep._document(config, settings, records, ProcessLayout(world_size=2), where, [])
    assert "ddp.bucket_cap_mib" not in document["settings"]  # each row has its own
    assert "ddp.static_graph" in document["settings"]
    for row in document["rows"]:
        assert (row["memory_bytes_per_device"], row["memory_imbalance"]) == (None, None)
        assert row["resident_bytes_per_process"] == []
    assert any("those of all settings at once" in line for line in document["not_measured"])
    assert any("had to share a CPU" in line for line in document["verdict"]["evidence"])
