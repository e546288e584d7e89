"""A profile for a cluster that nobody knows yet, as commented YAML. Sends no job of its own accord.

Every line says where it was read. What Slurm cannot tell is left as a comment to fill in.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hpcddp.cluster.interfaces import is_never_used_name
from hpcddp.cluster.live import LiveCluster, LiveNodes, LivePartition, run_tool
from hpcddp.config.yaml_text import dump_yaml

# The job may wait 20 s for a node and take its time to load Python from a slow file system.
_run_patiently = partial(run_tool, timeout_s=120)


def probe_node(
    options: Sequence[str], run: Callable[[Sequence[str]], tuple[str, str]] = _run_patiently
) -> tuple[dict[str, Any], str]:
    """The facts of one node, by a short job with these options of srun; where there are none, they
    are empty and the text says why.
    """
    words = ["srun", "--nodes=1", "--ntasks=1", "--time=2", *options]
    words += ["--immediate=20", "--quiet", "--job-name=hpcddp-detect"]
    text, problem = run([*words, sys.executable, "-m", "hpcddp.cluster.node_facts"])
    try:
        return json.loads(text), ""
    except ValueError:
        return {}, problem or "the job printed no facts"


def way_to(partition: LivePartition, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Options of srun for a job on one node of the partition, with a GPU where it has any, and the
    account and QOS that the user exports for sbatch, which srun does not read.
    """
    own = [(key, environ.get(f"SBATCH_{key.upper()}")) for key in ("account", "qos")]
    return (
        f"--partition={partition.name}",
        *(["--gres=gpu:1"] if _gpus(partition) else []),
        *(f"--{key}={value}" for key, value in own if value),
    )


def survey_text(live: LiveCluster, facts: Mapping[str, Any], today: str, unseen: str) -> str:
    """The profile as YAML. `facts` are those of `node_facts`, or empty; `unseen` then says why."""
    return "\n".join(_lines(live, facts, today, unseen)) + "\n"


def main_partition(live: LiveCluster) -> LivePartition | None:
    """The partition to look at: the default one if it has GPUs, else the first that has."""
    up = [part for part in live.partitions.values() if part.is_up]
    up.sort(key=lambda part: (not _gpus(part), not part.is_default))
    return up[0] if up else None


def family_of(facts: Mapping[str, Any]) -> tuple[str, str]:
    """The family of profiles that fits a node, and what says so; empty where nothing was seen."""
    names, rdma = [*facts.get("interfaces", {})], facts.get("rdma", {})
    gpus = " ".join(facts.get("gpus", ()))
    if any(name.startswith("hsn") for name in names):
        kind = "slingshot-amd" if "GPU[" in gpus or "AMD" in gpus else "slingshot-nvidia"
        return kind, "interfaces hsn*"
    for name, layer in rdma.items():
        if name.startswith(("efa", "rdmap")):
            return "efa", f"device {name}"
        if layer == "InfiniBand":
            return "infiniband", f"{name} is InfiniBand"
    if rdma:
        return "roce", f"{next(iter(rdma))} is RDMA over Ethernet"
    return ("ethernet", "no RDMA device on the node") if names else ("", "")


def _lines(live: LiveCluster, facts: Mapping[str, Any], today: str, unseen: str) -> Iterator[str]:
    main = main_partition(live)
    family, seen = family_of(facts)
    yield f"# Written by `hpcddp cluster detect --write` on {today}; Slurm {live.version}."
    yield "# Read it through: what a comment asks for, Slurm could not tell."
    yield f"description: {dump_yaml(f'{live.name}; written by detect, to be completed')}"
    if family:
        yield f"extends: [{family}]  # {seen}, on {facts['host']}"
    else:
        yield "# extends: [infiniband]  # or ethernet, roce, efa, slingshot-nvidia, slingshot-amd"
    yield "status: personal"
    yield f"verified_on: {dump_yaml(today)}"
    yield f"sources: [scontrol and sinfo of {dump_yaml(live.name)}]"
    yield f"aliases: [{dump_yaml(live.name)}]  # ClusterName in slurm.conf"
    yield from _account_lines(live)
    yield from _gpu_lines(main)
    yield from _interface_lines(facts, unseen)
    yield "# scratch: /scratch/{project}   # where checkpoints go"
    yield "# modules: [load cuda]          # what `module` should load in every job"
    if main:
        yield f"default_queue: {dump_yaml(_key(main.name))}"
    yield "queues:"
    for partition in live.partitions.values():
        yield from _queue_lines(partition)
    yield "defaults:"
    yield f'  resources: {{time: "01:00:00"}}{_gpu_type_note(main)}'


