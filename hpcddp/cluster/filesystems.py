"""Which file system a path is on, by the kernel's list of mounts. Writes nothing, knows no job."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

MOUNTS = Path("/proc/self/mountinfo")
_SHARED = (
    *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cephfs", "panfs", "wekafs", "pvfs2"),
    *("orangefs", "glusterfs", "afs", "cifs", "smb3", "daos", "juicefs", "quobyte"),
)
PROVE_SHARED = "python -m hpcddp doctor --nodes 2"
_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
_DISK = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "vfat", "overlay")

Reach = Literal["shared", "disk", "memory", "unknown"]


@dataclass(frozen=True, slots=True)
class Mount:
    """One mounted file system: where, of which kind, from which device or server."""

    point: str
    kind: str
    source: str = ""

    @property
    def reach(self) -> Reach:
        """Who else can see it, as far as its kind tells: a disk may be served to other nodes."""
        kind = self.kind.removeprefix("fuse.")
        for kinds, reach in ((_SHARED, "shared"), (_DISK, "disk"), (_MEMORY, "memory")):
            if kind in kinds:
                return reach
        return "unknown"

    def as_facts(self, path: Path) -> Mapping[str, str]:
        """Plain values for a report about `path`."""
        return {"path": str(path), "kind": self.kind, "source": self.source, "reach": self.reach}


def mount_of(path: Path, mounts: Path = MOUNTS) -> Mount | None:
    """The file system that holds `path`, which need not exist yet; None where nobody knows."""
    there = existing_part(path)
    try:
        found = [each for each in read_mounts(mounts) if _is_below(there, each.point)]
    except OSError:
        return None
    longest = max((len(each.point) for each in found), default=0)
    # The last of two on one folder hides the first.
    return next((each for each in reversed(found) if len(each.point) == longest), None)


def existing_part(path: Path) -> Path:
    """The path with links followed, or the nearest folder above it that exists."""
    path = path.absolute()
    # Path.exists raises where a folder above is closed to us, or a server has lost it.
    while not os.path.exists(path) and path != path.parent:
        path = path.parent
    return path.resolve()


def sharing_warning(path: Path, mount: Mount | None) -> str | None:
    """A sentence where a folder that all nodes must share may not be shared; None where it is."""
    if mount is not None and mount.reach == "shared":
        return None
    kind = "a file system of unknown kind" if mount is None else f"{mount.kind} ({mount.source})"
    why = {"disk": ", a disk of this host", "memory": ", memory of this host"}
    what = "" if mount is None else why.get(mount.reach, ", and whether it is shared is not known")
    return (
        f"{path} is on {kind}{what}. All nodes must see the runs: set HPCDDP_RUNS_DIR to a shared "
        f"file system, or prove that this one is: {PROVE_SHARED}"
    )


def read_mounts(mounts: Path = MOUNTS) -> Iterator[Mount]:
    """All mounts in the kernel's order. Raises OSError."""
    for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        fields, origin = before.split(), after.split()
        if len(fields) >= 5 and origin:
            source = origin[1] if len(origin) > 1 else ""
            yield Mount(_unescaped(fields[4]), origin[0], _unescaped(source))


def _is_below(path: Path, point: str) -> bool:
    return point == "/" or f"{path}/".startswith(f"{point}/")


def _unescaped(text: str) -> str:
    """The kernel writes a blank as \\040."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
