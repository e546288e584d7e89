"""Findings as a table for people. Checks nothing."""

import re
from collections.abc import Sequence

from hpcddp.cluster.hostlist import compress_hostlist
from hpcddp.doctor.findings import SEVERITY, Finding

_INDENT = "    "
_MOST_NAMED = 2  # beside the finding
_NUMBER = re.compile(r"\d+(\.\d+)?( [mu]?s\b)?")


def report_lines(findings: Sequence[Finding]) -> list[str]:
    """One line per finding, equal ones of several hosts together; below a bad one the hosts, if
    they are many, and what to do.
    """
    rows = [(each, hosts) for each, hosts in _grouped(findings)]
    names = max((len(each.name) for each, _ in rows), default=0)
    places = max((len(_place(hosts)) for _, hosts in rows), default=0)
    lines = []
    for each, hosts in rows:
        start = f"{each.status:12}  {each.name:{names}}  {_place(hosts):{places}}"
        lines.append(f"{start}  {each.found}".rstrip())
        if each.needed and len(hosts) > _MOST_NAMED:
            lines.append(f"{_INDENT}hosts: {compress_hostlist(hosts)}")
        if each.needed:
            lines.append(f"{_INDENT}needed: {each.needed}")
        if each.fix:
            lines.append(f"{_INDENT}fix: {each.fix}")
    return [*lines, "", summary(findings)]


def summary(findings: Sequence[Finding]) -> str:
    """How many findings there are of each status, worst first."""
    counts = {status: sum(each.status == status for each in findings) for status in SEVERITY}
    return ", ".join(f"{counts[status]} {status}" for status in reversed(SEVERITY))


def _grouped(findings: Sequence[Finding]) -> list[tuple[Finding, list[str]]]:
    """Findings that say the same of several hosts, in the order of the first of each.

    Of those that are ok, numbers may differ: shown are the first host's.
    """
    groups: dict[tuple[str, ...], tuple[Finding, list[str]]] = {}
    for each in findings:
        found = _NUMBER.sub("#", each.found) if each.status == "ok" else each.found
        key = (each.name, each.status, found, each.needed, each.fix)
        _, hosts = groups.setdefault(key, (each, []))
        if each.host and each.host not in hosts:
            hosts.append(each.host)
    return list(groups.values())


def _place(hosts: Sequence[str]) -> str:
    if len(hosts) > _MOST_NAMED:
        return f"{len(hosts)} hosts"
    return ", ".join(hosts) or "job"
