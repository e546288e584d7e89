"""From what a user typed to a resolved configuration and profile. Sends nothing, writes nothing."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcddp.cluster.profile import CLUSTER_VARIABLE, ClusterProfile, choose_profile, settle
from hpcddp.cluster.profile_file import read_merged
from hpcddp.config.batch import check_processes, plan_batches
from hpcddp.config.files import find_config, find_job
from hpcddp.config.load import (
    Layer,
    Resolved,
    command_line_layer,
    environment_layer,
    file_layer,
    resolve,
)
from hpcddp.config.schema import Resources, RunConfig, check_data
from hpcddp.errors import ConfigError
from hpcddp.launch.limits import check_account

DEFAULT_JOB = "digits"
_MEMORY = ("mem", "mem_per_cpu", "mem_per_gpu")


@dataclass(frozen=True, slots=True)
class Request:
    """What the user typed: a job file, options (keys of `resources`), overrides, a command."""

    job: str | None = None
    cluster: str | None = None
    resources: Mapping[str, Any] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """The answer to a Request; `job_name` is what a run is called after by default."""

    resolved: Resolved
    profile: ClusterProfile
    job_name: str

    @property
    def config(self) -> RunConfig:
        return self.resolved.config


def resolve_request(request: Request, environ: Mapping[str, str]) -> ResolvedRequest:
    """Defaults < profile < configs/train < job file < environment < command line.

    Raises ConfigError with the layer at fault.
    """
    job = file_layer(find_job(DEFAULT_JOB if request.job is None else request.job))
    options = Layer("command line", {"resources": dict(request.resources)})
    overrides = command_line_layer(request.overrides)
    named = {"experiment": "digits", "cluster": "auto", **job.values}
    if environ.get(CLUSTER_VARIABLE):
        named["cluster"] = environ[CLUSTER_VARIABLE]
    named |= overrides.values
    cluster = named["cluster"] if request.cluster is None else request.cluster
    train = file_layer(find_config("train", str(named["experiment"]), environ))
    command = {"command": list(request.command)} if request.command else {}
    above = (train, job, environment_layer(environ), options, overrides)
    profile = settled_profile(str(cluster), above, environ)
    queue = {"resources": {"queue": profile.queue}} if profile.queue else {}
    chosen = Layer("chosen", {"cluster": profile.name, **queue, **command})
    resolved = resolve((_without_other_memory(profile.layer, above), *above, chosen))
    return ResolvedRequest(resolved, profile, _job_name(request, job))


def settled_profile(
    name: str, above: Sequence[Layer], environ: Mapping[str, str]
) -> ClusterProfile:
    """The profile for what the layers above it ask for: their nodes, queue, GPUs ..."""
    merged = read_merged(choose_profile(name, environ), environ)
    general = settle(merged, Resources(), environ)
    resolved = resolve((general.general_layer, *above))
    asked = resolved.config.resources
    nodes = general.defaults.get("resources", {}).get("nodes")
    if nodes and "resources.nodes" not in resolved.sources:
        asked = dataclasses.replace(asked, nodes=nodes)
    return settle(merged, asked, environ)


def _without_other_memory(layer: Layer, above: Sequence[Layer]) -> Layer:
    """The profile's layer without its memory, where somebody asks for memory in another way."""
    if not any(key in (part.values.get("resources") or {}) for part in above for key in _MEMORY):
        return layer
    resources = layer.values.get("resources", {})
    kept = {key: value for key, value in resources.items() if key not in _MEMORY}
    return Layer(layer.name, {**layer.values, "resources": kept})


def processes_per_node(config: RunConfig, profile: ClusterProfile) -> int:
    """One process per GPU, but for train.replicas=dp, where one drives all GPUs of its node, and
    for a program that asks for that; on profiles without GPUs what the configuration says.

    Raises ConfigError where the two ways of saying it contradict each other.
    """
    gpus, processes = config.resources.gpus_per_node, config.resources.processes_per_node
    if not profile.has_gpus:
        if gpus:
            raise ConfigError(
                f"gpus_per_node={gpus}, but profile `{profile.name}` has no GPUs. Use "
                f"resources.processes_per_node={gpus}, or a profile with GPUs."
            )
        return processes or 1
    if not gpus:
        raise ConfigError(
            f"Profile `{profile.name}` starts one process per GPU and gpus_per_node is {gpus}. "
            "Use --gpus-per-node N, or --cluster generic-cpu."
        )
    if config.train.replicas == "dp" and not config.command:
        return processes or 1
    if config.command and processes == 1:
        return 1
    if processes not in (None, gpus):
        raise ConfigError(
            f"processes_per_node={processes} with gpus_per_node={gpus}: one process drives one "
            "GPU. Leave processes_per_node unset."
        )
    return gpus


def world_size(config: RunConfig, profile: ClusterProfile) -> int:
    """Processes of the whole job."""
    return config.resources.nodes * processes_per_node(config, profile)


def check_sizes(config: RunConfig, profile: ClusterProfile) -> None:
    """Raise ConfigError now for what would only fail after hours in the queue."""
    processes = world_size(config, profile)
    check_account(config.resources, profile)
    if config.command:
        return
    check_data(config.data)
    train = config.train
    plan_batches(
        global_batch=train.global_batch, micro_batch=train.micro_batch, world_size=processes
    )
    check_processes(train.replicas, processes)
    _check_dp_devices(config, profile)


def _check_dp_devices(config: RunConfig, profile: ClusterProfile) -> None:
    wanted, gpus = config.train.dp_devices, config.resources.gpus_per_node
    on_gpus = profile.has_gpus and config.train.device != "cpu"
    if config.train.replicas == "dp" and on_gpus and wanted and gpus and wanted > gpus:
        raise ConfigError(
            f"train.dp_devices={wanted}, and the job asks for {gpus} GPUs. Use --gpus-per-node "
            f"{wanted}, or fewer devices."
        )


def _job_name(request: Request, job: Layer) -> str:
    return Path(request.command[0]).name if request.command else Path(job.name).stem
