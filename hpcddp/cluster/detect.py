"""Which profile is this cluster's, by environment, file, host or Slurm's name. Starts nothing."""

import logging
import os
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcddp.cluster.profile_file import check_file, list_profiles
from hpcddp.cluster.profile_schema import ProfileFile, Sign
from hpcddp.config.files import shipped_dir
from hpcddp.config.yaml_text import load_yaml_mapping
from hpcddp.errors import ConfigError

_log = logging.getLogger(__name__)
_SIGNS = ("status", "aliases", "detect")
_NOBODYS = ("family", "generic")  # chosen by name only; but Slurm may be called so
_CONF_FILES = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/etc/slurm-llnl/slurm.conf")
_CLUSTER_NAME = re.compile(r"^\s*ClusterName\s*=\s*(\S+)", re.MULTILINE | re.IGNORECASE)
_HAS_SIGNS = re.compile(r"^\W?detect\b", re.MULTILINE)  # in the file itself, not under `unset`
_LONGEST_FILE = 100_000


@dataclass(frozen=True, slots=True)
class Match:
    """A profile that fits, and what says so."""

    name: str
    reason: str


def detect(environ: Mapping[str, str], host: str | None = None) -> tuple[Match, ...]:
    """The profiles whose signs are found here; Slurm's own name counts only if there are none.

    Where profiles of the user's own are among them, shipped ones do not count.
    """
    host = socket.gethostname() if host is None else host
    profiles = dict(_candidates(environ))
    found = [
        Match(name, reason)
        for name, profile in profiles.items()
        if profile.status not in _NOBODYS
        for reason in _reasons(profile, environ, host)
    ]
    found = found or [*_by_slurm_name(profiles, environ)]
    paths, shipped = list_profiles(environ), shipped_dir("configs").resolve()
    own = [match for match in found if not paths[match.name].resolve().is_relative_to(shipped)]
    by_name = {match.name: match for match in reversed(own or found)}
    return tuple(by_name[name] for name in sorted(by_name))


def slurm_cluster_name(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """What Slurm calls this cluster, and where that is said; from variables and files only."""
    if environ.get("SLURM_CLUSTER_NAME"):
        return environ["SLURM_CLUSTER_NAME"], "SLURM_CLUSTER_NAME"
    for path in (environ.get("SLURM_CONF"), *_CONF_FILES):
        found = _CLUSTER_NAME.search(_text(path)) if path else None
        if found:
            return found[1], f"{path}: ClusterName={found[1]}"
    return None


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, ProfileFile]]:
    """Profiles that may be recognised, as far as that takes; the others are not even parsed.

    A mistake in the rest of a file counts once its profile is chosen, and one in the signs must not
    keep people from other clusters.
    """
    told = (slurm_cluster_name(environ) or ("",))[0].casefold()
    for name, path in list_profiles(environ).items():
        text = _text(str(path))
        if _HAS_SIGNS.search(text) or (told and told in f"{name} {text}".casefold()):
            try:
                values = load_yaml_mapping(path)
                yield name, check_file(path, {key: values.get(key) for key in _SIGNS})
            except ConfigError as error:
                _log.warning("Warning: this profile cannot be recognised: %s", error.message)


def _reasons(profile: ProfileFile, environ: Mapping[str, str], host: str) -> Iterator[str]:
    for sign in profile.detect:
        reason = _reason(sign, environ, host)
        if reason:
            yield reason


def _reason(sign: Sign, environ: Mapping[str, str], host: str) -> str:
    """What this sign found here; empty where it does not fit."""
    if sign.env:
        value = environ.get(sign.env)
        fits = value is not None and _fits(sign.matches, value)
        return f"{sign.env}={value}" if fits else ""
    if sign.file:
        if not os.path.exists(sign.file):
            return ""
        text = _text(sign.file).strip() if sign.matches else ""
        return f"file {sign.file}{f': {text}' if text else ''}" if _fits(sign.matches, text) else ""
    return f"host name {host}" if re.fullmatch(sign.host, host) else ""


def _fits(pattern: str, text: str) -> bool:
    return not pattern or re.fullmatch(pattern, text) is not None


def _by_slurm_name(
    profiles: Mapping[str, ProfileFile], environ: Mapping[str, str]
) -> Iterator[Match]:
    told = slurm_cluster_name(environ)
    for name, profile in profiles.items():
        names = {each.casefold() for each in (name, *profile.aliases)}
        if told and told[0].casefold() in names:
            yield Match(name, told[1])


def _text(path: str) -> str:
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            return file.read(_LONGEST_FILE)
    except OSError:
        return ""
