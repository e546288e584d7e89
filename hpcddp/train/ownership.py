"""One run, one writer: who owns a run directory, and how an older copy finds out. Knows no tensor.

Slurm can start a job again while a copy of it still exists on a node that did not answer; thawed,
that copy would go on to write. So every start claims `owner.json`, and nothing is committed by who
is no longer named there. The owner also touches the file all the time, which tells another job
that the run is being trained.
"""

import errno
import json
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpcddp.checkpoint_dir import remove_left_overs
from hpcddp.config.layout import ProcessLayout
from hpcddp.errors import HpcddpError
from hpcddp.run_dir import NO_SPACE, RunDir, write_atomically

_BEAT_S = 5.0
_RETRY_AFTER_S = 1.0  # network file systems have hiccups
_SILENT_S = 30.0  # an owner that has not touched its file for so long is dead
NOT_OURS = ("superseded", "run_in_use")  # codes of the errors by which a claim fails


class Ownership:
    """This start's claim to a run directory; only the main process has one."""

    def __init__(
        self,
        run_dir: RunDir,
        layout: ProcessLayout,
        *,
        beat_s: float = _BEAT_S,
        silent_s: float = _SILENT_S,
    ) -> None:
        self._path = run_dir.path / "owner.json"
        self._run = run_dir.name
        self._mine = _record_of(layout)
        self._beat_s, self._silent_s = beat_s, silent_s
        self._ended = threading.Event()
        self._is_claimed = False
        self._lost: HpcddpError | None = None
        self._thread = threading.Thread(target=self._beat, name="run-owner", daemon=True)

    def claim(self) -> None:
        """Become the owner. Raises HpcddpError: `superseded` for an older copy of what owns the
        run now, `run_in_use` while another start trains it, `owner_not_known` when it cannot be
        read or written twice, `no_space` where that is for want of room.

        Waits, at most `silent_s`, only where an owner on another host has said nothing of its end.
        Who is the owner already only looks whether that is still so.
        """
        try:
            self._claim()
        except OSError as first:
            time.sleep(_RETRY_AFTER_S)
            try:
                self._claim()
            except OSError as error:
                raise self._not_claimed(first, error) from error

    def _claim(self) -> None:
        if not self._is_claimed:
            self._refuse_others()
            write_atomically(self._path, json.dumps(self._mine) + "\n")
        self.check()  # of two that come at once the later one stays
        if not self._is_claimed:
            self._is_claimed = True
            self._thread.start()

    def _refuse_others(self) -> None:
        owner = _read(self._path)
        if owner is None or owner.get("released") or owner.get("nonce") == self._mine["nonce"]:
            return
        if _is_older(self._mine, owner):
            raise self._superseded(owner)
        if not _succeeds(self._mine, owner) and _lives(owner, self._path, self._silent_s):
            raise self._in_use(owner)

    def check(self) -> None:
        """Raise HpcddpError `superseded` when another start has claimed the run. Reads the disk.

        Raises OSError where the claim cannot be read: then this is not, or not any more, the file
        system that the run began on, and nothing may be written there.
        """
        owner = _read(self._path)
        if owner is None:
            raise FileNotFoundError(errno.ENOENT, f"{self._path} is gone", str(self._path))
        if owner.get("nonce") != self._mine["nonce"]:
            raise self._superseded(owner)

    def is_folder_gone(self) -> bool:
        """True where the run's folder is not there, or is another one: nothing can be saved."""
        with suppress(OSError):
            return _read(self._path) is None
        return False

    def check_heard(self) -> None:
        """As `check`, but of what was last heard in the background: costs nothing."""
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        """Give the run free, if it is still ours."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        with suppress(OSError):
            owner = _read(self._path)
            if owner is not None and owner.get("nonce") == self._mine["nonce"]:
                write_atomically(self._path, json.dumps(self._mine | {"released": True}) + "\n")

    def _beat(self) -> None:
        while self._lost is None and not self._ended.wait(self._beat_s):
            try:
                self.check()
                os.utime(self._path)
            except HpcddpError as error:
                self._lost = error
            except OSError:
                continue  # the file system may come back

    def _superseded(self, owner: Mapping[str, Any]) -> HpcddpError:
        return HpcddpError(
            f"Run `{self._run}` now belongs to {_words(owner)}. This is {_words(self._mine)}, an "
            "older copy; it ends here and writes nothing more.",
            "superseded",
        )

    def _not_claimed(self, first: OSError, error: OSError) -> HpcddpError:
        is_full = error.errno in NO_SPACE
        advice = "Make room or check the quota" if is_full else "Check its folder and file system"
        return HpcddpError(
            f"Cannot read or write {self._path}: {error.strerror} (a moment before: "
            f"{first.strerror}). {advice}.",
            "no_space" if is_full else "owner_not_known",
        )

    def _in_use(self, owner: Mapping[str, Any]) -> HpcddpError:
        return HpcddpError(
            f"Run `{self._run}` is being trained by {_words(owner)}. Two jobs must never train one "
            f"run: wait for it, or end it first (`hpcddp cancel {self._run}`), or start a new run "
            "under another name (`hpcddp submit --name NAME`).",
            "run_in_use",
        )


def take_over(owner: Ownership, run_dir: RunDir) -> None:
    """Claim the run and take away what an older copy may still be about to publish.

    It looks at `owner.json` right before it renames, so after the two lines below it either has
    published already or never will.
    """
    owner.claim()
    remove_left_overs(run_dir.checkpoints)


def is_of_another_job(
    run_dir: RunDir, layout: ProcessLayout, *, silent_s: float = _SILENT_S
) -> bool:
    """True where a job that is not this process's trains the run. Waits where a claim does."""
    path = run_dir.path / "owner.json"
    with suppress(OSError):
        owner = _read(path) or {}
        if _is_of_another_job(owner, layout) and _lives(owner, path, silent_s):
            return _is_of_another_job(_read(path) or {}, layout)  # who touched it may be our own
    return False


