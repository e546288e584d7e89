"""A profile compared with what Slurm says now: one finding per fact. Asks nobody itself."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpcddp.cluster.interfaces import Host, Interface
from hpcddp.cluster.live import LiveCluster, LivePartition, LiveQos
from hpcddp.cluster.network import (
    GLOO,
    NCCL,
    fitting_interfaces,
    gloo_missing,
    has_fallback,
    nccl_fits,
)
from hpcddp.cluster.option_values import parse_time_limit
from hpcddp.cluster.profile import ClusterProfile
from hpcddp.cluster.profile_schema import resources_in
from hpcddp.errors import HpcddpError

_FEATURES = re.compile(r"[\w.:+-]+")
_SITE_RULES = {"gpus_max": "most GPUs", "node_hours": "node hours", "time_min": "least time"}


@dataclass(frozen=True, slots=True)
class Finding:
    """`level` is ok, drift or untested; both sides as text."""

    level: str
    what: str
    profile: str
    live: str


def compare(values: Mapping[str, Any], live: LiveCluster) -> tuple[Finding, ...]:
    """Findings about every queue of the merged values of a profile."""
    queues = values.get("queues") or {"": {}}
    return tuple(
        finding
        for name, queue in queues.items()
        for finding in _of_queue(name, _laid(values, queue), live)
    )


def compare_node(
    profile: ClusterProfile, facts: Mapping[str, Any], unseen: str
) -> tuple[Finding, ...]:
    """Findings about one node: the interfaces that the profile names, and the architecture. Without
    facts `unseen` says why there are none.
    """
    if not facts:
        return (Finding("untested", "node", "-", f"no node was looked at: {unseen}"),)
    return tuple(_of_node(profile, facts))


def _of_node(profile: ClusterProfile, facts: Mapping[str, Any]) -> Iterator[Finding]:
    usable = [name for name, state in facts["interfaces"].items() if state["addresses"]]
    rules = {NCCL: nccl_fits, GLOO: lambda value, names: not gloo_missing(value, names)}
    for name, fits in rules.items():
        if name in profile.env:
            value = profile.env[name].value
            same = fits(value, usable)
            yield _finding(same, f"node {facts['host']}: {name}", value, _text(usable))
    if profile.interface and not has_fallback(profile.interface.value):
        rule = profile.interface.value
        same = bool(fitting_interfaces(rule, _host(facts)))
        yield _finding(same, f"node {facts['host']}: interface", rule, _text(usable))
    if profile.node.arch:
        same = profile.node.arch == facts["arch"]
        yield _finding(same, f"node {facts['host']}: arch", profile.node.arch, facts["arch"])


def _host(facts: Mapping[str, Any]) -> Host:
    """The node as a process on it would see it."""
    states = facts["interfaces"].items()
    seen = [
        Interface(name, tuple(state["addresses"]), kind=state.get("kind", "ethernet"))
        for name, state in states
    ]
    return Host(facts["host"], tuple(seen))


def _laid(values: Mapping[str, Any], queue: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a queue over those of its nodes over those of the cluster."""
    node = values.get("nodes", {}).get(queue.get("node_type"), {})
    facts: dict[str, Any] = {}
    for key in ("limits", "node", "preempt"):
        facts[key] = {**(values.get(key) or {}), **(node.get(key) or {}), **(queue.get(key) or {})}
    blocks = [resources_in(part) for part in (values, node, queue)]
    return {**facts, "asked": {**blocks[0], **blocks[1], **blocks[2]}}


def _of_queue(name: str, facts: Mapping[str, Any], live: LiveCluster) -> Iterator[Finding]:
    where = f"queue {name}" if name else "cluster"
    asked = facts["asked"]
    yield from _qos(where, asked.get("qos"), live)
    yield from _site_rules(where, facts["limits"])
    names = str(asked["partition"]).split(",") if asked.get("partition") else []
    if not names:
        names = [part.name for part in live.partitions.values() if part.is_default]
    for partition in names:
        found = live.partitions.get(partition)
        if found is None:
            known = ", ".join(live.partitions) or "none"
            yield Finding("drift", f"{where}: partition", partition, f"not there; {known}")
            continue
        state = "there" if found.is_up else "not up"
        yield Finding("ok" if found.is_up else "drift", f"{where}: partition", partition, state)
        qos = (live.qos or {}).get(asked.get("qos") or "")
        yield from _longest_time(where, facts["limits"], found, qos)
        yield from _numbers_of_nodes(where, facts["limits"], found)
        yield from _nodes(where, facts, found)
        yield from _preemption(where, facts["preempt"], live.preemption_of(found, asked.get("qos")))


