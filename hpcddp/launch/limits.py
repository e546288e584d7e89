"""What a site allows, compared with what is asked for: sentences and refusals. Asks no Slurm."""

from collections.abc import Iterator, Mapping
from typing import Any

from hpcddp.cluster.option_values import parse_memory, parse_time_limit
from hpcddp.cluster.options import is_given
from hpcddp.cluster.profile import ClusterProfile
from hpcddp.cluster.profile_schema import Limits
from hpcddp.config.schema import Resources
from hpcddp.errors import ConfigError
from hpcddp.launch.sizes import cpus_of_process, gpus_per_process


def check_forbidden(profile: ClusterProfile, *options: Mapping[str, Any]) -> None:
    """Raise ConfigError for an option of sbatch or srun that the site refuses."""
    for name, reason in profile.forbidden.items():
        if any(is_given(part.get(name)) for part in options):
            raise ConfigError(
                f"--{name} is refused on {profile.name}: {reason}. Leave it out. If the site has "
                f"changed, allow it in clusters/{profile.name}.local.yaml: "
                f"`forbidden: {{{name}: null}}`.",
                "conflict",
            )


def check_account(resources: Resources, profile: ClusterProfile) -> None:
    """Raise ConfigError where the site wants an account and none is known."""
    if resources.account or not profile.account_required:
        return
    template = profile.account or "your account"
    way = "resources.project=NAME" if "{project}" in template else "--account NAME"
    key = "project" if "{project}" in template else "account"
    raise ConfigError(
        f"{profile.name} wants an account ({template}), and none is given. Type `{way}`, or "
        f"write it down once, in ~/.config/hpcddp/clusters/{profile.name}.local.yaml: "
        f"`defaults: {{resources: {{{key}: NAME}}}}`."
    )


def limit_warnings(
    resources: Resources, profile: ClusterProfile, processes: int
) -> tuple[str, ...]:
    """Sentences about what is beyond the site's limits as the profile knows them.

    Warnings, not errors: limits change, and Slurm has the last word.
    """
    where = f"{profile.name}{f', queue {profile.queue}' if profile.queue else ''}"
    dated = f" (profile of {profile.verified_on})" if profile.verified_on else ""
    found = [
        *_of_status(profile),
        *_of_launch(profile),
        *beyond_limits(resources, profile, processes),
    ]
    return tuple(f"{where}: {sentence}{dated}." for sentence in found)


def beyond_limits(resources: Resources, profile: ClusterProfile, processes: int) -> tuple[str, ...]:
    """What is too much, too little or too long for the queue, each as a part of a sentence."""
    return (
        *_of_size(resources, profile, processes),
        *_of_share(resources, profile, processes),
        *_of_time(resources, profile.limits),
    )


def longest_time(limits: Limits, nodes: int) -> str | None:
    """The longest time limit that a job of so many nodes may ask for."""
    found = [limits.time_max] if limits.time_max else []
    for most, time in sorted(limits.time_by_nodes.items(), key=lambda pair: int(pair[0])):
        if nodes <= int(most):
            found.append(time)
            break
    if limits.node_hours:
        found.append(str(max(1, int(limits.node_hours * 60 / nodes))))
    return min(found, key=parse_time_limit, default=None)


def _of_status(profile: ClusterProfile) -> Iterator[str]:
    if profile.status in ("retired", "retiring"):
        after = f"; its successor is {profile.successor}" if profile.successor else ""
        yield f"the cluster is {profile.status}{after}"


def _of_launch(profile: ClusterProfile) -> Iterator[str]:
    if why := getattr(profile.discouraged, profile.launch):
        other = "srun" if profile.launch == "torchrun" else "torchrun"
        yield f"{profile.launch} is discouraged, as {why}: use resources.launch={other}"


def _of_size(resources: Resources, profile: ClusterProfile, processes: int) -> Iterator[str]:
    limits, node, nodes = profile.limits, profile.node, resources.nodes
    if limits.nodes_max and nodes > limits.nodes_max:
        yield f"{nodes} nodes, but at most {limits.nodes_max} are allowed"
    if limits.nodes_min and nodes < limits.nodes_min:
        yield f"{nodes} nodes, but at least {limits.nodes_min} are needed"
    gpus = _gpus_per_node(resources, profile, processes)
    if limits.gpus_max and nodes * gpus > limits.gpus_max:
        yield f"{nodes * gpus} GPUs, but a job may have {limits.gpus_max}"
    if node.gpus and gpus > node.gpus:
        yield f"{gpus} GPUs per node, but a node has {node.gpus}"
    else:
        yield from _of_part(profile, gpus, nodes)
    cpus = processes * cpus_of_process(resources, processes)
    if node.cpus and cpus > node.cpus:
        most = max(node.cpus // max(processes, gpus), 1)
        yield (
            f"resources.cpus_per_process={resources.cpus_per_process} makes {cpus} CPUs per node, "
            f"but a job gets at most {node.cpus} and this one would never start: use {most}"
        )


def _gpus_per_node(resources: Resources, profile: ClusterProfile, processes: int) -> int:
    return processes * gpus_per_process(resources, processes) if profile.has_gpus else 0


def _of_share(resources: Resources, profile: ClusterProfile, processes: int) -> Iterator[str]:
    """Of CPUs and memory of the whole job."""
    limits, nodes = profile.limits, resources.nodes
    gpus = nodes * _gpus_per_node(resources, profile, processes)
    cpus = nodes * processes * cpus_of_process(resources, processes)
    if limits.cpus_max and cpus > limits.cpus_max:
        most_each = max(limits.cpus_max // max(gpus, nodes * processes), 1)
        yield (
            f"{cpus} CPUs, but a job may have {limits.cpus_max}: use "
            f"resources.cpus_per_process={most_each}"
        )
    for key, parts in (("mem", nodes), ("mem_per_cpu", cpus), ("mem_per_gpu", gpus)):
        memory_gb = parts * parse_memory(getattr(resources, key) or 0, key) / 1024
        if limits.memory_max_gb and memory_gb > limits.memory_max_gb:
            most_mib = int(limits.memory_max_gb * 1024 / parts)
            yield (
                f"{memory_gb:g} GB of memory, but a job may have {limits.memory_max_gb:g}: use "
                f"resources.{key}={most_mib}M"
            )


def _of_part(profile: ClusterProfile, gpus: int, nodes: int) -> Iterator[str]:
    """Of a job with some of the GPUs of its nodes."""
    rule, most = profile.limits.whole_node, profile.node.gpus
    if not gpus or gpus == most:
        return
    if rule == "required" and most:
        yield f"{gpus} GPUs per node, but nodes are given whole: use {most}"
    if rule == "or_one_gpu" and nodes * gpus > 1:
        own = f"clusters/{profile.name}.local.yaml"
        whole = f"{most} per node" if most else f"all of a node (`node: {{gpus: N}}` in {own})"
        yield f"{gpus} GPUs on {nodes} node(s), but a job has one or whole nodes: use 1, or {whole}"


def _of_time(resources: Resources, limits: Limits) -> Iterator[str]:
    most = longest_time(limits, resources.nodes)
    if resources.time is None:
        return
    asked = parse_time_limit(resources.time)
    if most and asked > parse_time_limit(most):
        yield f"--time {resources.time}, but {resources.nodes} node(s) may have at most {most}"
    if limits.time_min and asked < parse_time_limit(limits.time_min):
        yield f"--time {resources.time}, but at least {limits.time_min} is needed"
