"""How much of a quota is used, from what `lfs quota` and `quota` print. Knows no check."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hpcddp.cluster.filesystems import Mount

_FIELDS = 4  # used, soft limit, hard limit, grace: of blocks, then of files
_KIB = 1024
_TIMEOUT_S = 30


def printed(words: Sequence[str]) -> str:
    """What a command prints, whatever its exit code: `quota` fails for who is over a limit."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def read_quota(
    mount: Mount | None, user: str, ask: Callable[[Sequence[str]], str] = printed
) -> list[dict[str, Any]] | None:
    """What is used of each limit on this file system; None where no command says."""
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
    told = words[words.index(point) + 1 :]
    return list(_limits(told)) if len(told) >= 2 * _FIELDS - 1 else None


def _limits(words: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A soft limit counts where there is one: above it, writing ends after some days."""
    for what, at, unit in (("space", 0, _KIB), ("files", _FIELDS, 1)):
        used, soft, hard = (_number(word) for word in words[at : at + 3])
        if used is not None:
            yield {
                "what": what,
                "used": used * unit,
                "limit": (soft or hard or 0) * unit,
                "hard_limit": (hard or soft or 0) * unit,
                "is_marked": words[at].endswith("*"),
            }


def _number(word: str) -> int | None:
    word = word.rstrip("*")
    return int(word) if word.isdigit() else None
