"""Cells that take turns, round by round: one that fails is left out, and the others go on.

Knows no document and no verdict.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from hpcddp.measure.bench import unsettled_steps
from hpcddp.measure.blocks import CellRecord, Pace, pace_on_gpus, slowest
from hpcddp.measure.cells import Wanted
from hpcddp.measure.gpu_use import GpuUse
from hpcddp.measure.groups import Group, GroupFailed

WARM_UP_STEPS = 3  # DDP's buckets are in their final order before; caches and allocators are not

_log = logging.getLogger(__name__)


def _empty_record() -> CellRecord:
    return CellRecord(WARM_UP_STEPS)


@dataclass(slots=True)
class Contender:
    """A cell with its processes, what they have measured, and why they no longer do."""

    group: Group
    record: CellRecord = field(default_factory=_empty_record)
    pace: Pace | None = None  # until it has warmed up
    failure: GroupFailed | None = None

    def warm_up(self, steps: int) -> None:
        """Wait until it can measure, and choose its pace: so many steps, on GPUs perhaps more."""
        group = self.group
        group.wait_until_ready()
        visit = group.take(WARM_UP_STEPS, discard=0)
        self.pace = Pace(steps, unsettled_steps(group.config, group.cell.processes))
        if visit[0].memory_bytes is not None:
            self.pace = pace_on_gpus(self.pace, min(slowest(visit)))
        _log.info("%s is ready", group.cell.name)

    def visit(self, gpus: GpuUse) -> None:
        group, record, pace = self.group, self.record, self.pace
        assert pace is not None
        with gpus.watch() as use:
            record.visits.append(group.take(pace.steps, discard=pace.unsettled))
        record.utilisation.append(use)
        if group.cell.processes > 1:
            # The first without exchange still sends out buffers, and the first of the next round
            # does not: neither counts.
            alone = group.take(pace.steps, discard=pace.discard, sync=False)
            record.without_sync.append(alone)

    @contextlib.contextmanager
    def trying(self) -> Iterator[None]:
        """What fails in here ends the processes of this cell, and of no other."""
        try:
            yield
        except GroupFailed as error:
            self.failure = error
            self.group.close()
            _log.warning("%s\nThe others go on without it.", error.message)

    @property
    def is_in(self) -> bool:
        return self.failure is None


def take_rounds(
    groups: Sequence[Group],
    wanted: Wanted,
    gpus: GpuUse,
    after_round: Callable[[Sequence[Contender], int], None],
) -> None:
    """Visit all groups in turn. After each round `after_round` is told how many there were.

    Raises the first GroupFailed once every group has failed.
    """
    contenders = [Contender(group) for group in groups]
    for each in contenders:
        with each.trying():
            each.warm_up(wanted.steps)
    for number in range(wanted.rounds):
        _visit_all(contenders, number, gpus)
        if not any(each.is_in for each in contenders):
            raise next(each.failure for each in contenders if each.failure)
        _log.info("round %d of %d", number + 1, wanted.rounds)
        after_round(contenders, number + 1)


def _visit_all(contenders: Sequence[Contender], number: int, gpus: GpuUse) -> None:
    """One round; every other one goes backwards, so that a steady drift cancels."""
    for each in reversed(contenders) if number % 2 else contenders:
        if each.is_in:
            with each.trying():
                each.visit(gpus)
