"""Every option and variable of a job, with the layer it is from and the reason. Sends nothing."""

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpcddp.cluster.options import is_given
from hpcddp.cluster.profile import ClusterProfile
from hpcddp.cluster.profile_schema import EnvSetting, Preemption
from hpcddp.cluster.scrub import looks_secret
from hpcddp.cluster.variable_check import variable_warnings
from hpcddp.errors import HpcddpError
from hpcddp.launch.limits import check_forbidden
from hpcddp.launch.place import ANYWHERE
from hpcddp.launch.render import option_warnings, sbatch_options
from hpcddp.launch.request import ResolvedRequest, check_sizes, processes_per_node
from hpcddp.launch.sizes import threads_of_process
from hpcddp.launch.step import YIELDS_TO, container_words, has_needed, lacks_needed, srun_options

# Options whose value follows from a setting of another name.
_FROM = {
    "cpus-per-task": "cpus_per_process",
    "ntasks-per-node": "gpus_per_node",
    "gpus-per-node": "gpus_per_node",
    "gpus-per-task": "gpus_per_node",
    "gpus": "gpus_per_node",
    "gres": "gpus_per_node",
    "image": "container",
    "signal": "warn_before_s",
}
_ALWAYS = {
    "requeue": "a preempted job comes back",
    "open-mode": "a requeue keeps the logs of earlier attempts",
    "kill-on-bad-exit": "one process that fails ends the others, which would wait for it",
    "export": "the processes see the variables of the script",
    "signal": "the processes are warned before the time limit, and save",
}
_WHY = {
    "nodes": "the job's processes run on so many hosts",
    "ntasks-per-node": "processes of a node, or its one torchrun",
    "time": "Slurm ends the job then; shorter jobs start earlier",
    "partition": "the nodes of the queue",
    "qos": "the rules and priority of the queue",
    "constraint": "the kind of nodes",
    "reservation": "nodes that are kept for it",
    "account": "who is charged",
    "mem": "memory of a node, where 0 is all",
    "mem-per-cpu": "memory goes by cores",
    "mem-per-gpu": "memory goes by GPUs",
    "cpus-per-task": "cores of a process and its loader workers",
    "image": "the container",
    **dict.fromkeys(
        ("gpus-per-node", "gpus-per-task", "gpus", "gres"), "GPUs, asked for in the site's way"
    ),
}
_NETWORK = ("NCCL_", "TORCH_NCCL_", "RCCL_", "GLOO_", "FI_", "UCX_", "MIOPEN_")
_FRESH_MONTHS = 12
_NOT_SHOWN = ("job-name", "chdir", "output")


