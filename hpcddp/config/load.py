"""Merge layers of settings into one RunConfig and remember which layer each value came from.

Later layers win. Knows the schema and OmegaConf; knows no cluster and no file names.
"""

import dataclasses
import functools
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hpcddp.config import schema
from hpcddp.config.build import hints_of
from hpcddp.config.files import did_you_mean
from hpcddp.config.schema import RunConfig
from hpcddp.config.yaml_text import dump_yaml, load_yaml_mapping, parse_yaml
from hpcddp.errors import ConfigError

# Read at submission; Slurm's own input variables keep their meaning, below the command line.
ENVIRONMENT_KEYS = {
    "SBATCH_ACCOUNT": "resources.account",
    "SBATCH_PARTITION": "resources.partition",
    "SBATCH_QOS": "resources.qos",
    "SBATCH_CONSTRAINT": "resources.constraint",
    "SBATCH_RESERVATION": "resources.reservation",
    "SBATCH_TIMELIMIT": "resources.time",
    "HPCDDP_DATA_ROOT": "data.root",
    "HPCDDP_PROJECT": "resources.project",
}


_NEEDED: Mapping[object, str] = {
    float: "a number such as 0.1",
    int: "a whole number such as 2",
    bool: "true or false",
    str: "text",
}


@dataclass(frozen=True, slots=True)
class Layer:
    """Settings from one place; `name` is what messages and config.yaml call it."""

    name: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Resolved:
    """The merged configuration; `sources` maps every dotted key that was set to its layer."""

    config: RunConfig
    sources: Mapping[str, str]


