"""sbatch options checked together before they are sent, without Slurm. Knows no profile."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcddp.cluster.option_values import (
    HANDLED_SIGNALS,
    parse_gpus,
    parse_gres_gpus,
    parse_memory,
    parse_signal,
    parse_time_limit,
)
from hpcddp.cluster.variables import short
from hpcddp.errors import HpcddpError

Value = str | int | bool | None
_LONG_NAMES = {
    "N": "nodes", "n": "ntasks", "c": "cpus-per-task", "G": "gpus", "t": "time", "p": "partition",
    "A": "account", "q": "qos", "C": "constraint", "J": "job-name", "o": "output", "e": "error",
    "a": "array", "d": "dependency", "D": "chdir", "b": "begin", "i": "input", "k": "no-kill",
    "l": "label", "m": "distribution", "r": "relative", "s": "oversubscribe", "u": "unbuffered",
    "w": "nodelist", "x": "exclude", "B": "extra-node-info", "E": "preserve-env", "F": "nodefile",
    "H": "hold", "I": "immediate", "K": "kill-on-bad-exit", "L": "licenses", "M": "clusters",
    "O": "overcommit", "S": "core-spec", "W": "wait",
}  # fmt: skip
_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
# Pairs sbatch itself refuses (seen on 22.05.8).
_EXCLUSIVE = (
    ("cpus-per-gpu", "cpus-per-task"),
    ("ntasks-per-gpu", "ntasks-per-node"),
    ("ntasks-per-gpu", "gpus-per-task"),
)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The counts among the options; None where one is not given."""

    nodes: int | None
    ntasks: int | None
    ntasks_per_node: int | None
    gpus: int | None
    gpus_per_node: int | None
    gpus_per_task: int | None


def check_options(options: Mapping[str, Value]) -> tuple[str, ...]:
    """Sentences about legal but doubtful sbatch options; an empty tuple if all is well.

    Keys are option names without dashes in front (`ntasks-per-node`, `ntasks_per_node`, `N`);
    True is a bare flag, None and False are left out. Raises HpcddpError: `conflict` for options
    that exclude each other or cannot work, `bad_value` for values Slurm would not read.
    """
    given = {long_name(name): value for name, value in options.items() if is_given(value)}
    _check_memory(given)
    _check_exclusive(given)
    sizes = _sizes(given)
    _check_tasks(sizes)
    _check_gpus(sizes)
    return (*_check_time(given), *_idle_gpus(sizes), *_requeue_warnings(given))


def is_given(value: Value) -> bool:
    """False for None and False, an option that is left out; 0 is a value like any other."""
    return value is not None and value is not False


def long_name(name: str) -> str:
    """The long spelling of an option with or without underscores: `N` is `nodes`."""
    return _LONG_NAMES.get(name, name.replace("_", "-"))


def _check_memory(given: Mapping[str, Value]) -> None:
    names = [name for name in _MEMORY if name in given]
    for name in names:
        parse_memory(_text(given, name), name)
    if len(names) > 1:
        raise _conflict(given, names, "Slurm takes only one of them")


def _check_exclusive(given: Mapping[str, Value]) -> None:
    for pair in _EXCLUSIVE:
        if all(name in given for name in pair):
            raise _conflict(given, pair, "Slurm takes only one of them")


def _sizes(given: Mapping[str, Value]) -> _Sizes:
    by_gres = parse_gres_gpus(_text(given, "gres")) if "gres" in given else None
    per_node = _gpus(given, "gpus-per-node")
    if None not in (by_gres, per_node) and by_gres != per_node:
        raise _conflict(given, ("gres", "gpus-per-node"), "they ask for different numbers of GPUs")
    return _Sizes(
        nodes=_nodes(given),
        ntasks=_count(given, "ntasks"),
        ntasks_per_node=_count(given, "ntasks-per-node"),
        gpus=_gpus(given, "gpus"),
        gpus_per_node=by_gres if per_node is None else per_node,
        gpus_per_task=_gpus(given, "gpus-per-task"),
    )


def _check_tasks(sizes: _Sizes) -> None:
    if None in (sizes.nodes, sizes.ntasks, sizes.ntasks_per_node):
        return
    expected = sizes.nodes * sizes.ntasks_per_node
    if sizes.ntasks != expected:
        raise HpcddpError(
            f"nodes={sizes.nodes} x ntasks-per-node={sizes.ntasks_per_node} = {expected} tasks, "
            f"but ntasks={sizes.ntasks}. Leave ntasks out.",
            "conflict",
        )


def _check_gpus(sizes: _Sizes) -> None:
    ntasks = sizes.ntasks
    if ntasks is None and None not in (sizes.nodes, sizes.ntasks_per_node):
        ntasks = sizes.nodes * sizes.ntasks_per_node
    if sizes.gpus_per_task is not None:
        _check_gpus_per_task(sizes, ntasks)
    elif sizes.gpus is not None and sizes.gpus_per_node is None and sizes.nodes != 1:
        raise HpcddpError(
            f"gpus={sizes.gpus} counts GPUs of the whole job: Slurm spreads tasks and GPUs over "
            "the nodes independently (for example 5,1 tasks next to 4,2 GPUs). Use gpus-per-node "
            "and ntasks-per-node.",
            "conflict",
        )
    if None not in (sizes.gpus, sizes.gpus_per_node, sizes.nodes):
        _need_equal("gpus", sizes.gpus, "nodes x gpus-per-node", sizes.nodes * sizes.gpus_per_node)
    tasks_here = ntasks if sizes.nodes == 1 else sizes.ntasks_per_node
    gpus_here = sizes.gpus if sizes.nodes == 1 and sizes.gpus else sizes.gpus_per_node
    if None not in (tasks_here, gpus_here) and tasks_here > gpus_here > 0:
        raise HpcddpError(
            f"{tasks_here} tasks on a node with {gpus_here} GPUs: each process needs its own GPU. "
            "Make ntasks-per-node and gpus-per-node equal.",
            "conflict",
        )


