"""The batch script of a run: pure text from a resolved request. Needs no Slurm and no torch."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

import hpcddp
from hpcddp.cluster.option_values import parse_time_limit
from hpcddp.cluster.options import check_options, check_text, check_value, long_name
from hpcddp.cluster.profile import ClusterProfile
from hpcddp.config.files import shipped_dir
from hpcddp.config.schema import Resources, RunConfig
from hpcddp.errors import ConfigError
from hpcddp.launch.request import processes_per_node
from hpcddp.run_dir import RunDir

# Set by hpcddp from other settings; a second value would contradict them silently.
_OWNED = {
    "array": "every element would write to the same run: use a script with one run per element",
    "chdir": "the job runs where it was submitted",
    "cpus-per-task": "use resources.cpus_per_process",
    "error": "logs lie in the run directory",
    "gpus-per-node": "use resources.gpus_per_node",
    "gpus-per-task": "use resources.gpus_per_node",
    "gpus": "use resources.gpus_per_node",
    "job-name": "use --name",
    "nodes": "use resources.nodes",
    "ntasks": "use resources.nodes and resources.gpus_per_node",
    "ntasks-per-node": "use resources.gpus_per_node or resources.processes_per_node",
    "open-mode": "logs of earlier attempts must survive a requeue",
    "output": "logs lie in the run directory",
    "signal": "use resources.warn_before_s",
    "time": "use resources.time",
    "wait": "`submit` returns at once; use --follow or `hpcddp wait`",
    "wrap": "use `-- COMMAND`",
}
_OWNED_SRUN = {"kill-on-bad-exit", "cpus-per-task", "output", "error", "open-mode", "export"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job runs: facts of the submitting process that end up in the script."""

    run_dir: RunDir
    python: str
    work_dir: Path


def render_script(config: RunConfig, profile: ClusterProfile, place: Place) -> str:
    """The whole text of job.sbatch. Raises HpcddpError for options Slurm would refuse."""
    for path in (place.run_dir.path, place.work_dir, Path(place.python)):
        check_text(str(path), "path")
    processes = processes_per_node(config, profile)
    directives = sbatch_options(config.resources, profile, place, processes)
    check_options(directives)
    template = _environment().get_template("job.sbatch.j2")
    return template.render(
        directives=[_option(key, value) for key, value in directives.items()],
        version=hpcddp.__version__,
        run_name=place.run_dir.name,
        profile=profile,
        run_dir=str(place.run_dir.path),
        work_dir=str(place.work_dir),
        python=place.python,
        cpus_per_process=config.resources.cpus_per_process or 1,
        launch_line=_launch_line(config.resources, profile, processes),
    )


def option_warnings(config: RunConfig, profile: ClusterProfile, place: Place) -> tuple[str, ...]:
    """What Slurm would accept in silence and a user would regret."""
    processes = processes_per_node(config, profile)
    return check_options(sbatch_options(config.resources, profile, place, processes))


def sbatch_options(
    resources: Resources, profile: ClusterProfile, place: Place, processes: int
) -> dict[str, Any]:
    """Every sbatch option of the job in the order of the script; True means a bare flag."""
    wanted = {
        "job-name": place.run_dir.name,
        "nodes": resources.nodes,
        "ntasks-per-node": processes,
        "cpus-per-task": resources.cpus_per_process,
        **_gpu_option(profile, processes),
        "time": _time_limit(resources),
        "partition": resources.partition,
        "account": resources.account,
        "qos": resources.qos,
        "constraint": resources.constraint,
        "reservation": resources.reservation,
        "mem": resources.mem,
        "mem-per-cpu": resources.mem_per_cpu,
        "mem-per-gpu": resources.mem_per_gpu,
        "signal": f"USR2@{resources.warn_before_s}",
        "requeue": True,
        "open-mode": "append",
        "chdir": str(place.work_dir),
        "output": str(place.run_dir.batch_log),
    }
    extra = {long_name(key): value for key, value in resources.sbatch.items()}
    _check_extra("resources.sbatch", extra, {**_OWNED, **_named_settings(wanted)})
    options = wanted | extra | ({"requeue": None} if extra.get("no-requeue") else {})
    return {key: value for key, value in options.items() if value not in (None, False)}


def _gpu_option(profile: ClusterProfile, processes: int) -> dict[str, Any]:
    if not profile.has_gpus:
        return {}
    return {profile.gpu_request: f"gpu:{processes}" if profile.gpu_request == "gres" else processes}


def _time_limit(resources: Resources) -> str | None:
    """The time limit as typed, once it is known to leave room for the warning."""
    if resources.time is None:
        return None
    limit_s = parse_time_limit(resources.time) * 60
    if limit_s <= resources.warn_before_s:
        raise ConfigError(
            f"resources.time={resources.time} is {limit_s} s, and the warning comes "
            f"resources.warn_before_s={resources.warn_before_s} s before its end: nothing would be "
            "trained. Ask for more time or a shorter warning."
        )
    return resources.time


def _named_settings(wanted: Mapping[str, Any]) -> dict[str, str]:
    return {
        key: f"use resources.{key.replace('-', '_')}"
        for key in wanted
        if hasattr(Resources, key.replace("-", "_"))
    }


def _check_extra(section: str, extra: Mapping[str, Any], owned: Mapping[str, str]) -> None:
    """Refuse what hpcddp sets itself and what cannot be an option."""
    for key, value in extra.items():
        if key in owned:
            raise ConfigError(f"{section}.{key} is set by hpcddp: {owned[key]}.", "conflict")
        if not re.fullmatch("[A-Za-z][A-Za-z0-9-]*", key):
            raise ConfigError(f"{section}: `{key}` is no name of an option, such as `mail-type`.")
        if isinstance(value, Mapping | list):
            raise ConfigError(f"{section}.{key} needs one value, found {value}. Quote it as text.")


def _launch_line(resources: Resources, profile: ClusterProfile, processes: int) -> str:
    command = '"$python" -u -m hpcddp run --run-dir "$run_dir"'
    if profile.launcher == "local":
        return (
            f'"$python" -u -m hpcddp.launch.local_step --nodes {resources.nodes} '
            f'--processes-per-node {processes} --logs "$logs" -- \\\n  {command}'
        )
    extra = {long_name(key): value for key, value in resources.srun.items()}
    owned = dict.fromkeys(_OWNED_SRUN, "it follows from the resources")
    _check_extra("resources.srun", extra, owned)
    options = {
        "kill-on-bad-exit": 1,
        "export": "ALL",
        "cpus-per-task": resources.cpus_per_process or 1,
        **extra,
    }
    words = " ".join(_option(key, value) for key, value in options.items())
    logs = '--output="$logs/rank-%4t.log" --open-mode=append'
    return f"srun {words} \\\n  {logs} \\\n  {command}"


def _option(key: str, value: Any) -> str:  # noqa: ANN401
    if value is True:
        return f"--{key}"
    check_value(str(value), key)
    return f"--{key}={shlex.quote(str(value))}"


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(shipped_dir("slurm")),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # shell, not HTML
    )
    environment.filters["sh"] = shlex.quote
    environment.filters["comment"] = lambda text: " ".join(str(text).split())
    return environment