def _gpu_type_note(main: LivePartition | None) -> str:
    shape = _largest(main)
    if shape is None or not shape.gpu_type:
        return ""
    return f"  # and gpu_type: {dump_yaml(shape.gpu_type)}, if the site wants the type named"


def _account_lines(live: LiveCluster) -> Iterator[str]:
    enforced = live.config.get("AccountingStorageEnforce", "none")
    if "associations" in enforced:
        yield f"account_required: true  # AccountingStorageEnforce={enforced}"
        yield '# account: "{project}"  # if accounts are made of the project name'
    else:
        yield f"# account_required: true  # Slurm asks for none (enforces {enforced})"


def _gpu_lines(main: LivePartition | None) -> Iterator[str]:
    shape = _largest(main)
    if shape is None or not shape.gpus:
        yield "gpu_request: none  # no GPUs in GRES of sinfo"
        return
    yield "gpu_request: gpus-per-node  # or gres, gpus, gpus-per-task; implied where GPUs just come"


def _interface_lines(facts: Mapping[str, Any], unseen: str) -> Iterator[str]:
    for name, state in facts.get("interfaces", {}).items():
        if state["addresses"] and not is_never_used_name(name):
            speed = f", {state['speed_mbit_per_s']} Mbit/s" if state["speed_mbit_per_s"] else ""
            yield f"# seen on {facts['host']}: {name} {', '.join(state['addresses'])}{speed}"
    if not facts:
        yield f"# interfaces: no node was looked at: {unseen}"


def _queue_lines(partition: LivePartition) -> Iterator[str]:
    yield f"  {dump_yaml(_key(partition.name))}:"
    cpus = f"cpus_per_process: {_cpus(partition)}"
    yield f"    defaults: {{resources: {{partition: {dump_yaml(partition.name)}, {cpus}}}}}"
    yield from _shape_lines(partition)
    limits = {
        "time_max": partition.time_max,
        "nodes_max": partition.nodes_max,
        "nodes_min": partition.nodes_min if (partition.nodes_min or 0) > 1 else None,
    }
    given = ", ".join(f"{key}: {dump_yaml(text)}" for key, text in limits.items() if text)
    if given:
        yield f"    limits: {{{given}}}  # scontrol show partition"
    if partition.preempt_mode in ("", "OFF"):
        yield "    preempt: {possible: false}  # PreemptMode=OFF, or the highest PriorityTier"
        return
    if partition.preempt_mode == "SUSPEND":
        yield "    preempt: {possible: true, why: jobs are suspended and go on later}"
        return
    again = "resubmit" if partition.preempt_mode == "CANCEL" else "auto"
    settings = f"possible: true, grace_s: {partition.grace_s}, requeue: {again}"
    yield f"    preempt: {{{settings}}}  # PreemptMode={partition.preempt_mode}, GraceTime"


def _shape_lines(partition: LivePartition) -> Iterator[str]:
    shape = _largest(partition)
    if shape is None:
        return
    gpus = f"gpus: {shape.gpus}, " if shape.gpus else ""
    more = f"; {len(partition.nodes)} kinds of nodes" if len(partition.nodes) > 1 else ""
    memory = f"memory_gb: {shape.memory_mib // 1024}"
    yield f"    node: {{{gpus}cpus: {shape.cpus}, {memory}}}  # sinfo{more}"
    if not shape.gpus:
        yield "    gpu_request: none"


def _key(name: str) -> str:
    return name.replace("-", "_")


def _largest(partition: LivePartition | None) -> LiveNodes | None:
    shapes = partition.nodes if partition else ()
    return max(shapes, key=lambda shape: (shape.gpus, shape.count), default=None)


def _gpus(partition: LivePartition) -> int:
    shape = _largest(partition)
    return shape.gpus if shape else 0


def _cpus(partition: LivePartition | None) -> int:
    shape = _largest(partition)
    return max(shape.cpus // max(shape.gpus, 1), 1) if shape else 1


def write_profile(text: str, path: Path) -> None:
    """Write the file, never over one that exists. Raises FileExistsError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
