"""Every option and variable of a job, with the layer it is from and the reason. Sends nothing."""

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcddp.cluster.options import is_given
from hpcddp.cluster.profile import ClusterProfile
from hpcddp.cluster.profile_schema import EnvSetting, Preemption
from hpcddp.cluster.scrub import looks_secret
from hpcddp.cluster.variable_check import variable_warnings
from hpcddp.errors import HpcddpError
from hpcddp.launch.limits import check_forbidden
from hpcddp.launch.render import option_warnings, sbatch_options
from hpcddp.launch.request import ResolvedRequest, check_sizes, processes_per_node
from hpcddp.launch.step import Place, has_needed, srun_options
from hpcddp.run_dir import RunDir

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
    """The job that a request would become. `warnings` are what `submit` would say as well."""

    cluster: str
    queue: str
    node_type: str
    variants: tuple[str, ...]
    files: tuple[str, ...]
    nodes: int
    processes_per_node: int
    sbatch: tuple[Row, ...]
    srun: tuple[Row, ...]
    env: tuple[Row, ...]
    setup: tuple[Row, ...]
    preemption: str
    warnings: tuple[str, ...]


def explain(
    request: ResolvedRequest, environ: Mapping[str, str], today: datetime.date
) -> Explanation:
    """Raises HpcddpError for what could not be rendered either."""
    profile, config = request.profile, request.config
    processes = processes_per_node(config, profile)
    place = Place(RunDir(Path("RUN")), python="python", work_dir=Path("."))
    options = sbatch_options(config.resources, profile, place, processes)
    step = srun_options(config.resources, profile, processes, place)
    return Explanation(
        cluster=profile.name,
        queue=profile.queue,
        node_type=profile.node_type,
        variants=profile.variants_on,
        files=tuple(map(str, profile.files)),
        nodes=config.resources.nodes,
        processes_per_node=processes,
        sbatch=tuple(_option_rows("sbatch", options, request)),
        srun=tuple(_option_rows("srun", step, request)),
        env=tuple(_env_rows(profile, options, environ)),
        setup=tuple(_setup_rows(profile)),
        preemption=preemption_text(profile.preempt),
        warnings=(
            *_age(profile, today),
            *_refusals(request, options, step),
            *option_warnings(config, profile, place),
            *exported_warnings(profile, environ),
        ),
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
    """Sentences about exported variables that the job would inherit, to no good."""
    own = {name: setting.value for name, setting in profile.env.items()}
    return variable_warnings(environ, accepted=own)


def _age(profile: ClusterProfile, today: datetime.date) -> Iterator[str]:
    """What a site decides goes out of date within a year or so."""
    year, _, month = profile.verified_on.partition("-")
    if not year.isdigit():
        return
    months = (today.year - int(year)) * 12 + today.month - int(month[:2] or 1)
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
    why = _ALWAYS.get(name, "")
    source = sources.get(f"resources.{key}")
    if source == f"cluster {profile.name}":
        return profile.origins.get(("defaults", "resources", key), source), why
    if source is None and name in getattr(request.config.resources, kind):
        source = sources[f"resources.{kind}"]
    return source or ("hpcddp" if name in _ALWAYS else "default"), why


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
    if profile.host_suffix:
        layer = profile.origins.get(("host_suffix",), profile.name)
        yield Row("HPCDDP_HOST_SUFFIX", profile.host_suffix, layer, "names on the fast network")


def _env_row(
    name: str,
    setting: EnvSetting,
    layer: str,
    options: Mapping[str, Any],
    environ: Mapping[str, str],
) -> Row:
    if name in environ and not setting.prepend:
        own = "(hidden)" if looks_secret(name) else environ[name]
        return Row(name, own, "your environment", f"wins over {setting.value} of {layer}")
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
        for line in getattr(profile, key):
            text = f"module {line}" if key == "modules" else line
            if not text.lstrip().startswith("#"):
                yield Row(text, where, profile.origins.get((key,), profile.name))
