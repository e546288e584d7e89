"""The record of a running test cluster: what was started, and how to find it again."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

from plan import ClusterError, Plan
from processes import Process

_NAME = "cluster.json"


@dataclass(slots=True)
class Host:
    """A node or the login host; `process` keeps its namespaces open."""

    address: str
    process: Process


@dataclass(slots=True)
class Daemon:
    """A daemon and the command that starts it again in the same place."""

    command: list[str]
    process: Process


@dataclass(slots=True)
class Record:
    """Kept as `cluster.json` in the state directory from before the first process is started."""

    state_dir: str
    conf: str
    link: str
    nodes: list[str]
    partitions: list[str]
    hosts: dict[str, Host] = field(default_factory=dict)
    daemons: dict[str, Daemon] = field(default_factory=dict)

    def processes(self) -> list[Process]:
        """Return all that was started directly; the jobs' processes are found through them."""
        return [entry.process for entry in (*self.hosts.values(), *self.daemons.values())]

    def save(self) -> None:
        """Write the record; a reader sees the old one or the new one, whole."""
        path = Path(self.state_dir) / _NAME
        partial = path.with_suffix(".partial")
        partial.write_text(self.to_json())
        partial.replace(path)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


def claim(plan: Plan) -> Record:
    """Take the state directory for one cluster; raise ClusterError if it is in use."""
    path = plan.state_dir / _NAME
    if path.exists():
        raise ClusterError(f"{plan.state_dir} holds a test cluster already; bring it down first")
    if plan.state_dir.exists() and any(plan.state_dir.iterdir()):
        raise ClusterError(f"{plan.state_dir} is not empty, and `down` would delete it")
    plan.state_dir.mkdir(parents=True, exist_ok=True)
    record = Record(str(plan.state_dir), str(plan.conf), plan.link, plan.nodes, plan.partitions)
    try:
        with path.open("x") as file:
            file.write(record.to_json())
    except FileExistsError:
        raise ClusterError(f"{plan.state_dir} was taken by another `up` just now") from None
    return record


def exists(state_dir: Path) -> bool:
    """Return whether `up` has begun there."""
    return (state_dir / _NAME).exists()


def is_blank(state_dir: Path) -> bool:
    """Return whether `up` was killed between taking the directory and its first line there."""
    return (state_dir / _NAME).stat().st_size == 0


def load(state_dir: Path) -> Record:
    """Return the record of the cluster in `state_dir`; raise ClusterError if there is none."""
    try:
        raw = json.loads((state_dir / _NAME).read_text())
    except FileNotFoundError:
        raise ClusterError(f"no test cluster in {state_dir}; bring one up first") from None
    for key, kind in (("hosts", Host), ("daemons", Daemon)):
        raw[key] = {
            name: kind(**entry | {"process": Process(**entry["process"])})
            for name, entry in raw[key].items()
        }
    return Record(**raw)


def remove(state_dir: Path) -> None:
    """Delete the state directory, the record last: an interrupted removal can be repeated."""
    for entry in state_dir.iterdir():
        if entry.name != _NAME:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    shutil.rmtree(state_dir)