@dataclass(frozen=True, slots=True)
class Row:
    """One option or variable: its value, the file and block or the layer it is from, and why."""

    name: str
    value: str
    layer: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The job that a request would become. `warnings` are what `submit` would say as well,
    `documents` where the facts of each file are from.
    """

    cluster: str
    queue: str
    node_type: str
    variants: tuple[str, ...]
    files: tuple[str, ...]
    nodes: int
    processes_per_node: int
    sbatch: tuple[Row, ...]
    srun: tuple[Row, ...]
    launch: tuple[Row, ...]
    env: tuple[Row, ...]
    setup: tuple[Row, ...]
    preemption: str
    warnings: tuple[str, ...]
    documents: Mapping[str, tuple[str, ...]]


def explain(
    request: ResolvedRequest, environ: Mapping[str, str], today: datetime.date
) -> Explanation:
    """Raises HpcddpError for what could not be rendered either."""
    profile, config = request.profile, request.config
    processes = processes_per_node(config, profile)
    options = sbatch_options(config.resources, profile, ANYWHERE, processes)
    step = srun_options(config.resources, profile, processes, ANYWHERE)
    own = {} if profile.launcher == "local" or profile.launch_program else step
    return Explanation(
        cluster=profile.name,
        queue=profile.queue,
        node_type=profile.node_type,
        variants=profile.variants_on,
        files=tuple(map(str, profile.files)),
        nodes=config.resources.nodes,
        processes_per_node=processes,
        sbatch=tuple(_option_rows("sbatch", options, request)),
        srun=tuple(_option_rows("srun", own, request)),
        launch=tuple(_launch_rows(request)),
        env=(*_process_rows(request, options, environ), *_env_rows(profile, options, environ)),
        setup=tuple(_setup_rows(profile)),
        preemption=preemption_text(profile.preempt),
        warnings=(
            *_age(profile, today),
            *_refusals(request, options, step),
            *option_warnings(config, profile, ANYWHERE, environ),
            *exported_warnings(profile, environ),
        ),
        documents={name: texts for name, texts in profile.documents.items() if texts},
    )


def preemption_text(preempt: Preemption | None) -> str:
    """One sentence about how the nodes may be taken away."""
    if preempt is None:
        return "nothing is known of preemption"
    if not preempt.possible:
        return "no preemption"
    notice = (
        "notice of unknown length" if preempt.grace_s is None else f"notice {preempt.grace_s} s"
    )
    safe = f", safe for the first {preempt.protected_s} s" if preempt.protected_s else ""
    return f"preemptible, {notice}{safe}{f': {preempt.why}' if preempt.why else ''}"


def exported_warnings(profile: ClusterProfile, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Sentences about variables that the job would inherit or be given, to no good."""
    own = {**profile.env, **profile.caches}
    return variable_warnings(environ, accepted={name: part.value for name, part in own.items()})


def _age(profile: ClusterProfile, today: datetime.date) -> Iterator[str]:
    """What a site decides goes out of date within a year or so."""
    if not profile.verified_on or profile.status == "generic":
        return
    year, month = profile.verified_on.split("-")[:2]
    months = (today.year - int(year)) * 12 + today.month - int(month)
    if months > _FRESH_MONTHS:
        yield (
            f"the profile was verified {months} months ago ({profile.verified_on}): compare it "
            f"with `python -m hpcddp cluster check {profile.name}`."
        )


def _refusals(request: ResolvedRequest, *options: Mapping[str, Any]) -> Iterator[str]:
    """What `submit` would refuse, and an explanation only mentions."""
    checks = (
        lambda: check_sizes(request.config, request.profile),
        lambda: check_forbidden(request.profile, *options),
    )
    for check in checks:
        try:
            check()
        except HpcddpError as error:
            yield error.message


def _option_rows(kind: str, options: Mapping[str, Any], request: ResolvedRequest) -> Iterator[Row]:
    for name, value in options.items():
        if name not in _NOT_SHOWN and is_given(value):
            layer, why = _option_layer(kind, name, value, request)
            yield Row(f"--{name}", "" if value is True else str(value), layer, why)


def _option_layer(kind: str, name: str, value: Any, request: ResolvedRequest) -> tuple[str, str]:  # noqa: ANN401
    profile, sources = request.profile, request.resolved.sources
    setting = getattr(profile, kind).get(name)
    if setting and setting.value == value:
        return profile.origins.get((kind, name), profile.name), setting.why
    key = _FROM.get(name, name.replace("-", "_"))
    if key == "gpus_per_node" and not profile.has_gpus:
        key = "processes_per_node"
    why = _ALWAYS.get(name) or _WHY.get(name, "")
    source = sources.get(f"resources.{key}")
    if source == f"cluster {profile.name}":
        return profile.origins.get(("defaults", "resources", key), source), why
    if source is None and name in getattr(request.config.resources, kind):
        source = sources[f"resources.{kind}"]
    return source or ("hpcddp" if name in _ALWAYS else "default"), why