def _is_of_another_job(owner: Mapping[str, Any], layout: ProcessLayout) -> bool:
    return bool(owner) and not owner.get("released") and owner.get("job") != layout.job_id


def _record_of(layout: ProcessLayout) -> dict[str, Any]:
    return {
        "job": layout.job_id,
        "launcher": layout.launcher,
        "attempt": layout.attempt,
        "restart_count": layout.restart_count,
        "host": socket.gethostname(),
        "boot": _boot_id(),
        "pid": os.getpid(),
        "process_start": _process_start(os.getpid()),
        "nonce": uuid.uuid4().hex,
    }


def _is_older(mine: Mapping[str, Any], owner: Mapping[str, Any]) -> bool:
    """Only Slurm keeps a job's number over its restarts; elsewhere counts can begin anew."""
    same_job = mine["job"] == owner.get("job") and mine["launcher"] == "slurm"
    return same_job and _start_of(mine) < _start_of(owner)


def _succeeds(mine: Mapping[str, Any], owner: Mapping[str, Any]) -> bool:
    """True for a later start of the same job: the one before is over, or cut off and fenced."""
    return mine["job"] == owner.get("job") and _start_of(mine) > _start_of(owner)


def _start_of(record: Mapping[str, Any]) -> tuple[int, int]:
    return record.get("restart_count", 0), record.get("attempt", 0)


def _lives(owner: Mapping[str, Any], path: Path, silent_s: float) -> bool:
    """True if the owner is there; on its own host at once, elsewhere if it touches its file."""
    if owner.get("host") == socket.gethostname() and owner.get("boot") == _boot_id():
        return _process_start(owner.get("pid", 0)) == owner.get("process_start")
    before, pause_s = _last_touch(path), min(1.0, silent_s / 10)
    # Looks are counted, not the time: who is suspended meanwhile has not seen the owner silent.
    for _ in range(math.ceil(silent_s / pause_s)):
        time.sleep(pause_s)
        if _last_touch(path) != before:
            return True
    return False


def _words(record: Mapping[str, Any]) -> str:
    return (
        f"job {record.get('job')}, attempt {record.get('attempt')} (process {record.get('pid')} "
        f"on {record.get('host')})"
    )


def _read(path: Path) -> dict[str, Any] | None:
    """None where there is none; OSError where nobody can say. Opened anew each time, so that a
    network file system asks its server.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def _last_touch(path: Path) -> tuple[int, int]:
    with suppress(OSError), path.open("rb") as file:
        status = os.fstat(file.fileno())
        return status.st_ino, status.st_mtime_ns
    return 0, 0


def _boot_id() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _process_start(pid: int) -> str | None:
    """When a process of this host began, in the kernel's ticks; None if there is none."""
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    return None
