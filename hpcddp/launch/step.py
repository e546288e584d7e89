"""The lines of the batch script that start the processes. Pure text; knows no Slurm directive.

One srun task per process, or one torchrun per node; in a container or not; with what every
process does first.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from hpcddp.cluster.options import check_value, is_given, long_name
from hpcddp.cluster.profile import ClusterProfile
from hpcddp.cluster.profile_schema import EnvSetting
from hpcddp.config.schema import Resources
from hpcddp.errors import ConfigError
from hpcddp.launch.container import (
    ShellWord,
    container_srun,
    container_words,
    is_entered_by_srun,
    shell_word,
)
from hpcddp.launch.place import Place
from hpcddp.launch.sizes import cpus_of_process, gpus_per_process

# Set by hpcddp, or inherited from the job: a step of another shape would be another world size.
_OWNED = (
    "kill-on-bad-exit", "cpus-per-task", "output", "error", "open-mode", "export", "nodes",
    "ntasks", "ntasks-per-node", "ntasks-per-gpu", "nodelist", "nodefile", "exclude", "relative",
    "multi-prog", "het-group",
)  # fmt: skip
# A rule of the user's for the network wins over the names that a profile gives outright.
YIELDS_TO = {
    "GLOO_SOCKET_IFNAME": "HPCDDP_INTERFACE",
    "NCCL_SOCKET_IFNAME": "HPCDDP_INTERFACE",
    "NCCL_IB_HCA": "HPCDDP_HCA",
}
_IN_PROCESS = 'bash -c "$in_every_process" process'


def launch_line(resources: Resources, profile: ClusterProfile, processes: int, place: Place) -> str:
    """The command, over several lines, whose exit code is the attempt's."""
    if profile.launcher == "local":
        return (
            f'"$python" -u -m hpcddp.launch.local_step --nodes {resources.nodes} '
            f'--processes-per-node {processes} --logs "$logs" -- \\\n'
            f'  "$python" -u -m hpcddp run --run-dir "$run_dir"'
        )
    command = _process_command(resources, profile, processes, place)
    if profile.launch_program:
        step = f"{shlex.join(profile.launch_program)} \\\n  {command}"
    else:
        log = "node-%4n" if profile.launch == "torchrun" else "rank-%4t"
        words = options_text(srun_options(resources, profile, processes, place))
        step = f'srun {words} \\\n  --output="$logs/{log}.log" --open-mode=append \\\n  {command}'
    if not profile.setup_node:
        return step
    cpus = cpus_of_process(resources, processes) * processes
    once = (
        f"srun --nodes={resources.nodes} --ntasks={resources.nodes} --ntasks-per-node=1 "
        f"--cpus-per-task={cpus}"
    )
    return f'{once} bash -c "$on_every_node" node &&\n{step}'


def srun_options(
    resources: Resources, profile: ClusterProfile, processes: int, place: Place
) -> dict[str, Any]:
    """The options of srun in the order of the script; None is one that was taken out."""
    extra = _further_options(resources, profile, processes)
    check_extra(
        "resources.srun", extra, dict.fromkeys(_OWNED, "it follows from the resources of the job")
    )
    cpus = cpus_of_process(resources, processes)
    per_node = {"ntasks-per-node": 1} if profile.launch == "torchrun" else {}
    return {
        "kill-on-bad-exit": 1,
        "export": "ALL",
        **per_node,
        "cpus-per-task": cpus * processes if profile.launch == "torchrun" else cpus,
        **container_srun(resources, profile, place),
        **extra,
    }


def _further_options(
    resources: Resources, profile: ClusterProfile, processes: int
) -> dict[str, Any]:
    """The user's and the profile's options, without those of the profile that are meant for tasks
    with one GPU each where a task has more.
    """
    extra = {long_name(key): value for key, value in resources.srun.items()}
    if profile.launch != "torchrun" and gpus_per_process(resources, processes) == 1:
        return extra
    unfit = {name: part.value for name, part in profile.srun.items() if part.one_gpu}
    return {key: value for key, value in extra.items() if unfit.get(key) != value}


def task_lines(resources: Resources, profile: ClusterProfile) -> tuple[str, ...]:
    """What every process does before python, on its node; empty where there is nothing to do."""
    inside = is_entered_by_srun(resources, profile)
    own = {key: one for key, one in profile.env.items() if _is_of_process(one, inside=inside)}
    return (
        *(line for pair in own.items() for line in _lines(*pair)),
        *(line for pair in profile.caches.items() for line in _cache(*pair)),
        *profile.setup_task,
    )