def _launch_rows(request: ResolvedRequest) -> Iterator[Row]:
    """What starts the processes, and the container that they run in."""
    profile, resources = request.profile, request.config.resources
    is_torchrun = profile.launch == "torchrun"
    key = "launch_program" if profile.launch_program else "launch"
    program = " ".join(profile.launch_program) or "srun"
    why = "one torchrun per node starts its processes" if is_torchrun else "one task per process"
    if profile.launcher == "local":
        key, program, why = "launcher", "python", "processes of this machine, without Slurm"
    yield Row(program, "", profile.origins.get((key,), "default"), why)
    if is_torchrun and profile.torchrun_args:
        layer = profile.origins.get(("torchrun_args",), profile.name)
        yield Row(f"torchrun {' '.join(profile.torchrun_args)}", "", layer, "words of the site's")
    if resources.container:
        runtime = profile.container.runtime
        words = " ".join(container_words(resources, profile, ANYWHERE)) or runtime
        layer = profile.origins.get(("container", "runtime"), profile.name)
        yield Row(words, "", layer, f"processes run in {resources.container}")


def _process_rows(
    request: ResolvedRequest, options: Mapping[str, Any], environ: Mapping[str, str]
) -> Iterator[Row]:
    """Variables that follow from the sizes of the job."""
    threads, per_task = threads_of_process(request.config.resources), options.get("cpus-per-task")
    settings = {"OMP_NUM_THREADS": EnvSetting(str(threads), "one thread per core of a process")}
    if not request.profile.has_gpus:
        settings["HPCDDP_DEVICE"] = EnvSetting("cpu", "the profile has no GPUs")
    if per_task and request.profile.launcher == "slurm":
        why = "steps of your own get the same cores per task"
        yield Row("SRUN_CPUS_PER_TASK", str(per_task), "hpcddp", why)
    for name, setting in settings.items():
        yield _env_row(name, setting, "hpcddp", options, environ)


def _env_rows(
    profile: ClusterProfile, options: Mapping[str, Any], environ: Mapping[str, str]
) -> Iterator[Row]:
    for section, settings in (("env", profile.env), ("caches", profile.caches)):
        for name, setting in settings.items():
            layer = profile.origins.get((section, name), profile.name)
            yield _env_row(name, setting, layer, options, environ)
    known = {*profile.env, *profile.caches}
    for name in sorted(set(environ) - known):
        if name.startswith(_NETWORK):
            yield Row(name, environ[name], "your environment", "jobs inherit it")
    for key, name, setting in profile.network:
        layer = profile.origins.get((key,), profile.name)
        yield _env_row(name, setting, layer, options, environ)


def _env_row(
    name: str,
    setting: EnvSetting,
    layer: str,
    options: Mapping[str, Any],
    environ: Mapping[str, str],
) -> Row:
    if name in environ and not setting.prepend:
        own = "(hidden)" if looks_secret(name) else environ[name]
        lacks = lacks_needed(name, setting, options, environ)
        why = f"needs --{setting.needs}" if lacks else f"wins over {setting.value} of {layer}"
        return Row(name, own, "your environment", why)
    if (rule := YIELDS_TO.get(name, "")) in environ:
        return Row(name, "(not set)", layer, f"your {rule} decides instead of {setting.value}")
    if not has_needed(setting, options):
        return Row(name, "(not set)", layer, f"needs --{setting.needs}")
    value = f"{setting.value}:..." if setting.prepend else setting.value
    return Row(name, value, layer, setting.why)


def _setup_rows(profile: ClusterProfile) -> Iterator[Row]:
    for key, where in (
        ("modules", "batch script"),
        ("setup", "batch script"),
        ("setup_node", "each node, once"),
        ("setup_task", "each process"),
    ):
        why = ""
        for line in getattr(profile, key):
            text = f"module {line}" if key == "modules" else line
            if text.lstrip().startswith("#"):
                why = text.lstrip("# ")  # of the lines below it
            else:
                yield Row(text, where, profile.origins.get((key,), profile.name), why)
