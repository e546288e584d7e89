"""A strict frozen dataclass from the mapping of a YAML file. Knows no particular schema."""

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any

from hpcddp.config.files import did_you_mean
from hpcddp.errors import ConfigError

_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def build(kind: Any, value: Any, where: str) -> Any:  # noqa: ANN401
    """`value` as an instance of the annotation `kind`; `where` names the place in messages.

    Understands dataclasses, str, int, float, bool, Literal, `X | None`, tuple[X, ...] and
    Mapping[str, X]. Raises ConfigError: unknown or missing keys, wrong types.
    """
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return _build_section(kind, value, where)
    if origin in (types.UnionType, typing.Union):
        return _build_optional(kind, value, where)
    if origin is typing.Literal:
        return _build_choice(typing.get_args(kind), value, where)
    if origin is tuple:
        return _build_list(typing.get_args(kind)[0], value, where)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _build_mapping(typing.get_args(kind)[1], value, where)
    return value if kind is Any else _build_plain(kind, value, where)


def _build_optional(kind: Any, value: Any, where: str) -> Any:  # noqa: ANN401
    kinds = [part for part in typing.get_args(kind) if part is not type(None)]
    if value is None:
        return None
    exact = next((part for part in kinds if isinstance(part, type) and type(value) is part), None)
    return build(exact or kinds[0], value, where)


def _build_choice(allowed: tuple[Any, ...], value: Any, where: str) -> Any:  # noqa: ANN401
    if value not in allowed:
        raise ConfigError(f"{where}={value}: use one of {', '.join(map(str, allowed))}.")
    return value


def _build_list(kind: Any, value: Any, where: str) -> tuple[Any, ...]:  # noqa: ANN401
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{where} needs a list, found {value!r}: [a, b]")
    return tuple(build(kind, part, f"{where}[{index}]") for index, part in enumerate(value))


def _build_mapping(kind: Any, value: Any, where: str) -> dict[str, Any]:  # noqa: ANN401
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} needs `key: value` lines, found {value!r}.")
    return {str(key): build(kind, part, _at(where, key)) for key, part in value.items()}


def _build_section(kind: Any, value: Any, where: str) -> Any:  # noqa: ANN401
    hints = hints_of(kind)
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} needs the keys {', '.join(hints)}; found {value!r}.")
    for key in value:
        if key not in hints:
            raise ConfigError(f"{where}: unknown key `{key}`. {did_you_mean(str(key), [*hints])}")
    needed = [f.name for f in dataclasses.fields(kind) if _is_needed(f) and f.name not in value]
    if needed:
        raise ConfigError(f"{where}: `{needed[0]}` is missing.")
    return kind(**{key: build(hints[key], part, _at(where, key)) for key, part in value.items()})


def _at(where: str, key: object) -> str:
    """`file: key`, and below that `file: key.key`."""
    return f"{where}.{key}" if ": " in where else f"{where}: {key}"


def _is_needed(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _build_plain(kind: type, value: Any, where: str) -> Any:  # noqa: ANN401
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is kind:
        return value
    if kind is str:
        raise ConfigError(f'{where} must be text; quote it: "{value}".')
    raise ConfigError(f"{where} needs {_WORDS[kind]}, found {value!r}.")


@functools.cache
def hints_of(kind: type) -> dict[str, Any]:
    """Name and type of every key of a dataclass."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}
