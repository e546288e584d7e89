"""Cells that take turns, round by round: one that fails is left out, and the others go on.

Knows no document and no verdict.
"""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from hpcddp.measure.bench import unsettled_steps
from hpcddp.measure.blocks import CellRecord, Pace, pace_on_gpus, slowest
from hpcddp.measure.cells import Wanted
from hpcddp.measure.gpu_use import GpuUse
from hpcddp.measure.groups import Group, GroupFailed

WARM_UP_STEPS = 3  # DDP's buckets are in their final order before; caches and allocators are not

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Contender:
    """A cell with its processes, what they have measured, and why they no longer do."""

    group: Group
    record: CellRecord = field(default_factory=lambda: CellRecord(WARM_UP_STEPS))
    pace: Pace | None = None  # None until it has warmed up
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
) -> Iterator[Sequence[Contender]]:
    """Visit all groups in turn; after each round the contenders with all they have measured.

    Raises the first GroupFailed once every group has failed.
    """
    contenders = [Contender(group) for group in groups]
    for each in contenders:
        with each.trying():
            each.warm_up(wanted.steps)
    for number in range(wanted.rounds):
        for each in in_turn(contenders, number):
            if each.is_in:
                with each.trying():
                    each.visit(gpus)
        if not any(each.is_in for each in contenders):
            raise next(each.failure for each in contenders if each.failure)
        _log.info("round %d of %d", number + 1, wanted.rounds)
        yield contenders


def in_turn(items: Iterable[T], number: int) -> list[T]:
    """The order of a round; every other one goes backwards, so that a steady drift cancels."""
    return [*items][::-1] if number % 2 else [*items]
