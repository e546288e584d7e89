"""Who saves, where it is written, and what happens when that fails. When is `cadence`'s.

The loop stands still only while the state is copied; a thread writes the copy. The files are
`checkpoint`'s.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hpcddp.checkpoint_dir import CheckpointError, CheckpointInfo, checkpoint_path
from hpcddp.checkpoint_kept import Best, read_best, thin_out, write_best
from hpcddp.errors import HpcddpError
from hpcddp.train.background import Background
from hpcddp.train.cadence import Cadence
from hpcddp.train.checkpoint import Retention, save_snapshot, snapshot_state
from hpcddp.train.host_copy import HostCopy
from hpcddp.train.journal import Journal
from hpcddp.train.nonfinite import NonFiniteError, first_nonfinite
from hpcddp.train.ownership import Ownership
from hpcddp.train.process_group import Ranks
from hpcddp.train.state import TrainState

_RETRY_AFTER_S = 1.0  # network file systems have hiccups
_GONE_FOR_GOOD = 2  # saves in a row

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Saver:
    """Saves in the main process. `extra` goes into the manifest."""

    folder: Path
    extra: Mapping[str, Any]
    retention: Retention
    cadence: Cadence
    ranks: Ranks
    journal: Journal
    is_main: bool
    saved_step: int  # the newest step that needs no saving; at the start, where it began
    owner: Ownership
    keep_best: bool = False
    is_told: Callable[[], bool] = lambda: False  # to stop: the last save comes next
    _times_gone: int = 0  # saves in a row that have not found the run's folder
    _write_s: float = 0.0  # how long the newest write took
    _copy: HostCopy = field(default_factory=HostCopy)
    _writer: Background = field(default_factory=lambda: Background("checkpoint-writer"))

    def save_if_due(self, state: TrainState) -> None:
        """Save on the way when the cadence says so."""
        if self.is_main and self.cadence.is_due(state.step):
            self.save(state)

    def save_if_best(self, state: TrainState, evaluated: Best) -> None:
        """Save the state that was just evaluated, and mark it, if it is the best so far."""
        if self.is_main and self.keep_best and evaluated.beats(read_best(self.folder)):
            self.save(state, evaluated)

    def save(self, state: TrainState, best: Best | None = None) -> None:
        """Save on the way: copy the state and return, while the copy is written.

        Waits for the save before, if that is still being written, and leaves this one out where a
        signal has come meanwhile: the last one would have to wait for it. Training survives a save
        that fails, with its older checkpoints. The other processes go on, and wait in their next
        collective. With `best` it becomes the run's best once it is on disk.
        """
        if not self.is_main:
            return
        begin = time.perf_counter()
        has_waited = not self._writer.wait(0.0)
        self._writer.wait()
        if has_waited and self.is_told() and best is None:
            return
        if state.step == self.saved_step:
            if best is not None:
                self._writer.start(partial(self._mark, best))
            return
        snapshot = self._copy.take(state.to_dict())
        stall_s = time.perf_counter() - begin
        self.cadence.saved(state.step, stall_s, self._write_s)
        self._writer.start(partial(self._write, state.step, snapshot, stall_s, best))

    def check_owner(self) -> None:
        """Raise HpcddpError where nothing can be saved any more: `superseded` if another start of
        the run is known to have taken over, `run_dir_gone` if two saves in a row have not found the
        run's folder. Costs nothing.
        """
        if self.is_main:
            self.owner.check_heard()
            if self._times_gone >= _GONE_FOR_GOOD:
                raise _gone(self.folder.parent)

    def drain(self) -> None:
        """Return when no write is under way. Collective: nobody may leave before the writer."""
        self.ranks.decide(self._writer.wait)

    def save_last(self, state: TrainState) -> None:
        """Save before leaving: returns once the state is on disk, or raises. Collective.

        Nobody may leave earlier: a process that ends with 75 makes srun kill the writer.
        """
        nonfinite = self.ranks.decide(lambda: self._finish(state))
        if nonfinite is not None:
            raise NonFiniteError(_nonfinite_words(state.step, nonfinite))

    def _finish(self, state: TrainState) -> str | None:
        """Save; or the name of a tensor that is not finite."""
        begin = time.perf_counter()
        self._writer.wait()
        if state.step == self.saved_step:
            return None
        snapshot = snapshot_state(state.to_dict())
        nonfinite = first_nonfinite(snapshot)
        if nonfinite is not None:
            return nonfinite
        info, seconds = self._store(state.step, snapshot)
        stall_s = time.perf_counter() - begin
        self.journal.saved(info, seconds, stall_s, self.cadence.every_steps)
        return None

    def _write(
        self, step: int, snapshot: Mapping[str, Any], stall_s: float, best: Best | None
    ) -> None:
        """In the writer's thread: whatever goes wrong is said at once, and training goes on."""
        try:
            self._copy.wait()
            nonfinite = first_nonfinite(snapshot)
            if nonfinite is not None:  # the loop will hear of it from the loss
                raise CheckpointError(_nonfinite_words(step, nonfinite), "not_finite")
            info, seconds = self._store(step, snapshot)
            self.journal.saved(info, seconds, stall_s, self.cadence.every_steps)
            if best is not None:
                self._mark(best)
        except CheckpointError as error:
            self._times_gone = self._times_gone + 1 if self.owner.is_folder_gone() else 0
            self.journal.not_saved(step, error.message)
        except HpcddpError:
            raise  # another start owns the run: this comes out of the next wait
        except Exception as error:
            _log.exception("The writer of checkpoints failed")
            self.journal.not_saved(step, repr(error))

    def _mark(self, best: Best) -> None:
        """Its checkpoint is on disk: from here on it stays, and the best before it need not."""
        if not best.beats(read_best(self.folder)):
            return  # when it was asked for, a better one was still on its way to the disk
        newest = CheckpointInfo(checkpoint_path(self.folder, best.step), best.step)
        kept = self.retention
        try:
            self.owner.check()
            write_best(self.folder, best)
            thin_out(self.folder, newest, kept.keep_last, kept.keep_every_steps)
        except OSError as error:
            _log.warning("Step %d as the best, or what it replaces: %s", best.step, error)
        else:
            _log.info("step %d is the best so far; its checkpoint stays", best.step)

    def _store(self, step: int, snapshot: Mapping[str, Any]) -> tuple[CheckpointInfo, float]:
        """Write it, at the second try if need be; what there is then, and in how many seconds."""
        begin = time.perf_counter()
        kept, fence = self.retention, self.owner.check
        store = partial(save_snapshot, self.folder, step, snapshot, self.extra, kept, fence=fence)
        try:
            info = store()
        except CheckpointError as error:
            _log.warning("Trying once more in %g s: %s", _RETRY_AFTER_S, error.message)
            time.sleep(_RETRY_AFTER_S)
            info = store()
        self.saved_step, self._times_gone = step, 0
        self._write_s = time.perf_counter() - begin
        return info, self._write_s


def _gone(run_dir: Path) -> HpcddpError:
    return HpcddpError(
        f"The folder of this run, {run_dir}, is gone: two saves in a row have not found it. What "
        "is trained could not be kept, so training ends here. Put the folder back and resume the "
        "run; end a run (`hpcddp cancel`) before you move or remove its folder.",
        "run_dir_gone",
    )


def _nonfinite_words(step: int, name: str) -> str:
    return f"The state after step {step} is not finite ({name}) and was not saved."
