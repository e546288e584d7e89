"""That all nodes see the folder of runs: noted in it where a job has proven it. Knows no job."""

from contextlib import suppress
from pathlib import Path

from hpcddp.cluster.filesystems import mount_of

_NOTE = ".seen-by-all-nodes"


def note_proof(runs: Path) -> None:
    """Remember it for this folder, where it lies now; a copy elsewhere proves nothing."""
    with suppress(OSError):  # then it is asked for again
        (runs / _NOTE).write_text(_place(runs), encoding="utf-8")


def is_proven(runs: Path) -> bool:
    """True where `note_proof` was called for this folder on this file system."""
    try:
        return (runs / _NOTE).read_text(encoding="utf-8") == _place(runs)
    except (OSError, UnicodeDecodeError):
        return False


def _place(runs: Path) -> str:
    mount = mount_of(runs)
    return f"{runs.resolve()} on {f'{mount.kind} ({mount.source})' if mount else 'no mount'}\n"
