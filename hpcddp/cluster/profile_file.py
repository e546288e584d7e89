"""Files of configs/clusters: strict reading, inheritance, and which file each value is from.

Knows no situation: queues, kinds of nodes and variants stay apart (`hpcddp.cluster.profile`).
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_origin

from hpcddp.cluster.profile_schema import Container, ProfileFile
from hpcddp.cluster.scrub import looks_secret
from hpcddp.config.build import build, hints_of
from hpcddp.config.files import did_you_mean, find_config, list_configs
from hpcddp.config.yaml_text import load_yaml_mapping
from hpcddp.errors import ConfigError

Path_ = tuple[str, ...]
PERSONAL = ".local"  # NAME.local.yaml: what one user adds to NAME; git ignores such files
# What a file says about itself; a file that extends it does not inherit that.
_OWN = (
    "description", "site", "status", "verified_on", "sources", "unset", "successor", "aliases",
    "detect", "extends", "notes",
)  # fmt: skip
_BLOCKS = ("nodes", "queues", "variants")
_SETTINGS = ("env", "caches")
_ADDS = "+"
_LISTS = [
    name
    for kind in (ProfileFile, Container)
    for name, hint in hints_of(kind).items()
    if get_origin(hint) is tuple and name != "extends"
]
_ONLY_IN = {"node_type": "queues", "when": "variants"}
_DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])(-[0-3]\d)?")
# Filled in by a shell between double quotes: nothing that could start a command or end the quotes.
EXPANDED = re.compile(r"[\w./:=,@%+^~ -]*(\$(\{\w+\}|\w+)[\w./:=,@%+^~ -]*)*")


@dataclass(slots=True)
class Merged:
    """Values of a profile and of what it extends; `origins` names the file of every leaf, `sources`
    the documents of every file.
    """

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path_, str] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def put(self, top: Mapping[str, Any], origin_of: Callable[[Path_], str]) -> None:
        """Lay `top` over the values: mappings merge, all else replaces, null removes, and `+key`
        adds to a list.
        """
        for path, value in leaves(top):
            origin = origin_of(path)
            # Inside a block null and + wait for what they are laid over once the block holds.
            waits = path[0] in _BLOCKS and len(path) > 2
            if path[-1].startswith(_ADDS) and not waits:
                path = (*path[:-1], path[-1].removeprefix(_ADDS))
                value = [*_parent(self.values, path).get(path[-1], ()), *value]
            self._remove(path)
            if value is not None or waits:
                _parent(self.values, path)[path[-1]] = value
                self.origins[path] = origin

    def _remove(self, path: Path_) -> None:
        _parent(self.values, path).pop(path[-1], None)
        for known in [key for key in self.origins if key[: len(path)] == path]:
            del self.origins[known]


def leaves(values: Mapping[str, Any], prefix: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Path and value of every leaf; a setting with its value and reason is one leaf."""
    for key, value in values.items():
        path = (*prefix, str(key))
        if isinstance(value, Mapping) and "value" not in value:
            yield from leaves(value, path)
        else:
            yield path, value


def _parent(values: dict[str, Any], path: Path_) -> dict[str, Any]:
    for part in path[:-1]:
        below = values.get(part)
        if not isinstance(below, dict):
            below = values[part] = {}
        values = below
    return values


def list_profiles(environ: Mapping[str, str]) -> dict[str, Path]:
    """All profiles by name, without the personal additions."""
    found = list_configs("clusters", environ)
    return {name: path for name, path in found.items() if not name.endswith(PERSONAL)}


def real_name(name: str, environ: Mapping[str, str]) -> str:
    """The name of the profile that is called so, or else has it among its `aliases`, the user's own
    first; a name that nobody has stays as it is.
    """
    profiles = list_profiles(environ)
    if name in profiles:
        return name
    return next((known for known, path in profiles.items() if _is_also_called(path, name)), name)


