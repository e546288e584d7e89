"""What one cluster is like for one submission. Knows no job, no torch.

A profile is data (configs/clusters). Which of its blocks hold depends on what is asked for; the
narrower one wins: whole cluster < kind of node < queue < variants, and the user above all.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from hpcddp.cluster.detect import detect
from hpcddp.cluster.profile_file import (
    Merged,
    Path_,
    check_file,
    check_names,
    read_merged,
    real_name,
)
from hpcddp.cluster.profile_schema import EnvSetting, ProfileFile, When, resources_in
from hpcddp.config.build import build
from hpcddp.config.files import did_you_mean
from hpcddp.config.load import Layer
from hpcddp.config.schema import Resources
from hpcddp.errors import ConfigError

CLUSTER_VARIABLE = "HPCDDP_CLUSTER"
_APART = ("nodes", "queues", "variants")
_ON_THE_NODE = ("host_suffix", "interface", "hca", "master_as")
_ROUTES = ("partition", "qos", "constraint", "reservation")
# Libraries that would otherwise wait for minutes for an answer from outside.
_OFFLINE = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClusterProfile(ProfileFile):
    """A profile settled for what is asked for: `queue` and `variants_on` are part of the fields.

    `origins` says for every value (`("env", "NCCL_NET")`) which file and block it is from, and
    `documents` for every file where its facts are from.
    """

    name: str
    queue: str = ""
    variants_on: tuple[str, ...] = ()
    origins: Mapping[Path_, str] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    documents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def has_gpus(self) -> bool:
        return self.gpu_request != "none"

    def other_arch(self, machine: str) -> str:
        """What the nodes are (`aarch64`) where a python for `machine` cannot run on them, else "";
        also where a line of `setup` names another python.
        """
        is_replaced = any(re.search(r"\bpython=", line) for line in self.setup)
        is_here = self.launcher != "slurm" or self.node.arch == machine
        return "" if is_here or is_replaced else self.node.arch

    @property
    def network(self) -> tuple[tuple[str, str, EnvSetting], ...]:
        """Key, variable and value of the rules that each node applies to its own network."""
        pairs = [(key, f"HPCDDP_{key.upper()}", getattr(self, key)) for key in _ON_THE_NODE]
        return tuple((key, name, setting) for key, name, setting in pairs if setting)

    @property
    def layer(self) -> Layer:
        """The profile's settings as a layer of the configuration."""
        values = {**self.defaults}
        options = {
            kind: {name: setting.value for name, setting in getattr(self, kind).items()}
            for kind in ("sbatch", "srun")
            if getattr(self, kind)
        }
        if options:
            values["resources"] = {**values.get("resources", {}), **options}
        return Layer(f"cluster {self.name}", values)

    @property
    def general_layer(self) -> Layer:
        """The layer without resources: those depend on what is asked for."""
        values = {key: part for key, part in self.defaults.items() if key != "resources"}
        return Layer(f"cluster {self.name}", values)


def load_profile(
    name: str, environ: Mapping[str, str], asked: Resources | None = None
) -> ClusterProfile:
    """The profile of this name, settled for `asked`, where None is "the profile decides".

    `auto` is what `choose_profile` finds. Raises ConfigError for unknown names and keys, and for a
    variable without a `why`.
    """
    merged = read_merged(choose_profile(name, environ), environ)
    return settle(merged, asked or Resources(), environ)


def choose_profile(name: str, environ: Mapping[str, str]) -> str:
    """The profile's own name; of `auto` the one detected, else `generic` where sbatch is.

    Raises ConfigError where several fit, or none and there is no Slurm.
    """
    if name != "auto":
        return real_name(name, environ)
    matches = detect(environ)
    if len(matches) > 1:
        found = ", ".join(f"{match.name} ({match.reason})" for match in matches)
        raise ConfigError(f"Several profiles fit this cluster: {found}. Name one: --cluster NAME.")
    if matches:
        return matches[0].name
    if shutil.which("sbatch", path=environ.get("PATH")):
        return "generic"
    raise ConfigError(
        "No `sbatch` on PATH, so this is no Slurm login node. Use `--cluster local` to run on this "
        "machine; `render` and `--dry-run` also work with a profile's name: `--cluster generic`."
    )