def _longest_time(
    where: str, limits: Mapping[str, Any], found: LivePartition, qos: LiveQos | None
) -> Iterator[Finding]:
    """The limit of the partition and that of the QOS; the stricter counts unless the QOS's wins."""
    told = [limits["time_max"]] if limits.get("time_max") else []
    told = told or sorted((limits.get("time_by_nodes") or {}).values(), key=_minutes)[-1:]
    if not told:
        return
    theirs = [found.time_max, qos.time_max if qos else None]
    if qos and qos.time_max and qos.overrides_time:
        theirs = [qos.time_max]
    known = [limit for limit in theirs if limit and _minutes(limit)]
    least = min(known, key=_minutes, default="no limit")
    same = bool(known) and _minutes(told[0]) == _minutes(least)
    yield _finding(same, f"{where}: longest time", told[0], least)


def _numbers_of_nodes(
    where: str, limits: Mapping[str, Any], found: LivePartition
) -> Iterator[Finding]:
    """A site may ask for less of each job than the partition allows, but not for more."""
    most, least = limits.get("nodes_max"), limits.get("nodes_min")
    if most:
        same = found.nodes_max is None or most <= found.nodes_max
        yield _finding(same, f"{where}: most nodes", str(most), str(found.nodes_max or "no limit"))
    if least:
        same = (found.nodes_min or 0) <= least
        yield _finding(same, f"{where}: least nodes", str(least), str(found.nodes_min or 1))


def _site_rules(where: str, limits: Mapping[str, Any]) -> Iterator[Finding]:
    """What a plug-in of the site refuses at submission, and no answer of Slurm mentions."""
    for key, what in _SITE_RULES.items():
        if limits.get(key):
            told = str(limits[key])
            yield Finding("untested", f"{where}: {what}", told, "a rule of the site, not Slurm's")


def _minutes(text: str) -> int:
    """The time in minutes; 0 for what is no limit."""
    try:
        return parse_time_limit(text)
    except HpcddpError:
        return 0


def _nodes(where: str, facts: Mapping[str, Any], found: LivePartition) -> Iterator[Finding]:
    """GPUs, their type, cores, features: it is enough that some node of the partition fits."""
    node = facts["node"]
    seen = {
        "gpus": sorted({shape.gpus for shape in found.nodes}),
        "cpus": sorted({shape.cpus for shape in found.nodes}),
        "type": sorted({shape.gpu_type for shape in found.nodes if shape.gpu_type}),
        "features": sorted({part for shape in found.nodes for part in shape.features}),
    }
    if node.get("gpus"):
        same = node["gpus"] in seen["gpus"]
        yield _finding(same, f"{where}: GPUs of a node", str(node["gpus"]), _text(seen["gpus"]))
    if kind := facts["asked"].get("gpu_type"):
        same = kind in seen["type"]
        yield _finding(same, f"{where}: type of GPU", kind, _text(seen["type"]))
    if node.get("cpus"):
        same = any(cpus >= node["cpus"] for cpus in seen["cpus"])  # some are kept for the system
        yield _finding(same, f"{where}: cores of a node", str(node["cpus"]), _text(seen["cpus"]))
    for feature in _FEATURES.findall(facts["asked"].get("constraint") or ""):
        same = feature in seen["features"]
        yield _finding(same, f"{where}: feature", feature, _text(seen["features"]))


def _preemption(
    where: str, preempt: Mapping[str, Any], taken: tuple[str, int] | None
) -> Iterator[Finding]:
    if not preempt:
        return
    possible = preempt.get("possible", False)
    told = "possible" if possible else "none"
    if taken is None:
        yield Finding("untested", f"{where}: preemption", told, "it goes by QOS, and none is known")
        return
    mode, grace_s = taken
    yield _finding(possible == (mode != "OFF"), f"{where}: preemption", told, f"PreemptMode={mode}")
    if possible and preempt.get("grace_s") is not None:
        same = preempt["grace_s"] == grace_s
        texts = (f"{preempt['grace_s']} s", f"GraceTime={grace_s}")
        yield _finding(same, f"{where}: notice", *texts)


def _qos(where: str, qos: str | None, live: LiveCluster) -> Iterator[Finding]:
    if not qos:
        return
    if live.qos is None:
        yield Finding("untested", f"{where}: QOS", qos, "sacctmgr does not answer")
    else:
        yield _finding(qos in live.qos, f"{where}: QOS", qos, ", ".join(live.qos))


def _finding(same: bool, what: str, mine: str, theirs: str) -> Finding:
    return Finding("ok" if same else "drift", what, mine, theirs)


def _text(values: list[Any]) -> str:
    return ", ".join(map(str, values)) or "none"
