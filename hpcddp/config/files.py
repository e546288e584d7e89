"""Find configuration files: the user's own first, then the ones that ship. Reads no content.

Shipped folders (`configs`, `jobs`, `slurm`) lie beside the package in a checkout or an editable
install, and inside it in a wheel.
"""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path

from hpcddp.errors import ConfigError

CONFIG_PATH_VARIABLE = "HPCDDP_CONFIG_PATH"
_PACKAGE = Path(__file__).resolve().parents[1]


def shipped_dir(name: str) -> Path:
    """The shipped folder `configs`, `jobs` or `slurm`."""
    inside = _PACKAGE / "shipped" / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def user_dirs(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Where the user's own `clusters/` and `train/` folders may lie, most specific first."""
    named = environ.get(CONFIG_PATH_VARIABLE, "")
    places = [Path("configs"), *(Path(part) for part in named.split(os.pathsep) if part)]
    config_home = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "~")) / ".config"
    return (*places, Path(config_home).expanduser() / "hpcddp")


def list_configs(kind: str, environ: Mapping[str, str]) -> dict[str, Path]:
    """All files of `kind` ("clusters" or "train") by name; a user's file hides a shipped one."""
    found: dict[str, Path] = {}
    for folder in (*user_dirs(environ), shipped_dir("configs")):
        for path in sorted((folder / kind).glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found


def find_config(kind: str, name: str, environ: Mapping[str, str]) -> Path:
    """The file of one name; ConfigError names the nearest ones."""
    known = list_configs(kind, environ)
    if name in known:
        return known[name].absolute()
    raise ConfigError(f"No {kind} configuration `{name}`. {did_you_mean(name, known)}")


def find_job(text: str) -> Path:
    """A job file: a path as typed, or the name of a shipped one (`digits`, `jobs/digits.yaml`)."""
    typed = Path(text)
    shipped = shipped_dir("jobs")
    candidates = [typed]
    if typed.parent in (Path(), Path("jobs")):  # any other folder is the user's own, mistyped
        candidates += [shipped / f"{typed.name}.yaml", shipped / typed.name]
    for path in candidates:
        if path.is_file():
            return path.absolute()
    if text and typed.is_dir():
        raise ConfigError(f"`{text}` is a folder, and a job file was needed.")
    names = [path.stem for path in shipped.glob("*.yaml")]
    raise ConfigError(
        f"No job file `{text}`. {did_you_mean(typed.stem, names)} Settings are key=value; your own "
        "program comes after `--`."
    )


def did_you_mean(found: str, known: Mapping[str, object] | list[str]) -> str:
    """A hint for a mistyped name: the nearest known one, or all of them."""
    near = difflib.get_close_matches(found, list(known), n=1)
    return f"Did you mean `{near[0]}`?" if near else f"Known: {', '.join(sorted(known))}."
