"""How much of a quota is used, from what `lfs quota` and `quota` print. Knows no check."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hpcddp.cluster.filesystems import Mount

_FIELDS = 4  # used, soft limit, hard limit, grace: of blocks, then of files
_KIB = 1024


def read_quota(
    mount: Mount | None, user: str, ask: Callable[[Sequence[str]], str]
) -> list[dict[str, Any]] | None:
    """What is used of each limit on this file system; None where no command says.

    `ask` gives what a command prints, empty where it fails or is missing.
    """
    if mount is None:
        return None
    if mount.kind == "lustre":
        text = ask(["lfs", "quota", "-q", "-u", user, mount.point])
        return parse_quota(text, mount.point)
    return parse_quota(ask(["quota", "--raw-grace", "--no-wrap", "--show-mntpoint"]), mount.point)


def parse_quota(text: str, point: str) -> list[dict[str, Any]] | None:
    """Used and limit in the line of the file system mounted at `point`; None if there is none.

    Both commands print the name, then used, soft, hard and grace for blocks of 1 KiB and for
    files; `lfs` breaks the line after a long name, and both mark what is over its limit with *.
    """
    words = text.split()
    if point not in words:
        return None
    numbers = [word.rstrip("*") for word in words[words.index(point) + 1 :]]
    return list(_limits(numbers)) if len(numbers) >= 2 * _FIELDS - 1 else None


def _limits(numbers: Sequence[str]) -> Iterator[dict[str, Any]]:
    for what, at, unit in (("space", 0, _KIB), ("files", _FIELDS, 1)):
        used, soft, hard = (_number(word) for word in numbers[at : at + 3])
        if used is not None:
            yield {"what": what, "used": used * unit, "limit": (hard or soft or 0) * unit}


def _number(word: str) -> int | None:
    return int(word) if word.isdigit() else None