def parse_profile(path: Path, values: Mapping[str, Any]) -> ClusterProfile:
    """Check and build one profile from the mapping of its file, which extends nothing."""
    check_file(path, values)
    merged = Merged(path.stem, files=(path,))
    merged.put(values, lambda _: path.stem)
    check_names(merged)
    return settle(merged, Resources(), {})


def settle(merged: Merged, asked: Resources, environ: Mapping[str, str]) -> ClusterProfile:
    """The blocks that hold for `asked`, laid over each other."""
    whole = merged.values
    base = {key: value for key, value in whole.items() if key not in _APART}
    settled = Merged(merged.name, files=merged.files)
    settled.put(base, lambda path: merged.origins[path])
    queue = _choose_queue(whole, asked)
    node_type = whole.get("queues", {}).get(queue, {}).get("node_type", "")
    if not node_type and len(whole.get("nodes", {})) == 1:
        node_type = next(iter(whole["nodes"]))
    _lay(settled, merged, "nodes", node_type)
    _lay(settled, merged, "queues", queue)
    on = tuple(_variants(settled.values, whole, asked, environ))
    for variant in on:
        _lay(settled, merged, "variants", variant)
    _derive(settled, asked)
    if node_type:
        settled.values["node_type"] = node_type
    built = build(ProfileFile, _filled(settled.values, asked, settled.values), merged.name)
    return ClusterProfile(
        **{part.name: getattr(built, part.name) for part in fields(ProfileFile)},
        name=merged.name,
        queue=queue,
        variants_on=on,
        origins=settled.origins,
        files=merged.files,
        documents=merged.sources,
    )


def _lay(settled: Merged, merged: Merged, kind: str, name: str) -> None:
    block = merged.values.get(kind, {}).get(name)
    if block:
        block = {key: value for key, value in block.items() if key != "when"}
        settled.put(block, lambda path: f"{merged.origins[(kind, name, *path)]}: {kind}.{name}")


def _default(values: Mapping[str, Any], key: str) -> Any:  # noqa: ANN401
    return resources_in(values).get(key)


def _choose_queue(values: Mapping[str, Any], asked: Resources) -> str:
    """The queue asked for by name, else by partition or QOS, else the default."""
    queues = values.get("queues", {})
    named = asked.queue or _default(values, "queue")
    if named and not (asked.queue is None and (asked.partition or asked.qos)):
        if str(named) not in queues:
            raise _unknown("queue", named, queues)
        return str(named)
    default = values.get("default_queue", "")
    if not (asked.partition or asked.qos):
        return default
    fitting = [name for name, queue in queues.items() if _fits(queue, asked)]
    return default if default in fitting else next(iter(fitting), "")


def _unknown(kind: str, name: str, known: Mapping[str, Any]) -> ConfigError:
    hint = did_you_mean(name, known) if known else f"This profile has no {kind}s."
    return ConfigError(f"resources.{kind}={name} is unknown. {hint}")


def _fits(queue: Mapping[str, Any], asked: Resources) -> bool:
    """Nothing that the queue stands for contradicts what is asked, and something agrees."""
    pairs = [(_default(queue, key), getattr(asked, key)) for key in _ROUTES]
    both = [(here, there) for here, there in pairs if here and there]
    needed = (asked.partition and _default(queue, "partition")) or (
        asked.qos and _default(queue, "qos")
    )
    return bool(needed) and all(here == there for here, there in both)


