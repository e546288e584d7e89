"""What one cluster is like, read from configs/clusters. Knows no job, no torch.

A profile is data: `defaults` are settings of `RunConfig` that hold for everybody there, `env`
are variables for the processes, each with the reason why it is needed.
"""

import dataclasses
import shutil
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcddp.cluster.scrub import looks_secret
from hpcddp.config.files import did_you_mean, find_config
from hpcddp.config.load import Layer
from hpcddp.config.yaml_text import load_yaml_mapping
from hpcddp.errors import ConfigError

CLUSTER_VARIABLE = "HPCDDP_CLUSTER"


@dataclass(frozen=True, slots=True)
class EnvSetting:
    """One environment variable of the processes, and why it is set."""

    value: str
    why: str


@dataclass(frozen=True, slots=True)
class ClusterProfile:
    """Facts about one cluster.

    `launcher` is slurm or local; `gpu_request` is the option that asks for GPUs: gpus-per-node,
    gres, or none where there are none to ask for. `setup` are shell lines for the batch script
    (modules). `host_suffix` turns a node name into its name on the fast network.
    """

    name: str
    description: str = ""
    launcher: str = "slurm"
    gpu_request: str = "gpus-per-node"
    host_suffix: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, EnvSetting] = field(default_factory=dict)
    setup: tuple[str, ...] = ()

    @property
    def has_gpus(self) -> bool:
        return self.gpu_request != "none"

    @property
    def layer(self) -> Layer:
        """The profile's settings as a layer of the configuration."""
        return Layer(f"cluster {self.name}", self.defaults)


def load_profile(name: str, environ: Mapping[str, str]) -> ClusterProfile:
    """The profile of this name; `auto` is `generic` where `sbatch` exists.

    Raises ConfigError for unknown names and keys, and for a variable without a `why`.
    """
    path = find_config("clusters", choose_profile(name, environ), environ)
    return parse_profile(path, load_yaml_mapping(path))


def choose_profile(name: str, environ: Mapping[str, str]) -> str:
    """Turn `auto` into a profile's name."""
    if name != "auto":
        return name
    if shutil.which("sbatch", path=environ.get("PATH")):
        return "generic"
    raise ConfigError(
        "No `sbatch` on PATH, so this is no Slurm login node. Use `--cluster local` to run on this "
        "machine, or name a profile: `--cluster generic`."
    )


def parse_profile(path: Path, values: Mapping[str, Any]) -> ClusterProfile:
    """Check and build one profile from the mapping of its file."""
    known = typing.get_type_hints(ClusterProfile)
    for key in values:
        if key not in known or key == "name":
            raise ConfigError(f"{path}: unknown key `{key}`. {did_you_mean(key, list(known))}")
    profile = ClusterProfile(**values, name=path.stem)
    for key, allowed in (
        ("launcher", ("slurm", "local")),
        ("gpu_request", ("gpus-per-node", "gres", "none")),
    ):
        if getattr(profile, key) not in allowed:
            found = getattr(profile, key)
            raise ConfigError(f"{path}: {key}={found}: use one of {', '.join(allowed)}.")
    env = {name: _env_setting(path, name, value) for name, value in profile.env.items()}
    return dataclasses.replace(profile, env=env, setup=tuple(profile.setup))


def _env_setting(path: Path, name: str, value: Any) -> EnvSetting:  # noqa: ANN401
    if not isinstance(value, Mapping) or set(value) != {"value", "why"}:
        raise ConfigError(
            f"{path}: env.{name} needs a value and a reason: "
            f'`{name}: {{value: "...", why: "..."}}`; found {value!r}.'
        )
    if looks_secret(name):
        raise ConfigError(
            f"{path}: env.{name} looks like a credential, and every job.sbatch would hold it. "
            "Export it in your shell: jobs inherit it from there."
        )
    if not isinstance(value["value"], str):
        raise ConfigError(f'{path}: env.{name}.value must be text; quote it: "{value["value"]}".')
    return EnvSetting(value["value"], str(value["why"]))
