"""Slurm's short forms written out: host lists and task counts. Knows no environment, no DNS."""

import ipaddress
import math
import re
from collections.abc import Iterable, Sequence
from itertools import product

from hpcddp.cluster.variables import short
from hpcddp.errors import HpcddpError

_LABEL = r"[A-Za-z0-9._-]"
_NAME = re.compile(rf"{_LABEL}+")
# Literals and bracket groups alternate; nothing may follow the last bracket, as in Slurm.
_RANGED_NAME = re.compile(rf"(?:{_LABEL}*\[[0-9,-]+\])+")
_PIECE = re.compile(r"([^\[\]]*)\[([^\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")
_COUNT = re.compile(r"([1-9][0-9]{0,8})(?:\(x([1-9][0-9]{0,8})\))?")
_BETWEEN_COMMAS = re.compile(r"(?:[^,\[]+|\[[^\]]*\]?)+")  # commas in brackets do not count
_MAX_HOSTS = 65_536  # what Slurm itself accepts in one range; guards against n[1-999999999]
_TOO_MANY = f"it names more than {_MAX_HOSTS} hosts"


def expand_hostlist(text: str, name: str = "host list") -> tuple[str, ...]:
    """All hosts of a Slurm node list such as `a[001-003,7],r[0-1]n[0-2]`, in list order.

    The last bracket group runs fastest. Each range keeps the zero padding of its lower bound.
    `name` is what messages call the list. Raises HpcddpError: `bad_hostlist` for anything Slurm
    would not print, `inconsistent` for a host named twice.
    """
    items = _BETWEEN_COMMAS.findall(text)
    if not items:
        raise _bad(name, text, "it names no host")
    hosts: list[str] = []
    for item in items:
        if _NAME.fullmatch(item):
            hosts.append(item)
        else:
            hosts += _expand_ranges(item, text, name)
        if len(hosts) > _MAX_HOSTS:
            raise _bad(name, text, _TOO_MANY)
    if len(set(hosts)) != len(hosts):
        raise _named_twice(name, text, hosts)
    return tuple(hosts)


def compress_hostlist(hosts: Iterable[str]) -> str:
    """The short form of names, as Slurm prints it: gpu-[001-003,7],login."""
    bare: list[str] = []
    groups: dict[str, list[str]] = {}
    for host in sorted(set(hosts)):
        prefix = host.rstrip("0123456789")
        if prefix == host:
            bare.append(host)
        else:
            groups.setdefault(prefix, []).append(host.removeprefix(prefix))
    ranged = [
        prefix + (numbers[0] if len(numbers) == 1 else f"[{_ranges(numbers)}]")
        for prefix, numbers in groups.items()
    ]
    return ",".join([*ranged, *bare])


def _ranges(numbers: Sequence[str]) -> str:
    """`001-003,7`: a range for numbers that follow each other as written."""
    runs: list[list[str]] = []
    for number in sorted(numbers, key=lambda each: (len(each), each)):
        follows = runs and f"{int(runs[-1][-1]) + 1:0{len(runs[-1][-1])}d}" == number
        if follows:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _expand_ranges(item: str, text: str, name: str) -> list[str]:
    """The hosts of one entry of the list that has bracket groups."""
    if not _RANGED_NAME.fullmatch(item):
        raise _bad(name, text, f"{item[:40]!r} is neither a host name nor a range")
    groups = [_expand_group(*piece, text, name) for piece in _PIECE.findall(item)]
    if math.prod(map(len, groups)) > _MAX_HOSTS:
        raise _bad(name, text, _TOO_MANY)
    return list(map("".join, product(*groups)))


def _expand_group(prefix: str, ranges: str, text: str, name: str) -> list[str]:
    parts: list[str] = []
    for item in ranges.split(","):
        if item.isdigit():
            parts.append(prefix + item)
            continue
        low, high, width = _range_bounds(item, text, name)
        parts += [f"{prefix}{i:0{width}d}" for i in range(low, high + 1)]
    return parts


def _range_bounds(item: str, text: str, name: str) -> tuple[int, int, int]:
    """Lower bound, upper bound and number width of `098-101`."""
    match = _RANGE.fullmatch(item)
    if not match:
        raise _bad(name, text, f"{item[:40]!r} inside the brackets is no range")
    low, high = int(match[1]), int(match[2])
    if high < low:
        raise _bad(name, text, f"the range {item} runs backwards")
    if high - low >= _MAX_HOSTS:
        raise _bad(name, text, _TOO_MANY)
    return low, high, len(match[1])


def _bad(name: str, text: str, why: str) -> HpcddpError:
    return HpcddpError(
        f"{name}={short(text)!r} cannot be expanded: {why}. Needed is a list as Slurm prints it, "
        "for example gpu-a[001-003],cn-7.",
        "bad_hostlist",
    )


def _named_twice(name: str, text: str, hosts: list[str]) -> HpcddpError:
    seen: set[str] = set()
    twice = next(host for host in hosts if host in seen or seen.add(host))
    return HpcddpError(
        f"{name}={short(text)!r} names {twice} twice; every node of a step has its own name.",
        "inconsistent",
    )


def expand_counts(text: str, name: str = "task counts") -> tuple[int, ...]:
    """One count per node from Slurm's short form: `4(x2),3` is (4, 4, 3).

    Raises HpcddpError `bad_value`.
    """
    counts: list[int] = []
    for item in text.split(","):
        match = _COUNT.fullmatch(item)
        repeats = int(match[2] or 1) if match else 0
        if not match or len(counts) + repeats > _MAX_HOSTS:
            raise HpcddpError(
                f"{name}={short(text)!r} cannot be read. Needed are counts as Slurm prints "
                "them, for example 4(x2),3 for two nodes with 4 tasks and one with 3."
            )
        counts += [int(match[1])] * repeats
    return tuple(counts)


def with_suffix(host: str, suffix: str) -> str:
    """`host` on another network: the suffix goes behind the first label; addresses stay."""
    if not suffix or is_address(host):
        return host
    label, dot, domain = host.partition(".")
    return f"{label}{suffix}{dot}{domain}"


def is_address(host: str) -> bool:
    """True for an IPv4 or IPv6 address, which needs no look-up and takes no suffix."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
