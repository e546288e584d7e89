"""Cells that take turns, round by round: one that fails is left out, and the others go on.

Knows no document and no verdict.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from hpcddp.measure.bench import unsettled_steps
from hpcddp.measure.blocks import CellRecord
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
    failure: GroupFailed | None = None

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
            each.group.wait_until_ready()
            each.group.take(WARM_UP_STEPS, discard=0)
            _log.info("%s is ready", each.group.cell.name)
    for number in range(wanted.rounds):
        visit_all(contenders, wanted, number, gpus)
        if not any(each.is_in for each in contenders):
            raise next(each.failure for each in contenders if each.failure)
        _log.info("round %d of %d", number + 1, wanted.rounds)
        after_round(contenders, number + 1)


def visit_all(contenders: Sequence[Contender], wanted: Wanted, number: int, gpus: GpuUse) -> None:
    """One round; every other one goes backwards, so that a steady drift cancels."""
    for each in reversed(contenders) if number % 2 else contenders:
        if each.is_in:
            with each.trying():
                _visit(each, wanted, gpus)


def _visit(contender: Contender, wanted: Wanted, gpus: GpuUse) -> None:
    group, record = contender.group, contender.record
    unsettled = unsettled_steps(group.config, group.cell.processes)
    with gpus.watch() as use:
        record.visits.append(group.take(wanted.steps, discard=unsettled))
    record.utilisation.append(use)
    if group.cell.processes > 1:
        # The first without exchange still sends out buffers, and the first of the next round
        # does not: neither counts.
        record.without_sync.append(group.take(wanted.steps, sync=False))
