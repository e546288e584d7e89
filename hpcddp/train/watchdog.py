"""Ends an attempt that hangs, and says what each process was doing. Knows no scheduler.

A thread of each process looks whether its counter moves. When it does not, all processes write
down where they stand; who wrote nothing, or is furthest behind, is the suspect.
"""

import contextlib
import faulthandler
import json
import os
import sys
import threading
import time
from pathlib import Path

from hpcddp.config.layout import EXIT_FAILED, ProcessLayout
from hpcddp.run_dir import RunDir, write_atomically

# torch's own time-out, 10 minutes with NCCL, would end a collective before the watchdog says who
# hangs, and work that takes longer, such as a save that the others wait for. A month is never.
COLLECTIVE_TIMEOUT_S = 30 * 86400.0
_LOOKS = 20  # per time-out
_LONGEST_PAUSE_S = 5.0
# A start and the last save read and write whole checkpoints, of which no process can say how far
# they are; on a busy file system that lasts longer than any step.
_LEAST_FOR_FILES_S = 1800.0
# How long the others' words are waited for. They come within a look of each other, and a shared
# file system may show them late.
_LEAST_WAIT_S = 2.0
_MOST_WORDS_S = 60.0  # for all that is written before a process leaves
_COLLECTIVES_KEPT = 2000  # in torch's flight recorder


def record_collectives(hang_timeout_s: float) -> None:
    """Let torch keep the newest collectives; call it before there is a process group."""
    if hang_timeout_s:
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(_COLLECTIVES_KEPT))


class Watchdog:
    """Leaves the process with 1 when `beat` was not called for `hang_timeout_s`; 0: never.

    While no steps are made (`is_stepping`) it waits for half an hour at least.
    A process that is suspended as a whole and goes on later has not hung: looks are counted, not
    the time between them.
    """

    def __init__(self, layout: ProcessLayout, run_dir: RunDir, hang_timeout_s: float) -> None:
        self.beats = 0
        self.is_stepping = False
        self._layout = layout
        self._run_dir = run_dir
        self._timeout_s = hang_timeout_s
        self._pause_s = min(_LONGEST_PAUSE_S, hang_timeout_s / _LOOKS)
        self._over = threading.Event()

    def start(self) -> None:
        """Begin to look, unless the time-out is 0."""
        if self._timeout_s:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Look no more: the work is done."""
        self._over.set()

    def beat(self) -> None:
        """Something was done. This is all that the loop pays for."""
        self.beats += 1

    def _watch(self) -> None:
        seen, silent_s = -1, 0.0
        while not self._over.wait(self._pause_s):
            limit_s = self._timeout_s
            if not self.is_stepping:
                limit_s = max(limit_s, _LEAST_FOR_FILES_S)
            silent_s = silent_s + self._pause_s if seen == self.beats else 0.0
            seen = self.beats
            if silent_s >= limit_s:
                self._bark(silent_s)

    def _bark(self, silent_s: float) -> None:
        """Write down all there is, and leave: nothing can be tidied up.

        What everybody waits for may be the very file system that is written to, so not for long.
        """
        words = threading.Thread(target=self._tell, args=(silent_s,), daemon=True)
        words.start()
        words.join(_MOST_WORDS_S)
        os._exit(EXIT_FAILED)

    def _tell(self, silent_s: float) -> None:
        _say(f"no progress for {silent_s:.0f} s; stacks:")
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        folder = self._run_dir.attempt_logs(self._layout.attempt)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._word(folder, self._layout.global_rank), str(self.beats))
        self._dump_collectives(folder)
        self._wait_for_words(folder)
        self._record(folder, silent_s)

    def _word(self, folder: Path, global_rank: int) -> Path:
        return folder / f"hang-rank-{global_rank:04d}"

    def _dump_collectives(self, folder: Path) -> None:
        path = folder / f"collectives-rank-{self._layout.global_rank:04d}.json"
        with contextlib.suppress(Exception):  # a private call, and this process is lost anyway
            from torch._C import _distributed_c10d as c10d

            path.write_text(json.dumps(json.loads(c10d._dump_fr_trace_json()), indent=1))

    def _wait_for_words(self, folder: Path) -> None:
        deadline = time.monotonic() + max(_LEAST_WAIT_S, 3 * self._pause_s)
        while time.monotonic() < deadline and len(self._words(folder)) < self._layout.world_size:
            time.sleep(0.1)

    def _words(self, folder: Path) -> dict[int, int]:
        """Global rank -> beats of the processes that have written."""
        ranks = range(self._layout.world_size)
        paths = {rank: self._word(folder, rank) for rank in ranks}
        return {rank: int(path.read_text()) for rank, path in paths.items() if path.exists()}

    def _record(self, folder: Path, silent_s: float) -> None:
        """One process speaks for all: the lowest that can."""
        words = self._words(folder)
        if self._layout.global_rank != min(words):
            time.sleep(_LEAST_WAIT_S)  # whoever leaves first ends the others
            return
        suspects = find_suspects(words, self._layout.world_size)
        place = {"attempt": self._layout.attempt, "global_rank": self._layout.global_rank}
        names = ", ".join(map(str, suspects)) or "not known"
        error = f"Hang: no progress for {silent_s:.0f} s; suspected rank: {names}"
        self._run_dir.append_event(
            "hang", **place, suspected_ranks=suspects, silent_s=round(silent_s, 1)
        )
        self._run_dir.append_event(
            "failed", **place, exit_code=EXIT_FAILED, error=error, reason="error"
        )
        _say(error)


def find_suspects(beats: dict[int, int], world_size: int) -> list[int]:
    """The ranks that gave no sign; if all did, those furthest behind, unless none is."""
    silent = [rank for rank in range(world_size) if rank not in beats]
    if silent:
        return silent
    last = min(beats.values())
    behind = [rank for rank, count in beats.items() if count == last]
    return sorted(behind) if len(behind) < world_size else []


def _say(words: str) -> None:
    """Write to this process's log without a lock that a thread that hangs might hold."""
    os.write(sys.stderr.fileno(), f"hpcddp: {words}\n".encode())
