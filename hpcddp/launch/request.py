"""From what a user typed to a resolved configuration and profile. Sends nothing, writes nothing."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcddp.cluster.profile import CLUSTER_VARIABLE, ClusterProfile, choose_profile, settle
from hpcddp.cluster.profile_file import read_merged
from hpcddp.config.batch import check_processes, plan_batches
from hpcddp.config.files import find_config, find_job, list_configs, shipped_dir
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
from hpcddp.launch.limits import beyond_limits, check_account
from hpcddp.launch.phrases import INTERPRETERS, own_program

DEFAULT_JOB = "digits"
_CHOOSES_QUEUE = ("queue", "partition", "qos", "reservation")
_MEMORY = ("mem", "mem_per_cpu", "mem_per_gpu")


@dataclass(frozen=True, slots=True)
class Request:
    """What the user typed: a job file, options (keys of `resources`), overrides, a command.

    `is_test`: the job only proves something, and may have the profile's `test_queue`.
    """

    job: str | None = None
    cluster: str | None = None
    resources: Mapping[str, Any] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    is_test: bool = False


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """The answer to a Request; `job_name` is what a run is called after by default.

    `queue_said` is a sentence on the queue of a test, empty where there was nothing to choose.
    """

    resolved: Resolved
    profile: ClusterProfile
    job_name: str
    queue_said: str = ""

    @property
    def config(self) -> RunConfig:
        return self.resolved.config


def resolve_request(request: Request, environ: Mapping[str, str]) -> ResolvedRequest:
    """Defaults < profile < configs/train < job file < environment < command line.

    Raises ConfigError with the layer at fault.
    """
    usual = _resolve(dataclasses.replace(request, is_test=False), environ)
    return _in_either_queue(usual, _resolve(request, environ)) if request.is_test else usual


def _in_either_queue(usual: ResolvedRequest, test: ResolvedRequest) -> ResolvedRequest:
    """The test in its own queue, unless that has other nodes or is too small for it."""
    queue, other = test.profile.queue, usual.profile.queue
    if queue == other:
        return usual
    beyond = [text for text in _beyond_limits(test) if text not in _beyond_limits(usual)]
    if test.profile.node_type != usual.profile.node_type:
        beyond.append(f"its nodes are {test.profile.node_type}")
    if beyond:
        said = f"Queue {other}, not {queue}, the test queue of {test.profile.name}: {beyond[0]}."
        return dataclasses.replace(usual, queue_said=said)
    said = (
        f"Queue {queue}: the test queue of {test.profile.name}, as nobody has named a queue, "
        f"partition, QOS or reservation; the usual one is resources.queue={other}."
    )
    return dataclasses.replace(test, queue_said=said)


def _beyond_limits(request: ResolvedRequest) -> tuple[str, ...]:
    processes = processes_per_node(request.config, request.profile)
    return beyond_limits(request.config.resources, request.profile, processes)


def _resolve(request: Request, environ: Mapping[str, str]) -> ResolvedRequest:
    job = file_layer(_job_file(DEFAULT_JOB if request.job is None else request.job, environ))
    options = Layer("command line", {"resources": dict(request.resources)})
    overrides = command_line_layer(request.overrides)
    named = {"experiment": None, "cluster": "auto", **job.values}
    if environ.get(CLUSTER_VARIABLE):
        named["cluster"] = environ[CLUSTER_VARIABLE]
    named |= overrides.values
    cluster = named["cluster"] if request.cluster is None else request.cluster
    train = _experiment_layers(named["experiment"], environ)
    command = Layer("chosen", {"command": list(request.command)} if request.command else {})
    above = (*train, job, environment_layer(environ), options, overrides, command)
    profile = settled_profile(str(cluster), above, environ, is_test=request.is_test)
    queue = {"resources": {"queue": profile.queue}} if profile.queue else {}
    chosen = Layer("chosen", {"cluster": profile.name, **queue})
    resolved = resolve((_without_other_memory(profile.layer, above), *above, chosen))
    return ResolvedRequest(resolved, profile, _job_name(request, job))


def _job_file(text: str, environ: Mapping[str, str]) -> Path:
    path = find_job(text)
    if path.suffix in INTERPRETERS:
        raise ConfigError(
            f"`{text}` is a program, and a job file was needed. Your own program comes after the "
            f"options and `--`: {own_program(text)}"
        )
    experiments = list_configs("train", environ).values()
    if path.resolve() not in [known.resolve() for known in experiments]:
        return path
    job = shipped_dir("jobs") / path.name
    or_job = f", or its job file jobs/{path.name}" if job.exists() else ""
    raise ConfigError(
        f"`{text}` is an experiment, and a job file was needed. Type experiment={path.stem} "
        f"instead{or_job}."
    )


def _experiment_layers(name: object, environ: Mapping[str, str]) -> tuple[Layer, ...]:
    """Empty where neither the job file nor anybody above it names an experiment."""
    return () if name is None else (file_layer(find_config("train", str(name), environ)),)


def settled_profile(
    name: str, above: Sequence[Layer], environ: Mapping[str, str], *, is_test: bool = False
) -> ClusterProfile:
    """The profile for what the layers above it ask for: their nodes, queue, GPUs ...

    Of a test that asks for no queue, in the profile's `test_queue`.
    """
    merged = read_merged(choose_profile(name, environ), environ)
    general = settle(merged, Resources(), environ)
    resolved = resolve((general.general_layer, *above))
    asked = resolved.config.resources
    defaults = general.defaults.get("resources", {})
    if defaults.get("nodes") and "resources.nodes" not in resolved.sources:
        asked = dataclasses.replace(asked, nodes=defaults["nodes"])
    is_free = not any(getattr(asked, key) for key in _CHOOSES_QUEUE) and not defaults.get("queue")
    if is_test and general.test_queue and is_free:
        asked = dataclasses.replace(asked, queue=general.test_queue)
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
