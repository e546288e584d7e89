"""The network of this host as one frozen picture: interfaces and routes. Chooses nothing.

`read_host` takes the picture; everything else is pure, so that a test draws one by hand.
"""

import fnmatch
import ipaddress
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

# Bridges and pairs of containers and virtual machines. Each node has one of the same name, often
# with the same address, so whoever takes it meets itself.
_NEVER = (
    *("lo", "docker*", "podman*", "virbr*", "veth*", "cni*", "cali*", "flannel*", "lxcbr*"),
    "br-" + "[0-9a-f]" * 12,  # Docker's further networks; br-ex of OpenStack is a real one
)
_KINDS = {"1": "ethernet", "32": "infiniband", "772": "loopback"}  # ARPHRD_* of Linux
_SPEED_UNKNOWN = 65535  # what a driver answers that does not know, where it does not say 0
_ROUTE_UP, _ROUTE_REJECT = 0x0001, 0x0200


@dataclass(frozen=True, slots=True)
class Interface:
    """One network interface. `speed_mbit_per_s` is None where the driver does not say."""

    name: str
    addresses: tuple[str, ...] = ()
    is_up: bool = True
    kind: str = "ethernet"  # or infiniband, loopback, other
    speed_mbit_per_s: int | None = None

    @property
    def is_never_used(self) -> bool:
        """True for what leads to no other node."""
        return is_never_used_name(self.name) or self.kind == "loopback"

    @property
    def has_address(self) -> bool:
        """True for more than the fe80:... that every interface gives itself."""
        return any(not ipaddress.ip_address(each).is_link_local for each in self.addresses)

    def is_in(self, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
        """True with an address in this subnet; a default route is none."""
        own = map(ipaddress.ip_address, self.addresses)
        return network.prefixlen > 0 and any(each in network for each in own)

    @property
    def is_usable(self) -> bool:
        """Up, with an address that another node can reach."""
        return self.is_up and not self.is_never_used and any(map(_is_reachable, self.addresses))

    def __str__(self) -> str:
        if self.is_never_used:
            return f"{self.name} (never used between nodes)"
        addresses = [address for address in self.addresses if _is_reachable(address)]
        speed = f", {self.speed_mbit_per_s} Mbit/s" if self.speed_mbit_per_s else ""
        state = f"{'up' if self.is_up else 'down'}{speed}"
        return f"{self.name} ({state}, {' '.join(addresses) or 'no address'})"


@dataclass(frozen=True, slots=True)
class Route:
    """One line of the kernel's table: `network` (`10.0.0.0/8`) is reached over `interface`."""

    interface: str
    network: str
    metric: int = 0


@dataclass(frozen=True, slots=True)
class Host:
    """What one host knows of its network. `nccl_conf` are the variables that NCCL finds in files
    of its own here; one in the environment would win over them.
    """

    name: str
    interfaces: tuple[Interface, ...]
    routes: tuple[Route, ...] = ()
    nccl_conf: frozenset[str] = frozenset()

    @property
    def usable(self) -> tuple[Interface, ...]:
        """The interfaces that may be chosen; `ib2` comes before `ib10`."""
        return tuple(sorted((i for i in self.interfaces if i.is_usable), key=_natural))

    def named(self, name: str) -> Interface | None:
        return next((each for each in self.interfaces if each.name == name), None)

    def owner_of(self, address: str) -> Interface | None:
        """The interface that has this address."""
        return next((each for each in self.interfaces if address in each.addresses), None)

    def towards(self, address: str) -> Interface | None:
        """The interface over which the kernel sends to `address`."""
        return next(iter(self.ways_to(address)), None)

    def ways_to(self, address: str) -> list[Interface]:
        """The interface over which the kernel sends to `address` (longest prefix, least metric),
        then the others that are in the same subnet as `address`.
        """
        there = ipaddress.ip_address(address)
        networks = [(ipaddress.ip_network(route.network), route) for route in self.routes]
        ways = [(network, route) for network, route in networks if there in network]
        if not ways:
            return []
        ways.sort(key=lambda way: (-way[0].prefixlen, way[1].metric))
        subnet = ways[0][0]
        named = (self.named(way.interface) for network, way in ways if network == subnet)
        first, *others = dict.fromkeys(named)
        beside = [each for each in others if each and each.is_in(subnet)]
        return [first, *beside] if first else beside

    def listing(self) -> str:
        """The interfaces for a message; those of containers are only worth their names."""
        shown = sorted(self.interfaces, key=lambda each: (each.is_never_used, *_natural(each)))
        more = f" and {len(shown) - 12} more" if len(shown) > 12 else ""
        return ", ".join(map(str, shown[:12])) + more if shown else "none"


def is_never_used_name(name: str) -> bool:
    """True for the names of loopback and of what containers and virtual machines have."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in _NEVER)


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _is_reachable(address: str) -> bool:
    """False for loopback and for what every interface gives itself (fe80:..., 169.254...)."""
    parsed = ipaddress.ip_address(address)
    return not (parsed.is_loopback or parsed.is_link_local)


def _natural(interface: Interface) -> tuple[list[tuple[int, str]]]:
    parts = re.findall(r"\d+|\D+", interface.name)
    return ([(int(part), "") if part.isdigit() else (-1, part) for part in parts],)


def read_host(
    environ: Mapping[str, str], sys_root: Path = Path("/sys"), proc_root: Path = Path("/proc")
) -> Host:
    """The picture of this host as it is now."""
    states, interfaces = psutil.net_if_stats(), []
    for name, entries in psutil.net_if_addrs().items():
        families = (socket.AF_INET, socket.AF_INET6)  # IPv4 first, as resolved names are
        addresses = [
            e.address.partition("%")[0] for f in families for e in entries if e.family == f
        ]
        state = states.get(name)
        interfaces.append(
            Interface(
                name,
                tuple(addresses),
                is_up=state is not None and state.isup,
                kind=interface_kind(sys_root / "class/net" / name),
                speed_mbit_per_s=_speed(state.speed) if state else None,
            )
        )
    routes = tuple(read_routes(proc_root / "net"))
    return Host(socket.gethostname(), tuple(interfaces), routes, read_nccl_conf(environ))


def read_nccl_conf(environ: Mapping[str, str], etc: Path = Path("/etc")) -> frozenset[str]:
    """The variables that the site's and the user's nccl.conf set, where there is one."""
    own = os.path.expanduser(environ.get("NCCL_CONF_FILE") or "~/.nccl.conf")
    lines = [line for path in (Path(own), etc / "nccl.conf") for line in _lines(path)]
    names = (line.partition("=")[0].strip() for line in lines if "=" in line)
    return frozenset(name for name in names if name.startswith("NCCL_"))


def _speed(mbit_per_s: int) -> int | None:
    return mbit_per_s if 0 < mbit_per_s < _SPEED_UNKNOWN else None


def interface_kind(folder: Path) -> str:
    """`ethernet`, `infiniband`, `loopback` or `other`, by the interface's folder in sysfs."""
    try:
        return _KINDS.get((folder / "type").read_text().strip(), "other")
    except OSError:
        return "ethernet"


def read_routes(folder: Path) -> Iterator[Route]:
    """The routes of /proc/net, IPv4 first; none where there is no such file."""
    for line in _lines(folder / "route")[1:]:
        name, network, _, flags, _, _, metric, mask, *_ = line.split()
        if _is_live(flags):
            bits = bin(int(mask, 16)).count("1")
            yield Route(name, f"{_ipv4(network)}/{bits}", int(metric))
    for line in _lines(folder / "ipv6_route"):
        network, bits, _, _, _, metric, _, _, flags, name = line.split()
        if _is_live(flags) and name != "lo":
            address = ipaddress.IPv6Address(int(network, 16))
            yield Route(name, f"{address}/{int(bits, 16)}", int(metric, 16))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _is_live(flags: str) -> bool:
    return int(flags, 16) & (_ROUTE_UP | _ROUTE_REJECT) == _ROUTE_UP


def _ipv4(hexadecimal: str) -> ipaddress.IPv4Address:
    """The kernel prints the number as the processor holds it."""
    return ipaddress.IPv4Address(int(hexadecimal, 16).to_bytes(4, sys.byteorder))
