"""The batch script of a run: pure text from a resolved request. Needs no Slurm and no torch."""

import dataclasses
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hpcddp
from hpcddp.cluster.option_values import parse_time_limit
from hpcddp.cluster.options import check_options, check_text, is_given, long_name
from hpcddp.cluster.profile import ClusterProfile
from hpcddp.config.files import shipped_dir
from hpcddp.config.schema import Resources, RunConfig
from hpcddp.errors import ConfigError
from hpcddp.launch.container import KEPT_BEGINNINGS, container_sbatch, kept_names
from hpcddp.launch.limits import check_forbidden, limit_warnings
from hpcddp.launch.place import Place
from hpcddp.launch.request import processes_per_node
from hpcddp.launch.sizes import cpus_of_process, gpus_per_process, threads_of_process
from hpcddp.launch.step import (
    batch_env,
    check_extra,
    has_needed,
    lacks_needed,
    launch_line,
    option_word,
    srun_options,
    task_lines,
)

if TYPE_CHECKING:
    import jinja2

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


def render_script(config: RunConfig, profile: ClusterProfile, place: Place) -> str:
    """The whole text of job.sbatch. Raises HpcddpError for options Slurm would refuse."""
    by_slurm = profile.launcher == "slurm"
    for path in (place.run_dir.path, place.work_dir, Path(place.python)):
        check_text(str(path), "path", by_slurm=by_slurm)
    resources, processes = config.resources, processes_per_node(config, profile)
    directives = sbatch_options(resources, profile, place, processes)
    check_options(_per_gpu(directives, resources, profile, processes))
    if by_slurm:
        check_forbidden(profile, directives, srun_options(resources, profile, processes, place))
    needed = {name: one for name, one in profile.env.items() if has_needed(one, directives)}
    profile = dataclasses.replace(profile, env=needed)
    return load_template("job.sbatch.j2").render(
        directives=[option_word(*option) for option in directives.items()] if by_slurm else [],
        version=hpcddp.__version__,
        run_name=place.run_dir.name,
        profile=profile,
        run_dir=str(place.run_dir.path),
        work_dir=str(place.work_dir),
        python=place.python,
        threads=threads_of_process(resources),
        cpus_per_task=directives.get("cpus-per-task") if profile.launcher == "slurm" else None,
        env=tuple(batch_env(resources, profile)),
        task_lines=task_lines(resources, profile),
        kept_names=kept_names(resources, profile),
        kept_beginnings=KEPT_BEGINNINGS,
        launch_line=launch_line(resources, profile, processes, place),
    )


def option_warnings(
    config: RunConfig,
    profile: ClusterProfile,
    place: Place,
    environ: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """What Slurm would accept in silence and a user would regret; jobs inherit `environ`."""
    processes = processes_per_node(config, profile)
    options = sbatch_options(config.resources, profile, place, processes)
    said = check_options(_per_gpu(options, config.resources, profile, processes))
    alone = _without_needed(profile, options, environ or {})
    return (*said, *limit_warnings(config.resources, profile, processes), *alone)


def _without_needed(
    profile: ClusterProfile, options: Mapping[str, Any], environ: Mapping[str, str]
) -> Iterator[str]:
    """Variables without the option that they need."""
    for name, setting in profile.env.items():
        if lacks_needed(name, setting, options, environ):
            state = "is exported, but needs" if name in environ else "is not set: it needs"
            yield f"{name}={setting.value} {state} --{setting.needs}, which is not asked for."


def _per_gpu(
    options: Mapping[str, Any], resources: Resources, profile: ClusterProfile, processes: int
) -> dict[str, Any]:
    """The options as if each GPU had its task, where torchrun or one process has several."""
    driven = gpus_per_process(resources, processes)
    if profile.launch != "torchrun" and driven == 1:
        return dict(options)
    return {**options, "ntasks-per-node": processes * driven}


def sbatch_options(
    resources: Resources, profile: ClusterProfile, place: Place, processes: int
) -> dict[str, Any]:
    """Every sbatch option of the job in the order of the script; True means a bare flag."""
    wanted = {
        "job-name": place.run_dir.name,
        "nodes": resources.nodes,
        **_task_options(resources, profile, processes),
        **_gpu_option(resources, profile, processes),
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
        **container_sbatch(resources, profile),
    }
    extra = {long_name(key): value for key, value in resources.sbatch.items()}
    check_extra("resources.sbatch", extra, {**_OWNED, **_named_settings(wanted)})
    options = wanted | extra | ({"requeue": None} if extra.get("no-requeue") else {})
    return {key: value for key, value in options.items() if is_given(value)}


def _task_options(resources: Resources, profile: ClusterProfile, processes: int) -> dict[str, Any]:
    cpus = cpus_of_process(resources, processes)
    if profile.launch == "torchrun":
        return {"ntasks-per-node": 1, "cpus-per-task": cpus * processes}
    given = resources.cpus_per_process is not None
    return {"ntasks-per-node": processes, "cpus-per-task": cpus if given else None}


def _gpu_option(resources: Resources, profile: ClusterProfile, processes: int) -> dict[str, Any]:
    request, kind = profile.gpu_request, resources.gpu_type
    if kind and not re.fullmatch(r"[\w.-]+", kind):
        raise ConfigError(f"resources.gpu_type={kind}: the type alone, such as l40s; no number.")
    if request in ("none", "implied"):
        if kind:
            raise ConfigError(
                f"resources.gpu_type={kind}, but {profile.name} is not asked for GPUs. Leave it "
                "out, and choose by resources.queue."
            )
        return {}
    tasks = 1 if profile.launch == "torchrun" else processes
    gpus = processes * gpus_per_process(resources, processes)
    counts = {"gpus": gpus * resources.nodes, "gpus-per-task": gpus // tasks}
    count = counts.get(request, gpus)
    if request == "gres":
        return {request: f"gpu:{kind}:{count}" if kind else f"gpu:{count}"}
    return {request: f"{kind}:{count}" if kind else count}


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


def load_template(name: str) -> "jinja2.Template":
    """A template of the shipped folder `slurm`, with the filters `sh` and `comment`."""
    import jinja2  # 60 ms that only a rendered script is worth

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
    return environment.get_template(name)
