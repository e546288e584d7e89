"""The resolved configuration as YAML text, each value with the layer it came from."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from hpcddp.config.load import Layer, Resolved, resolve
from hpcddp.config.schema import RunConfig
from hpcddp.config.yaml_text import dump_yaml, load_yaml_mapping
from hpcddp.run_dir import RunDir


def config_text(resolved: Resolved) -> str:
    """YAML that `read_config` reads back to an equal RunConfig; comments name the sources."""
    return "\n".join(_lines(resolved.config, resolved, prefix="", indent="")) + "\n"


def read_config(run_dir: RunDir) -> RunConfig:
    """The configuration a run was submitted with; ConfigError when it is missing or damaged."""
    return resolve([Layer(str(run_dir.config), load_yaml_mapping(run_dir.config))]).config


def _lines(section: Any, resolved: Resolved, prefix: str, indent: str) -> Iterator[str]:  # noqa: ANN401
    for field in dataclasses.fields(section):
        value, key = getattr(section, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            yield f"{indent}{field.name}:"
            yield from _lines(value, resolved, f"{key}.", indent + "  ")
        else:
            source = " ".join(resolved.sources.get(key, "default").split())
            yield f"{indent}{field.name}: {_inline(value)}  # {source}"


def _inline(value: Any) -> str:  # noqa: ANN401
    plain = list(value) if isinstance(value, tuple) else value
    return dump_yaml(plain)
