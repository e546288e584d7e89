"""From processes that have met to a session, in stages between which stop signals are looked at.

Knows no step.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from hpcddp.config.identity import identity_of
from hpcddp.config.layout import EXIT_AGAIN, ProcessLayout
from hpcddp.config.schema import RunConfig
from hpcddp.leave import leave
from hpcddp.run_dir import RunDir
from hpcddp.stop_flag import StopFlag
from hpcddp.train.fingerprint import fingerprint_of
from hpcddp.train.ownership import take_over
from hpcddp.train.process_group import is_parting
from hpcddp.train.replicas import devices_per_process
from hpcddp.train.resume import Expected, find_checkpoint, is_finished
from hpcddp.train.setup import Process, Session, build_session
from hpcddp.train.task import Task, build_task, settings_of, with_micro_batch

_ENDED_WITHIN_S = 10.0  # by the launcher, after another process has left with a code that is not 0

_log = logging.getLogger(__name__)


class ToldToStop(Exception):
    """All processes have agreed to stop before the first step; there is nothing to save."""


@contextmanager
def leave_if_told(stop_flag: StopFlag, run_dir: RunDir, layout: ProcessLayout) -> Iterator[None]:
    """Leave, not with an error of this process, where another has left before all could agree.

    Either it was told to stop, or it failed and says so itself. Both make the launcher end this
    one too, by a signal; only without it has something gone wrong between the processes.
    """
    try:
        yield
    except Exception as error:
        if not (is_parting(error) and stop_flag.comes_within(_ENDED_WITHIN_S)):
            raise
        _log.exception("Told to end; another process has left before all could agree")
        leave(run_dir.failure_of(layout.job_id, layout.attempt) or EXIT_AGAIN)


def open_session(config: RunConfig, layout: ProcessLayout, process: Process) -> Session | None:
    """Claim the run, open its data, read its newest checkpoint, build what a step needs.

    None where the run is finished already. Raises ToldToStop, HpcddpError. Collective.
    """
    run_dir, ranks = process.run_dir, process.ranks
    _look_around(process)
    task = build_task(config, layout)
    _look_around(process)
    ranks.decide(lambda: take_over(process.owner, run_dir))
    found = find_checkpoint(run_dir.checkpoints, _expected(task, process), ranks)
    if ranks.decide(lambda: is_finished(found, task.total_steps, run_dir)):
        _log.info("This run has finished; there is nothing to do")
        return None
    _look_around(process)
    if found.point:
        task = with_micro_batch(
            task, found.point.first, devices_per_process(config, process.device)
        )
    return build_session(task, process, found)


def _look_around(process: Process) -> None:
    """Between two stages. Collective."""
    process.watchdog.beat()
    if process.vote.ask():
        raise ToldToStop


def _expected(task: Task, process: Process) -> Expected:
    config, device = task.config, process.device
    devices = devices_per_process(config, device)
    return Expected(
        identity_of(config, process.run_dir.name),
        fingerprint_of(device, task.layout, process.ranks, devices),
        lambda first: settings_of(with_micro_batch(task, first, devices)),
        config.checkpoint.strict_fingerprint,
    )
