"""What Slurm itself says of the cluster: partitions, nodes, GRES, QOS. Knows no profile.

Reads sinfo, scontrol and sacctmgr in forms that all versions since 20.11 print alike; a command
that is missing or fails is an empty answer.
"""

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hpcddp.cluster.scrub import query_environment

_TIMEOUT_S = 30
_QOS_FORMAT = "format=name,maxwall,flags,preempt,preemptmode,gracetime"
_FIELD = re.compile(r"(\S+?)=(.*?)(?=\s+[A-Z][\w:/]*=|\s*$)")
_GPU = re.compile(r"gpu(?::(?P<type>[A-Za-z_][\w.-]*))?(?::(?P<count>\d+))?(?:\([^)]*\))?")
_AFTERWARDS = "Exited with exit code"  # what srun says after the words of a task that failed

Ask = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class LiveNodes:
    """Nodes of one shape in one partition, as sinfo groups them."""

    count: int
    cpus: int
    memory_mib: int
    gpus: int
    gpu_type: str
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LivePartition:
    """One partition; times in Slurm's form, None for "no limit"."""

    name: str
    is_default: bool
    is_up: bool
    time_max: str | None
    nodes_max: int | None
    nodes_min: int | None
    preempt_mode: str
    grace_s: int
    nodes: tuple[LiveNodes, ...]


@dataclass(frozen=True, slots=True)
class LiveQos:
    """One QOS. `overrides_time`: its longest time counts instead of the partition's. `preempts`
    names those whose jobs it may take nodes from; `preempt_mode` is how that is done to its own.
    """

    time_max: str | None = None
    overrides_time: bool = False
    preempts: tuple[str, ...] = ()
    preempt_mode: str = ""
    grace_s: int = 0


@dataclass(frozen=True, slots=True)
class LiveCluster:
    """The cluster now, with the partitions that this user is shown. `qos` is None where Slurm keeps
    no accounts.
    """

    name: str
    version: str
    partitions: Mapping[str, LivePartition]
    config: Mapping[str, str]
    qos: Mapping[str, LiveQos] | None

    def preemption_of(self, found: LivePartition, qos: str | None) -> tuple[str, int] | None:
        """How nodes are taken from jobs of that partition and QOS, and with how many seconds of
        notice; None where it goes by the QOS and that is not known.
        """
        if not _goes_by_qos(self.config):
            return found.preempt_mode or "OFF", found.grace_s
        own = (self.qos or {}).get(qos or "")
        if own is None:
            return None
        taken = any(qos in other.preempts for other in (self.qos or {}).values())
        mode = own.preempt_mode if own.preempt_mode not in ("", "CLUSTER") else ""
        mode = mode or mode_without_gang(self.config.get("PreemptMode", "?"))
        return (mode if taken else "OFF"), own.grace_s


def ask_slurm(words: Sequence[str]) -> str:
    """What a command prints; empty where it fails."""
    return run_tool(words)[0]


def run_tool(words: Sequence[str], timeout_s: float = _TIMEOUT_S) -> tuple[str, str]:
    """What a command prints; where it fails nothing, and the last line that says why."""
    environ = query_environment(os.environ)
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", env=environ, timeout=timeout_s
        )
    except OSError as error:
        return "", f"{words[0]}: {error.strerror}"
    except subprocess.TimeoutExpired:
        return "", f"{words[0]}: no answer within {timeout_s:g} s"
    if done.returncode == 0:
        return done.stdout, ""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    told = [line for line in lines if _AFTERWARDS not in line] or lines
    return "", told[-1] if told else f"{words[0]}: exit code {done.returncode}"


def read_live(ask: Ask = ask_slurm) -> LiveCluster | None:
    """The cluster as Slurm sees it now; None where no Slurm answers."""
    config = _config(ask(["scontrol", "show", "config"]))
    if not config:
        return None
    nodes = _nodes(ask(["sinfo", "--noheader", "-o", "%R|%D|%c|%m|%G|%f"]))
    shown = {part["PartitionName"] for part in _show_partitions(ask)}
    found = {
        part["PartitionName"]: _partition(part, nodes)
        for part in _partitions(config, ask)
        if part["PartitionName"] in shown
    }
    return LiveCluster(
        name=config.get("ClusterName", ""),
        version=config.get("SLURM_VERSION", ""),
        partitions=found,
        config=config,
        qos=_ask_qos(ask),
    )


def ask_preemption(partition: str, qos: str, ask: Ask = ask_slurm) -> tuple[str, int] | None:
    """As `LiveCluster.preemption_of`, asking for no more than that takes. None also where Slurm
    does not tell.
    """
    config = _config(ask(["scontrol", "show", "config"]))
    fields = [part for part in _partitions(config, ask) if part["PartitionName"] == partition]
    all_qos = _ask_qos(ask) if _goes_by_qos(config) else None
    live = LiveCluster(name="", version="", partitions={}, config=config, qos=all_qos)
    return live.preemption_of(_partition(fields[0], {}), qos) if fields else None


def nodes_of(partition: str | None, ask: Ask = ask_slurm) -> int | None:
    """How many nodes the partition has, up or not, None for the default one; of several the one
    with most. None where Slurm does not tell.
    """
    lines = [line.split("|") for line in ask(["sinfo", "--noheader", "--format=%P|%D"]).split()]
    names = set(partition.split(",")) if partition else set()
    counts = [
        _number(count) or 0
        for name, count in lines
        if (name.removesuffix("*") in names if names else name.endswith("*"))
    ]
    return max(counts, default=None)


