"""What a login node is like, as plain values: Python, Slurm, profile, folders. Judges nothing.

Imports no torch: versions come from the packages' metadata.
"""

import getpass
import os
import platform
import shutil
import socket
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from hpcddp.cluster.detect import detect
from hpcddp.cluster.filesystems import existing_part, mount_of
from hpcddp.cluster.live import Ask, ask_slurm, read_live
from hpcddp.cluster.profile import CLUSTER_VARIABLE, ClusterProfile, choose_profile, load_profile
from hpcddp.cluster.scrub import inherited_names, looks_secret
from hpcddp.cluster.shared_runs import is_proven
from hpcddp.cluster.variable_check import variable_warnings
from hpcddp.doctor.quota import read_quota
from hpcddp.errors import ConfigError

_COMMANDS = ("sbatch", "srun", "scontrol", "squeue", "scancel")
_SLURMS_OWN = "SLURM_JWT"  # without it sbatch could not ask
_CACHES = ("XDG_CACHE_HOME", "TORCH_HOME", "HF_HOME", "TRITON_CACHE_DIR", "MPLCONFIGDIR")


def read_login_facts(
    environ: Mapping[str, str], cluster: str, runs: Path, ask: Ask = ask_slurm
) -> dict[str, Any]:
    """Facts about this host, for the profile `cluster` (or `auto`) and the folder of all runs."""
    profile, told = _profile(environ, cluster)
    live = None if told["launcher"] == "local" else read_live(ask)
    there = existing_part(runs)
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "machine": platform.machine(),
        "packages": {name: _version(name) for name in ("torch", "torchvision")},
        "commands": {name: shutil.which(name, path=environ.get("PATH")) for name in _COMMANDS},
        "slurm_version": live.version if live else "",
        "slurm_cluster": live.name if live else "",
        "profile": told,
        "runs": _folder(runs),
        "mounts": {"runs": _mount(runs), "python": _mount(Path(sys.prefix))},
        "space": _space(there),
        "quota": read_quota(mount_of(there), getpass.getuser()),
        "umask": _umask(),
        "secrets": _secrets(environ),
        "variables": variable_warnings(environ, accepted=_accepted(profile)),
        "caches": {name: _folder(path) for name, path in _caches(environ).items()},
    }


def _profile(
    environ: Mapping[str, str], cluster: str
) -> tuple[ClusterProfile | None, dict[str, Any]]:
    """The profile, and what is told of it; of one that cannot be had, the error."""
    named = environ.get(CLUSTER_VARIABLE) if cluster == "auto" else None
    asked = named or cluster
    try:
        profile = load_profile(choose_profile(asked, environ), environ)
    except ConfigError as error:
        return None, {"launcher": "", "error": error.message}
    why = f"{CLUSTER_VARIABLE}={named}" if named else f"--cluster {cluster}"
    if asked == "auto":
        matches = [match.reason for match in detect(environ) if match.name == profile.name]
        why = matches[0] if matches else "sbatch is on PATH"
    return profile, {
        "name": profile.name,
        "why": why,
        "asked_for": asked != "auto",
        "launcher": profile.launcher,
        "arch": profile.node.arch,
        "other_arch": profile.other_arch(platform.machine()),
        "time_min": profile.limits.time_min,
    }


def _accepted(profile: ClusterProfile | None) -> dict[str, str]:
    return {name: setting.value for name, setting in profile.env.items()} if profile else {}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _mount(path: Path) -> Mapping[str, Any] | None:
    mount = mount_of(path)
    return {**mount.as_facts(path), "is_proven": is_proven(path)} if mount else None


def _space(path: Path) -> dict[str, int | None]:
    """What an ordinary user can still write; file systems without a number of inodes say 0."""
    try:
        state = os.statvfs(path)
    except OSError:
        return {"bytes": None, "inodes": None}
    inodes = state.f_favail if state.f_files else None
    return {"bytes": state.f_bavail * state.f_frsize, "inodes": inodes}


def _umask() -> int:
    """The mask can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _secrets(environ: Mapping[str, str]) -> list[str]:
    """Names that a job would inherit and that look like credentials; never their values."""
    removed = (*inherited_names(environ), _SLURMS_OWN)
    return sorted(name for name in environ if looks_secret(name) and name not in removed)


def _caches(environ: Mapping[str, str]) -> dict[str, Path]:
    given = {name: Path(environ[name]) for name in _CACHES if environ.get(name)}
    home = environ.get("HOME", "/")
    return {"XDG_CACHE_HOME": Path(home) / ".cache", **given}


def _folder(path: Path) -> dict[str, Any]:
    """Whether files can be made there, the folder itself included where it does not exist yet."""
    return {"path": str(path), "writable": os.access(existing_part(path), os.W_OK | os.X_OK)}