def _check_gpus_per_task(sizes: _Sizes, ntasks: int | None) -> None:
    if ntasks is None:
        if sizes.gpus is None and sizes.nodes is None:
            raise HpcddpError(
                f"gpus-per-task={sizes.gpus_per_task} needs a number of tasks: add nodes and "
                "ntasks-per-node.",
                "conflict",
            )
        return
    if sizes.gpus is not None:
        _need_equal("gpus", sizes.gpus, "ntasks x gpus-per-task", ntasks * sizes.gpus_per_task)


def _need_equal(name: str, value: int, rule: str, expected: int) -> None:
    if value != expected:
        raise HpcddpError(f"{name}={value}, but {rule} = {expected}. Leave {name} out.", "conflict")


def _check_time(given: Mapping[str, Value]) -> list[str]:
    minutes = parse_time_limit(_text(given, "time")) if "time" in given else None
    if "signal" not in given:
        return []
    signal = parse_signal(_text(given, "signal"))
    if minutes is not None and signal.lead_s >= minutes * 60:
        raise HpcddpError(
            f"signal={given['signal']} comes {signal.lead_s} s before the end, but time="
            f"{given['time']} is only {minutes * 60} s: the job would be told to stop at once. "
            "Ask for more time or a shorter lead.",
            "conflict",
        )
    if signal.name not in HANDLED_SIGNALS:
        return [
            f"signal={given['signal']}: hpcddp saves and stops on {', '.join(HANDLED_SIGNALS)}; "
            f"{signal.name} is not for it. Use USR2@{signal.lead_s}."
        ]
    return []


def _idle_gpus(sizes: _Sizes) -> list[str]:
    tasks, gpus = sizes.ntasks_per_node, sizes.gpus_per_node
    if tasks is None or gpus is None or tasks >= gpus or sizes.gpus_per_task:
        return []
    return [
        f"ntasks-per-node={tasks} leaves {gpus - tasks} of {gpus} GPUs per node idle. "
        f"Use ntasks-per-node={gpus}."
    ]


def _requeue_warnings(given: Mapping[str, Value]) -> list[str]:
    sentences = []
    if "no-requeue" in given:
        sentences.append("no-requeue: a preempted job ends for good instead of going on later.")
    if given.get("open-mode") == "truncate":
        sentences.append("open-mode=truncate: a requeue overwrites the log. Use append.")
    if "export" in given and not re.match(r"(?i)all\b", _text(given, "export")):
        sentences.append(
            f"export={given['export']}: the processes see no other variable of yours, not even "
            "PATH. Use export=ALL."
        )
    return sentences


def _nodes(given: Mapping[str, Value]) -> int | None:
    """The number of nodes, or None if it is open (`2-4`)."""
    if re.fullmatch(r"[0-9]{1,9}-[0-9]{1,9}", str(given.get("nodes"))):
        return None
    return _count(given, "nodes")


def _count(given: Mapping[str, Value], name: str) -> int | None:
    if name not in given:
        return None
    text = _text(given, name)
    if not re.fullmatch(r"0*[1-9][0-9]{0,8}", text):
        raise HpcddpError(f"{name}={short(text)!r} is no number of at least 1.")
    return int(text)


def _gpus(given: Mapping[str, Value], name: str) -> int | None:
    return parse_gpus(_text(given, name), name) if name in given else None


def _text(given: Mapping[str, Value], name: str) -> str:
    if given[name] is True:
        raise HpcddpError(f"{name} needs a value, for example `{name}: 1`.")
    return str(given[name])


def _conflict(given: Mapping[str, Value], names: Sequence[str], why: str) -> HpcddpError:
    pairs = " and ".join(f"{name}={given[name]}" for name in names)
    return HpcddpError(f"{pairs}: {why}. Leave one out.", "conflict")


def check_text(text: str, what: str, *, by_slurm: bool = True) -> None:
    """Refuse control characters and, in what Slurm reads, `%` (it puts the user, job id ... there)
    and backslash.

    Everything else is quoted and works: blanks, quotes, `$`, `;`, brackets, non-ASCII. Raises
    HpcddpError `unsafe_path`.
    """
    rewritten = "%\\" if by_slurm else ""
    bad = next((char for char in text if char in rewritten or _is_control(char)), None)
    if bad is None:
        return
    reason = "Slurm replaces it" if bad == "%" else "it does not survive the batch script"
    raise HpcddpError(
        f"{what} {text!r} contains {bad!r}: {reason}, and the job would end without a log. Choose "
        "a name without %, backslashes, line breaks and other control characters.",
        "unsafe_path",
    )


def check_value(text: str, option: str) -> None:
    """Refuse a value that is empty or that sbatch would read as another. Raises HpcddpError."""
    if not text:
        raise HpcddpError(f"{option} is empty. Leave it out, or give it a value.")
    bad = next((char for char in text if char == "\\" or _is_control(char)), None)
    if bad is not None:
        raise HpcddpError(
            f"{option}={text!r} contains {bad!r}, which does not survive sbatch (22.05 drops a "
            "backslash even between quotes). Choose a value without it."
        )


def _is_control(char: str) -> bool:
    """Also true for half a character: bytes of the command line that are not UTF-8."""
    return ord(char) < 32 or ord(char) == 127 or 0xD800 <= ord(char) <= 0xDFFF