def _variants(
    settled: Mapping[str, Any],
    values: Mapping[str, Any],
    asked: Resources,
    environ: Mapping[str, str],
) -> Iterator[str]:
    """Names of the variants that hold, in the order of the file, the one asked for last."""
    variants = values.get("variants", {})
    named = asked.variant or _default(values, "variant")
    if named and str(named) not in variants:
        raise _unknown("variant", named, variants)
    for name, variant in variants.items():
        if "when" in variant and name != str(named):
            when = build(When, variant["when"], f"variants.{name}.when")
            if _holds(when, settled, asked, environ):
                yield name
    if named:
        yield str(named)


def _holds(
    when: When, settled: Mapping[str, Any], asked: Resources, environ: Mapping[str, str]
) -> bool:
    gpus = asked.gpus_per_node or _default(settled, "gpus_per_node")
    in_node = settled.get("node", {}).get("gpus")
    whole = bool(in_node) and gpus in (None, in_node)
    contained = bool(asked.container or _default(settled, "container"))
    least, plus, _ = when.nodes.partition("+")
    return (
        (not when.nodes or (asked.nodes >= int(least) if plus else asked.nodes == int(least)))
        and when.whole_node in (None, whole)
        and when.container in (None, contained)
        and (not when.file or os.path.exists(when.file))
        and (not when.env or when.env in environ)
    )


def _derive(settled: Merged, asked: Resources) -> None:
    """What follows from other values, such as all GPUs of a node; and the launch asked for."""
    values = settled.values
    launch = asked.launch or _default(values, "launch")
    if launch and launch != values.get("launch", "srun"):
        settled.put(_launched_by(launch, values), lambda _: "resources.launch")
    if values.get("node", {}).get("gpus") and _default(values, "gpus_per_node") is None:
        gpus = {"gpus_per_node": values["node"]["gpus"]}
        settled.put({"defaults": {"resources": gpus}}, lambda _: "all of a node (node.gpus)")
    project = asked.project or _default(values, "project")
    if values.get("account") and project and not _default(values, "account"):
        account = {"account": values["account"].replace("{project}", project)}
        label = f"{settled.origins[('account',)]}: account template"
        settled.put({"defaults": {"resources": account}}, lambda _: label)
    if values.get("internet") == "none":
        why = "compute nodes have no internet here, and the library would wait for it"
        offline = {name: {"value": text, "why": why} for name, text in _OFFLINE.items()}
        known = values.get("env", {})
        new = {name: setting for name, setting in offline.items() if name not in known}
        settled.put({"env": new}, lambda _: f"{settled.origins[('internet',)]}: internet none")


def _launched_by(launch: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """What changes where the other way of starting processes was asked for."""
    if values.get("launcher") == "local":
        raise ConfigError(
            f"resources.launch={launch}, but on this machine processes start without srun and "
            "torchrun. Leave it out, or use `torchrun -m hpcddp run`."
        )
    # A program of the site's starts one task per node, for torchrun.
    return {"launch": launch, "launch_program": None, "node_rank_variable": None}


def _filled(value: Any, asked: Resources, values: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """`value` with {nodes}, {project} and {scratch}, {local} replaced, where they are known."""
    known = {
        "nodes": str(asked.nodes),
        "project": asked.project or _default(values, "project"),
        "scratch": values.get("scratch"),
        "local": values.get("local", {}).get("path"),
    }
    for _ in range(2):  # scratch itself may hold {project}
        value = _fill(value, {name: text for name, text in known.items() if text})
    return value


def _fill(value: Any, known: Mapping[str, str]) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        return re.sub(r"(?<!\$)\{(\w+)\}", lambda found: known.get(found[1], found[0]), value)
    if isinstance(value, Mapping):
        return {key: _fill(part, known) for key, part in value.items()}
    return [_fill(part, known) for part in value] if isinstance(value, list) else value


__all__ = ["CLUSTER_VARIABLE", "ClusterProfile", "EnvSetting", "load_profile", "parse_profile"]