def _is_also_called(path: Path, name: str) -> bool:
    with suppress(OSError, UnicodeDecodeError, ConfigError):  # reading a profile tells its faults
        text = path.read_text(encoding="utf-8")
        aliases = load_yaml_mapping(path).get("aliases") if name in text else None
        return isinstance(aliases, list) and name in aliases
    return False


def read_merged(name: str, environ: Mapping[str, str]) -> Merged:
    """A profile with what it extends below it and the user's NAME.local.yaml above.

    Raises ConfigError for an unknown name or key, for a setting without a reason, and for
    profiles that extend each other in a circle.
    """
    merged = _with_parents(name, environ, ())
    if name + PERSONAL in list_configs("clusters", environ):
        _add(merged, find_config("clusters", name + PERSONAL, environ))
    check_names(merged)
    return merged


def _with_parents(name: str, environ: Mapping[str, str], below: tuple[str, ...]) -> Merged:
    if name in below:
        raise ConfigError(f"Profiles extend each other: {' -> '.join((*below, name))}.")
    if name not in list_profiles(environ):
        near = difflib.get_close_matches(name, list_profiles(environ), n=1)
        hint = f" Did you mean `{near[0]}`?" if near else ""
        raise ConfigError(
            f"No cluster profile `{name}`.{hint} `python -m hpcddp cluster list` shows all."
        )
    path = find_config("clusters", name, environ)
    merged = Merged(name)
    parents = load_yaml_mapping(path).get("extends") or []
    for parent in parents if isinstance(parents, list) else [parents]:
        above = _with_parents(real_name(str(parent), environ), environ, (*below, name))
        inherited = {key: value for key, value in above.values.items() if key not in _OWN}
        merged.put(inherited, lambda key, above=above: above.origins[key])
        merged.files += above.files
        merged.sources |= above.sources
    _add(merged, path)
    return merged


def _add(merged: Merged, path: Path) -> None:
    values = load_yaml_mapping(path)
    given = check_file(path, values)
    merged.put(values, lambda _: path.stem)
    merged.files += (path,)
    merged.sources[path.stem] = given.sources


def check_file(path: Path, values: Mapping[str, Any]) -> ProfileFile:
    """What one file says, checked; keys that it removes (null) are left out, and what it adds to a
    list (`+key`) counts as the list.
    """
    _check_added(str(path), values)
    for where, kind, block in _blocks(str(path), values):
        for key, only in _ONLY_IN.items():
            if key in block and kind != only:
                raise ConfigError(f"{where}: `{key}` belongs into a block of `{only}`.")
        for section in _SETTINGS:
            for name, setting in _items(block.get(section)):
                if setting is not None:
                    _check_setting(f"{where}: {section}.{name}", name, setting)
        _check_resources(where, dict(_items(block.get("defaults"))).get("resources"))
    given = build(ProfileFile, _as_given(values), str(path))
    _check_texts(path, given)
    _check_signs(path, given)
    if given.verified_on and not _DATE.fullmatch(given.verified_on):
        raise ConfigError(
            f'{path}: verified_on={given.verified_on}: write year and month, "2026-08", or a date, '
            '"2026-08-31".'
        )
    return given


def _items(value: Any) -> Iterable[tuple[Any, Any]]:  # noqa: ANN401
    """Keys and values of a mapping; of anything else none, which `build` refuses in its words."""
    return value.items() if isinstance(value, Mapping) else ()


def _check_resources(where: str, resources: Any) -> None:  # noqa: ANN401
    if not isinstance(resources, Mapping | None):
        raise ConfigError(
            f"{where}: defaults.resources needs `key: value` lines, found {resources!r}."
        )


def _check_signs(path: Path, given: ProfileFile) -> None:
    """Refuse a sign of two kinds or none, and a pattern that is none."""
    for number, sign in enumerate(given.detect):
        if sum(map(bool, (sign.env, sign.file, sign.host))) != 1:
            raise ConfigError(f"{path}: detect[{number}] needs exactly one of env, file, host.")
        pattern = sign.host or sign.matches
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"{path}: detect[{number}]: `{pattern}` is no regular expression: {error}."
            ) from None


