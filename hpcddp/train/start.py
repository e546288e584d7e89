"""From processes that have met to a session, in stages between which stop signals are looked at.

Knows no step.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from hpcddp.config.layout import EXIT_AGAIN, ProcessLayout
from hpcddp.config.schema import RunConfig
from hpcddp.leave import leave
from hpcddp.run_dir import RunDir
from hpcddp.stop_flag import StopFlag
from hpcddp.train.fingerprint import fingerprint_of
from hpcddp.train.ownership import Ownership, take_over
from hpcddp.train.process_group import Ranks, is_parting
from hpcddp.train.replicas import devices_per_process
from hpcddp.train.resume import Expected, find_checkpoint, is_finished
from hpcddp.train.setup import Session, build_session
from hpcddp.train.stop import StopVote
from hpcddp.train.task import Task, build_task, identity_of, settings_of, with_micro_batch
from hpcddp.train.watchdog import Watchdog

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


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a run, in a process that has met the others."""

    config: RunConfig
    layout: ProcessLayout
    run_dir: RunDir
    device: torch.device
    ranks: Ranks
    vote: StopVote
    watchdog: Watchdog
    owner: Ownership

    def open_session(self) -> Session | None:
        """Claim the run, open its data, read its newest checkpoint, build what a step needs.

        None where the run is finished already. Raises ToldToStop, HpcddpError. Collective.
        """
        self._look_around()
        task = build_task(self.config, self.layout)
        self._look_around()
        self.ranks.decide(lambda: take_over(self.owner, self.run_dir))
        found = find_checkpoint(self.run_dir.checkpoints, self._expected(task), self.ranks)
        if self.ranks.decide(lambda: is_finished(found, task.total_steps, self.run_dir)):
            _log.info("This run has finished; there is nothing to do")
            return None
        self._look_around()
        return build_session(
            with_micro_batch(task, found.point.micro_batch) if found.point else task,
            self.device,
            self.ranks,
            self.vote,
            found,
            self.run_dir,
            self.owner,
            self.watchdog,
        )

    def _look_around(self) -> None:
        """Between two stages. Collective."""
        self.watchdog.beat()
        if self.vote.ask():
            raise ToldToStop

    def _expected(self, task: Task) -> Expected:
        devices = devices_per_process(self.config, self.device)
        return Expected(
            identity_of(self.config, self.run_dir.name),
            fingerprint_of(self.device, self.layout, self.ranks, devices),
            lambda micro_batch: settings_of(with_micro_batch(task, micro_batch)),
            self.config.checkpoint.strict_fingerprint,
        )
