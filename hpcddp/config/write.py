"""The resolved configuration as YAML text, each value with the layer it came from."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from hpcddp.config.load import Layer, Resolved, resolve
from hpcddp.config.schema import RunConfig
from hpcddp.config.yaml_text import dump_yaml, load_yaml_mapping
from hpcddp.run_dir import RunDir

_COMMENT = "  # "  # no source holds two blanks in a row


def config_text(resolved: Resolved) -> str:
    """YAML that `read_config` and `read_resolved` read back; comments name the sources."""
    return "\n".join(_lines(resolved.config, resolved, prefix="", indent="")) + "\n"


def read_config(run_dir: RunDir) -> RunConfig:
    """The configuration a run was submitted with; ConfigError when it is missing or damaged."""
    return resolve([_run_layer(run_dir)]).config


def read_resolved(run_dir: RunDir, *later: Layer) -> Resolved:
    """A run's configuration below `later` layers; its own values keep the sources they had.

    Raises ConfigError as `read_config`, and where `later` does not fit.
    """
    own = _run_layer(run_dir)
    resolved = resolve([own, *later])
    noted = _noted_sources(run_dir.config.read_text(encoding="utf-8"))
    sources = {
        key: noted.get(key, source) if source == own.name else source
        for key, source in resolved.sources.items()
    }
    return Resolved(resolved.config, sources)


def _run_layer(run_dir: RunDir) -> Layer:
    return Layer(str(run_dir.config), load_yaml_mapping(run_dir.config))


def _noted_sources(text: str) -> dict[str, str]:
    """Dotted key -> source, from the comments that `config_text` wrote."""
    sources: dict[str, str] = {}
    section = ""
    for line in text.split("\n"):
        entry, _, source = line.rpartition(_COMMENT)
        name = line.partition(":")[0]
        key = f"{section}.{name.strip()}" if name.startswith(" ") else name
        if entry:
            sources[key] = source
        elif not name.startswith(" "):
            section = name
    return sources


def _lines(section: Any, resolved: Resolved, prefix: str, indent: str) -> Iterator[str]:  # noqa: ANN401
    for field in dataclasses.fields(section):
        value, key = getattr(section, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            yield f"{indent}{field.name}:"
            yield from _lines(value, resolved, f"{key}.", indent + "  ")
        else:
            source = " ".join(resolved.sources.get(key, "default").split())
            yield f"{indent}{field.name}: {_inline(value)}{_COMMENT}{source}"


def _inline(value: Any) -> str:  # noqa: ANN401
    plain = list(value) if isinstance(value, tuple) else value
    return dump_yaml(plain)
