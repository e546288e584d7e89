"""YAML as people mean it. Knows no schema.

YAML 1.1 reads `30:00` as 1800 (base 60), which would turn a Slurm time into another one.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from hpcddp.errors import ConfigError

# libyaml's parser, where PyYAML was built with it, reads a file in a fifth of the time.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):
    """SafeLoader without base-60 numbers, with `1e-3` as a number; refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [name for name in names if names.count(name) > 1]:
            reason = f"key `{twice[0]}` is given twice"
            raise yaml.constructor.ConstructorError(None, None, reason, node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [
        pair
        for pair in pairs
        if pair[0] not in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
    ]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes whatever _Loader or YAML 1.1 would take for something else.

    A text of several lines is written as one line, with `\\n` in double quotes.
    """

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = '"' if len(text.splitlines()) > 1 or text.endswith("\n") else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:int", re.compile(r"^[-+]?(0|[1-9][0-9_]*)$"), list("-+0123456789")
    )
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(
            r"^[-+]?(\d[\d_]*\.\d*([eE][-+]?\d+)?|\.\d+([eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.inf)$"
        ),
        list("-+.0123456789"),
    )


def parse_yaml(text: str, where: str) -> Any:  # noqa: ANN401
    """The value of a YAML text; ConfigError names `where` and the line."""
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        said = " ".join(str(error).replace('in "<unicode string>", line', "in line").split())
        tab = ". A tab is there: indent with blanks." if _is_at_tab(error, text) else ""
        raise ConfigError(f"{where}: not valid YAML: {said}{tab}") from None


def _is_at_tab(error: yaml.YAMLError, text: str) -> bool:
    mark = getattr(error, "problem_mark", None)
    return mark is not None and text[mark.index : mark.index + 1] == "\t"


def dump_yaml(value: Any) -> str:  # noqa: ANN401
    """One line of YAML that `parse_yaml` reads back to an equal value of the same type."""
    readable = _dump(value, allow_unicode=True)
    # A few characters, such as U+0085, are line breaks to YAML and come back as blanks.
    return readable if parse_yaml(readable, "dump") == value else _dump(value, allow_unicode=False)


def _dump(value: Any, *, allow_unicode: bool) -> str:  # noqa: ANN401
    text = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=True, allow_unicode=allow_unicode, width=10**6
    )
    return text.removesuffix("...\n").strip()


def load_yaml_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; empty for an empty file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    value = parse_yaml(text, str(path))
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: found {type(value).__name__}, needed `key: value` lines.")
    return value
