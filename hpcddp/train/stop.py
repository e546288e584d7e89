"""All processes agree to stop after the same step. Knows signals only as numbers, and no model."""

import torch

from hpcddp.stop_flag import StopFlag
from hpcddp.train.process_group import Pending, Ranks


class StopVote:
    """One tiny reduction per step, begun before the last of the work and read after it.

    So its time hides behind that work, the device is never waited for, and a signal that only one
    process got stops all of them after the same step.
    """

    def __init__(self, ranks: Ranks, stop_flag: StopFlag) -> None:
        self._ranks = ranks
        self._flag = stop_flag
        self._ballot = torch.zeros(2, dtype=torch.int32)  # signal, and whether a loss was bad
        self._pending: Pending | None = None

    @property
    def signum(self) -> int:
        """The signal that was agreed on, 0 while there is none."""
        return int(self._ballot[0])

    def is_told(self) -> bool:
        """True if this process has got a signal, which all will have agreed on a step later."""
        return self._flag.is_set

    @property
    def saw_nonfinite(self) -> bool:
        """True if any process had said so when the vote was opened."""
        return bool(self._ballot[1])

    def open(self, saw_nonfinite: bool = False) -> None:
        """Hand in what this process has seen so far: signals, a loss not finite. Collective."""
        self._ballot[0] = self._flag.notice.signum if self._flag.notice else 0
        self._ballot[1] = saw_nonfinite
        self._pending = self._ranks.start_max(self._ballot)

    def close(self) -> bool:
        """True on all ranks if any had been signalled when it opened. Collective."""
        assert self._pending is not None, "close() without open()"
        self._pending.wait()
        self._pending = None
        if self.signum and not self._flag.is_set:
            self._flag.hear(self.signum)
        return self.signum != 0

    def ask(self) -> bool:
        """Open and close with nothing in between. Collective."""
        self.open()
        return self.close()
