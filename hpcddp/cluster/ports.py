"""The rendezvous port of a job, equal on every rank without talking. Opens no socket."""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path

from hpcddp.cluster.variables import first_set, short
from hpcddp.config.layout import ProcessLayout
from hpcddp.errors import HpcddpError

PORT_VARIABLE = "HPCDDP_MASTER_PORT"
NUM_CANDIDATES = 8
# A fixed block, because hosts with different settings must derive the same port. It ends below
# 32768, where Linux by default starts to hand out ports to clients. The number of ports is a
# prime, so that every stride visits all of them.
_FIRST_PORT, _NUM_PORTS = 20_000, 11_987
_LINUX_DEFAULT = (32_768, 60_999)
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def choose_ports(job_key: str, restart_count: int, count: int = NUM_CANDIDATES) -> tuple[int, ...]:
    """`count` distinct ports in the order in which all ranks try them; the first is the port.

    Every start of a job continues the job's own sequence, so that a requeued job shares no port
    with what may be left of its previous life.
    """
    digest = hashlib.sha256(job_key.encode()).digest()
    start = int.from_bytes(digest[:8], "big")
    stride = 1 + int.from_bytes(digest[8:16], "big") % (_NUM_PORTS - 1)
    first = restart_count * count
    places = range(first, first + count)
    return tuple(_FIRST_PORT + (start + place * stride) % _NUM_PORTS for place in places)


def explicit_port(text: str, name: str = PORT_VARIABLE) -> int:
    """A port somebody asked for; raises HpcddpError `bad_value` unless it is 1024 to 65535."""
    stripped = text.strip()
    if stripped.isascii() and stripped.isdigit() and 1024 <= int(stripped[:9]) <= 65_535:
        return int(stripped)
    raise HpcddpError(
        f"{name}={short(text)!r} is no usable port. Give a number from 1024 to 65535."
    )


def with_port(layout: ProcessLayout, environ: Mapping[str, str]) -> ProcessLayout:
    """`layout` with its port: HPCDDP_MASTER_PORT, else derived from job and restart count."""
    if first_set(environ, PORT_VARIABLE):
        ports, source = (explicit_port(environ[PORT_VARIABLE]),), PORT_VARIABLE
    else:
        ports = choose_ports(layout.job_key, layout.restart_count)
        source = f"hash of job {layout.job_key}, restart {layout.restart_count}"
    return dataclasses.replace(
        layout,
        master_port=ports[0],
        more_ports=ports[1:],
        sources={**layout.sources, "master_port": source},
    )


def ephemeral_range(path: Path = _RANGE_FILE) -> tuple[int, int]:
    """First and last port this host hands out to clients; Linux's default if unreadable."""
    try:
        low, high = map(int, path.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return _LINUX_DEFAULT
    return low, high


def port_warnings(layout: ProcessLayout, ephemeral: tuple[int, int]) -> tuple[str, ...]:
    """A sentence if a client of this host may be using the rendezvous port by chance."""
    low, high = ephemeral
    if not low <= layout.master_port <= high:
        return ()
    return (
        f"Port {layout.master_port} lies in {low}-{high}, which this host hands out to clients "
        f"(net.ipv4.ip_local_port_range), so it may be taken by chance; {PORT_VARIABLE} sets "
        "another one.",
    )