def _partitions(config: Mapping[str, str], ask: Ask) -> list[dict[str, str]]:
    """The fields of each partition. Where partitions take from each other by their tier, none takes
    from the highest, though it may print the mode that is the whole cluster's. The highest may be
    one that this user is not shown, so all are asked for.
    """
    found = _show_partitions(ask, "--all")
    for part in found:
        part["PreemptMode"] = mode_without_gang(part.get("PreemptMode", ""))
    if config.get("PreemptType") == "preempt/partition_prio":
        highest = max(map(_tier, found), default=0)
        for part in found:
            if _tier(part) == highest:
                part["PreemptMode"] = "OFF"
    return found


def mode_without_gang(mode: str) -> str:
    """`REQUEUE` for `GANG,REQUEUE`: GANG lets suspended jobs go on, and takes no nodes by itself.
    A partition without a mode of its own prints that of the whole cluster.
    """
    words = [word for word in mode.split(",") if word not in ("GANG", "WITHIN")]
    return ",".join(words) or ("OFF" if mode else "")


def _show_partitions(ask: Ask, *options: str) -> list[dict[str, str]]:
    """What Slurm shows to this user; with `--all` also what is hidden or closed to them."""
    lines = ask(["scontrol", "show", "partition", "--oneliner", *options]).splitlines()
    return [dict(_FIELD.findall(line)) for line in lines if "PartitionName=" in line]


def _tier(part: Mapping[str, str]) -> int:
    return _number(part.get("PriorityTier", "")) or 0


def _config(text: str) -> dict[str, str]:
    pairs = [line.partition("=") for line in text.splitlines() if "=" in line]
    return {name.strip(): value.strip() for name, _, value in pairs}


def _nodes(text: str) -> dict[str, list[LiveNodes]]:
    found: dict[str, list[LiveNodes]] = {}
    for line in text.splitlines():
        partition, count, cpus, memory, gres, features = (line.split("|", 5) + [""] * 6)[:6]
        gpus, kind = gpus_of(gres)
        shape = LiveNodes(
            count=_number(count) or 0,
            cpus=_number(cpus) or 0,
            memory_mib=_number(memory) or 0,
            gpus=gpus,
            gpu_type=kind,
            features=tuple(part for part in features.split(",") if part and part != "(null)"),
        )
        found.setdefault(partition, []).append(shape)
    return found


def gpus_of(gres: str) -> tuple[int, str]:
    """Number and type of the GPUs in a GRES text such as `gpu:a100:4(S:0-1),nvme:1`.

    Where there are several types (whole GPUs and slices), only the first counts.
    """
    matches = [_GPU.fullmatch(part) for part in re.split(r",(?![^(]*\))", gres)]
    found = [match for match in matches if match]
    kind = found[0]["type"] or "" if found else ""
    return sum(int(match["count"] or 1) for match in found if (match["type"] or "") == kind), kind


def _partition(fields: Mapping[str, str], nodes: Mapping[str, list[LiveNodes]]) -> LivePartition:
    limit = fields.get("MaxTime", "UNLIMITED")
    return LivePartition(
        name=fields["PartitionName"],
        is_default=fields.get("Default") == "YES",
        is_up=fields.get("State") == "UP",
        time_max=None if limit in ("UNLIMITED", "NONE") else limit,
        nodes_max=_number(fields.get("MaxNodes", "")),
        nodes_min=_number(fields.get("MinNodes", "")),
        preempt_mode=fields.get("PreemptMode", ""),
        grace_s=_number(fields.get("GraceTime", "")) or 0,
        nodes=tuple(nodes.get(fields["PartitionName"], ())),
    )


def _goes_by_qos(config: Mapping[str, str]) -> bool:
    """True where a job's QOS says who may take its nodes, and not its partition."""
    return config.get("PreemptType") == "preempt/qos"


def _ask_qos(ask: Ask) -> dict[str, LiveQos] | None:
    return _qos(ask(["sacctmgr", "--noheader", "--parsable2", "show", "qos", _QOS_FORMAT]))


def _qos(text: str) -> dict[str, LiveQos] | None:
    rows = [(line.split("|") + [""] * 6)[:6] for line in text.splitlines() if "|" in line]
    found = {
        name: LiveQos(
            time_max=wall or None,
            overrides_time="PartitionTimeLimit" in flags.split(","),
            preempts=tuple(other for other in preempts.split(",") if other),
            preempt_mode=mode.upper(),
            grace_s=_duration_s(grace),
        )
        for name, wall, flags, preempts, mode, grace in rows
    }
    return found or None


def _duration_s(text: str) -> int:
    """Seconds of `HH:MM:SS`, as sacctmgr prints a grace time; 0 where there is none."""
    parts = [_number(part) or 0 for part in text.split(":")]
    return sum(part * 60**place for place, part in enumerate(reversed(parts)))


def _number(text: str) -> int | None:
    """The number a text starts with: sinfo writes `64+` for mixed nodes."""
    match = re.match(r"\d+", text.strip())
    return int(match[0]) if match else None