def resolve(layers: Sequence[Layer]) -> Resolved:
    """Merge `layers` over the schema's defaults, the last one winning.

    Raises ConfigError for an unknown key (with the nearest known one), a value of the wrong type
    or out of range, each with the layer it came from.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer in layers:
        for key, value in _leaves(layer.values, RunConfig, layer.name):
            _refuse_misread_text(key, value, layer.name)
            _put(values, key, _literal(value, key, layer.name))
            sources[key] = layer.name
    config = _to_config(values, sources)
    _check(config, sources)
    return Resolved(config, sources)


def file_layer(path: Path) -> Layer:
    """The layer of one YAML file."""
    return Layer(str(path), load_yaml_mapping(path))


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """The documented variables of ENVIRONMENT_KEYS that are set."""
    values: dict[str, Any] = {}
    for variable, key in ENVIRONMENT_KEYS.items():
        if environ.get(variable):
            _put(values, key, environ[variable])
    return Layer("environment", values)


def command_line_layer(overrides: Sequence[str]) -> Layer:
    """Layer of `key=value` words; values are YAML, so `null`, numbers and lists work."""
    values: dict[str, Any] = {}
    for word in overrides:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ConfigError(
                f"`{word}` is not key=value. A job file is given before the overrides; your own "
                "command comes after `--`."
            )
        if not text:
            raise ConfigError(f"`{word}` gives no value. Type `{key}=null` to unset it.")
        takes_text = type_at(key) in (str, str | None)
        raw = takes_text and text not in ("null", "~")
        _put(values, key, text if raw else parse_yaml(text, f"command line: {word}"))
    return Layer("command line", values)


def type_at(key: str) -> Any:  # noqa: ANN401
    """The annotated type of a dotted key of RunConfig, or None if there is no such key."""
    current: Any = RunConfig
    for part in key.split("."):
        if not dataclasses.is_dataclass(current):
            return None
        current = hints_of(current).get(part)
    return current


def _put(values: dict[str, Any], key: str, value: Any) -> None:  # noqa: ANN401
    """Set a dotted key; a mapping (resources.sbatch) is merged into what is there."""
    *parents, last = key.split(".")
    for part in parents:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise ConfigError(f"`{key}` is set below `{part}`, which already has a value.")
    known = values.get(last)
    merges = isinstance(value, Mapping) and isinstance(known, dict)
    values[last] = {**known, **value} if merges else value


def _leaves(
    values: Mapping[str, Any],
    section: Any,  # noqa: ANN401
    layer: str,
    prefix: str = "",
) -> Iterator[tuple[str, Any]]:
    """Dotted key and value of every leaf; a section is a dataclass, everything else is a leaf."""
    hints = hints_of(section)
    for name, value in values.items():
        key = f"{prefix}{name}"
        if name not in hints:
            meant = " or ".join(f"`{known}`" for known in _namesakes(name))
            near = did_you_mean(key, [prefix + known for known in hints])
            hint = f"Did you mean {meant}?" if meant else near
            raise ConfigError(f"{layer}: unknown key `{key}`. {hint}")
        if not dataclasses.is_dataclass(hints[name]):
            yield key, value
        elif isinstance(value, Mapping):
            yield from _leaves(value, hints[name], layer, f"{key}.")
        elif value is not None:
            raise ConfigError(f"{layer}: `{key}` is a section; set one of its keys.")


def _namesakes(name: str, section: Any = RunConfig, prefix: str = "") -> list[str]:  # noqa: ANN401
    """Dotted keys of any section that end in this name: who types `train.lr` means `optim.lr`, and
    who types `log_every_steps` means `log.every_steps`.
    """
    found = []
    for known, hint in hints_of(section).items():
        if name in (known, (prefix + known).replace(".", "_")):
            found.append(prefix + known)
        if dataclasses.is_dataclass(hint):
            found += _namesakes(name, hint, f"{prefix}{known}.")
    return found


def _refuse_misread_text(key: str, value: Any, layer: str) -> None:  # noqa: ANN401
    """YAML turns `no` and `1e3` into other things than the text that was meant."""
    is_list = type_at(key) == tuple[str, ...]
    if is_list and not isinstance(value, list):
        raise ConfigError(f"{layer}: {key} needs a list of words, found {value!r}: {key}: [a, b]")
    texts = value if is_list else [value] if type_at(key) in (str, str | None) else []
    for text in texts:
        if isinstance(text, bool | float):
            raise ConfigError(f'{layer}: {key} needs text, found {text}. Quote it: "..."')


def _literal(value: Any, key: str, layer: str) -> Any:  # noqa: ANN401
    """The value with `${...}` as the text it is: OmegaConf would look it up and put it in.

    A program's own words are full of it (`bash -c 'echo ${RANK}'`).
    """
    if value == "???":  # OmegaConf's word for "not set"
        raise ConfigError(f"{layer}: {key} is `???`, which stands for a value to fill in. Do that.")
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    if isinstance(value, Mapping):
        return {name: _literal(part, f"{key}.{name}", layer) for name, part in value.items()}
    if isinstance(value, list):
        return [_literal(part, key, layer) for part in value]
    return value


@functools.cache
def _schema() -> DictConfig:
    """RunConfig as OmegaConf sees it; `merge` copies it, and making it takes longer than that."""
    return OmegaConf.structured(RunConfig)


def _to_config(values: Mapping[str, Any], sources: Mapping[str, str]) -> RunConfig:
    try:
        plain = OmegaConf.to_object(OmegaConf.merge(_schema(), values))
    except OmegaConfBaseException as error:
        key = error.full_key
        reason = _needed_at(key, values) or f": {str(error).splitlines()[0]}"
        raise ConfigError(f"{sources.get(key, 'configuration')}: {key}{reason}") from None
    return dataclasses.replace(plain, command=tuple(plain.command))


def _needed_at(key: str, values: Mapping[str, Any]) -> str:
    """What a key needs and what was found there, "" where its type is none of the plain ones."""
    kind = type_at(key)
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    needed = [_NEEDED[each] for each in kinds if each in _NEEDED]
    if not needed:
        return ""
    found: Any = values
    for part in key.split("."):
        found = found[part]
    return f" needs {needed[0]}, found {dump_yaml(found)}."


def _check(config: RunConfig, sources: Mapping[str, str]) -> None:
    try:
        schema.check(config)
    except ConfigError as error:
        key = error.message.split("=")[0]
        where = f" (set by {sources[key]})" if key in sources else ""
        raise ConfigError(f"{error.message}{where}") from None
