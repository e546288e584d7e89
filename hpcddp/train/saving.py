"""Who saves, and what happens when that fails. Knows no cadence; the files are `checkpoint`'s."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcddp.checkpoint_dir import CheckpointError
from hpcddp.train.checkpoint import save_checkpoint
from hpcddp.train.journal import Journal
from hpcddp.train.process_group import Ranks
from hpcddp.train.state import TrainState


@dataclass(slots=True)
class Saver:
    """Saves in the main process. `extra` goes into the manifest."""

    folder: Path
    extra: Mapping[str, Any]
    keep_last: int
    ranks: Ranks
    journal: Journal
    is_main: bool
    saved_step: int  # the newest step that needs no saving; at the start, where it began

    def save(self, state: TrainState) -> None:
        """Save on the way. Training survives it when that fails, with its older checkpoints.

        The other processes go on, and wait in their next collective.
        """
        if not self.is_main:
            return
        try:
            self._write(state)
        except CheckpointError as error:
            self.journal.not_saved(state.step, error.message)

    def save_last(self, state: TrainState) -> None:
        """Save before leaving: returns once the state is on disk, or raises. Collective.

        Nobody may leave earlier: a process that ends with 75 makes srun kill the writer.
        """
        self.ranks.decide(lambda: self._write(state))

    def _write(self, state: TrainState) -> None:
        if state.step == self.saved_step:
            return
        begin = time.perf_counter()
        info = save_checkpoint(self.folder, state.step, state.to_dict(), self.extra, self.keep_last)
        self.saved_step = state.step
        self.journal.saved(info, time.perf_counter() - begin)