def batch_env(resources: Resources, profile: ClusterProfile) -> Iterator[tuple[str, str]]:
    """Reason and shell line of every variable that is set in the batch script, and not by each
    process. Rules for the network come last, so that one which is there before them is the user's.
    """
    inside = is_entered_by_srun(resources, profile)
    for name, setting in profile.env.items():
        if not _is_of_process(setting, inside=inside):
            yield setting.why, export_line(name, setting)
    for _, name, setting in profile.network:
        yield setting.why, export_line(name, setting)


def has_needed(setting: EnvSetting, options: Mapping[str, Any]) -> bool:
    """False where the setting needs an sbatch option (`network=...`) that is not among these. One
    that names several things, with commas between them, may name more than it needs.
    """
    name, _, value = setting.needs.partition("=")
    return not setting.needs or set(value.split(",")) <= set(str(options.get(name)).split(","))


def lacks_needed(
    name: str, setting: EnvSetting, options: Mapping[str, Any], environ: Mapping[str, str]
) -> bool:
    """True where the setting, or what was exported to the same value, is without the option that it
    needs. Another value of the user's may need none.
    """
    is_same = environ.get(name, setting.value) == setting.value
    return is_same and not has_needed(setting, options)


def export_line(name: str, setting: EnvSetting) -> str:
    """Shell that sets the variable unless its user has; `prepend` puts it in front.

    Raises ConfigError for a value in which the shell would run or quote something.
    """
    value = shell_word(name, setting.value)
    if setting.prepend:
        return f'export {name}={value}"${{{name}:+:${name}}}"'
    rule = f"${{{YIELDS_TO[name]}+set}}" if name in YIELDS_TO else ""
    return f'[ -n "${{{name}+set}}{rule}" ] || export {name}={value}'


def _is_of_process(setting: EnvSetting, *, inside: bool) -> bool:
    """True for what each node fills in, and for what goes in front of the value that an image has,
    where the shell of the process is `inside` it.
    """
    return "$" in setting.value or (setting.prepend and inside)


def _lines(name: str, setting: EnvSetting) -> Iterator[str]:
    yield f"# {' '.join(setting.why.split())}"
    yield export_line(name, setting)


def _cache(name: str, setting: EnvSetting) -> Iterator[str]:
    yield from _lines(name, setting)
    yield f'mkdir -p "${name}"'


def _process_command(
    resources: Resources, profile: ClusterProfile, processes: int, place: Place
) -> str:
    python = shlex.quote(profile.container.python) if resources.container else '"$python"'
    what = '-u -m hpcddp run --run-dir "$run_dir"'
    if profile.launch == "torchrun":
        rank = f"--node-rank-variable {profile.node_rank_variable} "
        further = "".join(f"--torchrun-arg={shlex.quote(word)} " for word in profile.torchrun_args)
        what = (
            f"-u -m hpcddp.launch.torchrun_node --processes-per-node {processes} "
            f"{rank if profile.node_rank_variable else ''}{further}"
            f'--logs "$logs" --run-dir "$run_dir"'
        )
    words = [_IN_PROCESS] if task_lines(resources, profile) else []
    return " \\\n  ".join([*words, *container_words(resources, profile, place), f"{python} {what}"])


def check_extra(section: str, extra: Mapping[str, Any], owned: Mapping[str, str]) -> None:
    """Refuse what hpcddp sets itself and what cannot be an option. Raises ConfigError."""
    for key, value in extra.items():
        if key in owned:
            raise ConfigError(f"{section}.{key} is set by hpcddp: {owned[key]}.", "conflict")
        if not re.fullmatch("[A-Za-z][A-Za-z0-9-]+", key):
            raise ConfigError(
                f"{section}: `{key}` is no long name of an option, such as `mail-type`. Write that."
            )
        if isinstance(value, Mapping | list):
            raise ConfigError(f"{section}.{key} needs one value, found {value}. Quote it as text.")


def options_text(options: Mapping[str, Any]) -> str:
    """Options as words of one line."""
    return " ".join(option_word(key, value) for key, value in options.items() if is_given(value))


def option_word(key: str, value: Any) -> str:  # noqa: ANN401
    """`--key=value`, quoted for the shell and for sbatch, or a bare `--key`."""
    if value is True:
        return f"--{key}"
    check_value(str(value), key)
    return f"--{key}={value if isinstance(value, ShellWord) else shlex.quote(str(value))}"
