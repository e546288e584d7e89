"""What one process of a job finds on its node, as plain values. Judges nothing; knows no torch."""

import os
import platform
import resource
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from hpcddp import __version__
from hpcddp.cluster.adapters import read_adapters
from hpcddp.cluster.interfaces import Host, is_loopback, read_host
from hpcddp.cluster.names import Resolve, first_that_resolves, resolve_name
from hpcddp.cluster.network import GLOO, faster_interfaces
from hpcddp.cluster.rendezvous_address import is_one_host, node_names
from hpcddp.config.layout import ProcessLayout
from hpcddp.doctor.findings import Facts
from hpcddp.doctor.gpu_facts import no_gpus, read_gpus

_SHM = Path("/dev/shm")
_MOST_FILES, _LONGEST_LOOK_S = 64, 5.0
_LONGEST_NAMES_S, _PAUSE_S = 10.0, 0.5
_MOST_NAMES = 8  # that one node tells the others of: each of 10,000 may miss 10,000


def read_process_facts(layout: ProcessLayout, environ: Mapping[str, str]) -> dict[str, Any]:
    """Facts of this process."""
    return {
        "host": host_name(layout),
        "global_rank": layout.global_rank,
        "local_rank": layout.local_rank,
        "local_world_size": layout.local_world_size,
        "versions": {
            "python": platform.python_version(),
            "hpcddp": __version__,
            "kernel": platform.release(),
        },
        "cpus": sorted(os.sched_getaffinity(0)),
        "cpus_asked": _asked(environ),
    }


def read_node_facts(
    layout: ProcessLayout,
    environ: Mapping[str, str],
    data_root: Path | None,
    *,
    uses_gpus: bool,
) -> dict[str, Any]:
    """Facts of this node: for one of its processes to read."""
    gpus = read_gpus() if uses_gpus else no_gpus("train.device=cpu uses none")
    host = None if is_one_host(layout) else read_host(environ)
    return {
        **gpus,
        "memlock_bytes": _limit(resource.RLIMIT_MEMLOCK),
        "rdma": [str(port) for port in read_adapters().ports if port.is_active],
        "shm_bytes": _free(_SHM),
        "interface": interface_facts(host, environ) if host else None,
        "way": way_facts(host, resolve_name(layout.master_addr)) if host else None,
        "data": read_data(data_root) if data_root else None,
    }


def with_node_facts(
    processes: Sequence[Facts], nodes: Sequence[Facts | None]
) -> list[dict[str, Any]]:
    """The facts of all processes, each with those that one process of its node has read."""
    read = {
        facts["host"]: node
        for facts, node in zip(processes, nodes, strict=True)
        if node is not None
    }
    return [_joined(facts, read[facts["host"]]) for facts in processes]


def _joined(facts: Facts, node: Facts) -> dict[str, Any]:
    driver = {"driver": node["driver"]} if node["driver"] else {}
    return {**facts, **node, "versions": {**facts["versions"], **driver}}


def host_name(layout: ProcessLayout) -> str:
    """What this node is called, as one would tell Slurm; the local launcher makes names up."""
    named = layout.launcher in ("slurm", "local")  # torchrun does not name its nodes
    return layout.hosts[layout.node_rank] if named else socket.gethostname()


def _asked(environ: Mapping[str, str]) -> int | None:
    """The cores that Slurm was asked for per process."""
    text = environ.get("SLURM_CPUS_PER_TASK", "")
    return int(text) if text.isdigit() else None


def _limit(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def _free(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def interface_facts(host: Host, environ: Mapping[str, str]) -> dict[str, Any]:
    """The interface that was chosen for the job, as exported, and those that would be faster;
    where none was found, what is there.
    """
    names = environ.get(GLOO, "").split(",")
    chosen = [found for name in names if (found := host.named(name))]
    if not chosen:
        return {"name": "", "speed_mbit_per_s": None, "there": host.listing()}
    best = faster_interfaces(chosen, host)
    return {
        "name": ",".join(each.name for each in chosen),
        "speed_mbit_per_s": chosen[0].speed_mbit_per_s,
        "faster": str(best[0]) if best else "",
        "faster_name": best[0].name if best else "",
    }


def way_facts(host: Host, addresses: Sequence[str]) -> dict[str, Any]:
    """Whether these addresses are this host's own, and else the interfaces that lead to the first
    one that any leads to.
    """
    is_here = any(is_loopback(each) or host.owner_of(each) for each in addresses)
    ways = filter(None, map(host.ways_to, () if is_here else addresses))
    return {"is_here": is_here, "over": [each.name for each in next(ways, ())]}


def resolve_all(
    hosts: Sequence[str],
    environ: Mapping[str, str],
    resolve: Resolve = resolve_name,
    patience_s: float = _LONGEST_NAMES_S,
) -> dict[str, list[str] | None]:
    """The addresses of every host as this node knows them, by the names that training would try;
    None where time was up before. Who has none is asked for again: name servers have hiccups.
    """
    deadline = time.monotonic() + patience_s
    found: dict[str, list[str] | None] = {}
    for host in hosts:
        in_time = time.monotonic() < deadline
        found[host] = _addresses(host, environ, resolve) if in_time else None
    while (missing := [host for host in hosts if found[host] == []]) and (
        time.monotonic() < deadline
    ):
        time.sleep(_PAUSE_S)
        found |= {host: _addresses(host, environ, resolve) for host in missing}
    return found


def name_facts(found: Mapping[str, list[str] | None], host: str) -> dict[str, Any]:
    """What `host` makes of the names of the others: how many, and which are odd."""
    others = {name: addresses for name, addresses in found.items() if name != host}
    missing = [name for name, addresses in others.items() if addresses == []]
    own = [
        name for name, addresses in others.items() if addresses and all(map(is_loopback, addresses))
    ]
    return {
        "others": len(others),
        "unasked": sum(addresses is None for addresses in others.values()),
        "num_odd": len(missing) + len(own),
        "missing": missing[:_MOST_NAMES],
        "own": own[:_MOST_NAMES],
    }


def _addresses(host: str, environ: Mapping[str, str], resolve: Resolve) -> list[str]:
    _, addresses = first_that_resolves(node_names(host, environ), resolve, patience_s=0)
    return list(addresses)


def read_data(root: Path) -> dict[str, Any]:
    """How long it takes to open a file of the data and read its first byte, from this node."""
    times, began = [], time.monotonic()
    try:
        for path in _first_files(root):
            start = time.monotonic()
            with path.open("rb", buffering=0) as file:
                file.read(1)
            times.append(time.monotonic() - start)
            if len(times) == _MOST_FILES or start - began > _LONGEST_LOOK_S:
                break
    except OSError as error:
        return {"path": str(root), "error": f"{error.strerror}: {error.filename}"}
    return {"path": str(root), "files": len(times), "open_s": median(times) if times else None}


def _first_files(root: Path) -> Iterator[Path]:
    """`root`, or the files below it. Raises OSError where there is none."""
    if root.is_file():
        yield root
        return
    os.scandir(root).close()  # os.walk says nothing of a folder that is not there
    for folder, _, names in os.walk(root):
        yield from (Path(folder) / name for name in names)