def _check_added(where: str, values: Mapping[str, Any]) -> None:
    """Refuse `+key` where there is no list to add to, or nothing to add."""
    for key, value in values.items():
        name = str(key).removeprefix(_ADDS)
        if name == str(key):
            _check_added(where, value if isinstance(value, Mapping) else {})
        elif name not in _LISTS or not isinstance(value, list):
            raise ConfigError(
                f"{where}: `{key}` adds a list to a list, as in `+modules: [load cuda]`; found "
                f"{value!r}. {did_you_mean(name, _LISTS)}"
            )


def _check_texts(path: Path, given: ProfileFile) -> None:
    """Refuse texts that should be numbers of nodes, and words that are no options."""
    for name, variant in given.variants.items():
        nodes = variant.when.nodes if variant.when else ""
        if not re.fullmatch(r"(\d+\+?)?", nodes):
            raise ConfigError(
                f'{path}: variants.{name}.when.nodes={nodes}: use "1", or "2+" for two or more.'
            )
    for block in (given, *given.nodes.values(), *given.queues.values(), *given.variants.values()):
        for most in block.limits.time_by_nodes:
            if not most.isdigit():
                raise ConfigError(f"{path}: time_by_nodes: `{most}` is no number of nodes.")
        for word in block.torchrun_args:
            if not re.fullmatch(r"--[a-z][\w-]*(=.+)?", word):
                raise ConfigError(f"{path}: torchrun_args: `{word}`: write --name or --name=value.")


def check_names(merged: Merged) -> None:
    """Refuse names of queues and kinds of nodes that do not exist."""
    values, where = merged.values, merged.files[-1] if merged.files else merged.name
    queues, nodes = values.get("queues", {}), values.get("nodes", {})
    for key in ("default_queue", "test_queue"):
        named = values.get(key)
        if named and named not in queues:
            raise ConfigError(f"{where}: {key}={named}. {did_you_mean(named, queues)}")
    for name, queue in queues.items():
        kind = queue.get("node_type")
        if kind and kind not in nodes:
            raise ConfigError(
                f"{where}: queues.{name}.node_type={kind} is no key of nodes. "
                f"{did_you_mean(kind, nodes)}"
            )


def _blocks(where: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Name, kind ("" for the file itself) and content of every block."""
    yield where, "", values
    for kind in _BLOCKS:
        for name, block in _items(values.get(kind)):
            if isinstance(block, Mapping):
                yield f"{where}: {kind}.{name}", kind, block


def _check_setting(where: str, name: str, setting: Any) -> None:  # noqa: ANN401
    if not isinstance(setting, Mapping) or not {"value", "why"} <= set(setting):
        raise ConfigError(
            f"{where} needs a value and a reason: "
            f'`{name}: {{value: "...", why: "..."}}`; found {setting!r}.'
        )
    if looks_secret(name):
        raise ConfigError(
            f"{where} looks like a credential, and every job.sbatch would hold it. "
            "Export it in your shell: jobs inherit it from there."
        )
    value = setting["value"]
    if not isinstance(value, str):
        raise ConfigError(f'{where}.value must be text; quote it: "{value}".')
    if not re.fullmatch(r"[A-Za-z_]\w*", str(name)):
        raise ConfigError(f"{where}: `{name}` is no name of a variable.")
    if "$" in value and not EXPANDED.fullmatch(value):
        raise ConfigError(
            f"{where}.value={value}: beside $NAME only letters, digits and ./:=,@%+^~- may be "
            "there. Use a line of setup_task for more."
        )


def _as_given(value: Any) -> Any:  # noqa: ANN401
    """`value` as if there were nothing to remove or to add to."""
    if not isinstance(value, Mapping):
        return value
    given = {key: _as_given(part) for key, part in value.items() if part is not None}
    return {str(key).removeprefix(_ADDS): part for key, part in given.items()}
