"""Names, addresses and files of one test cluster. Touches no process and no network."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

LOGIN = "login"
SUSPENDING = "preempt-suspend"
# Reserved for benchmarks between hosts (RFC 2544): no home, office or VPN network uses it.
_SUBNETS = [f"198.{second}.{third}" for second in (18, 19) for third in range(256)]
_LOGIN_HOST, _OUTER_HOST = 250, 254
MAX_NODES = _LOGIN_HOST - 1
MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")  # where control groups v1 are mounted
_MAX_SOCKET_PATH = 107  # Linux: 108 bytes with the closing zero
_LONGEST_SOCKET = "slurmd/gpu-249/gpu-249_9999999.4294967295"  # one per job step


class ClusterError(Exception):
    """Bringing the cluster up or down failed for a reason that the user can act on."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for."""

    nodes: int
    cpus: int
    gpus: int
    memory_mib: int
    memory_limits: bool
    suspends: bool
    rate: str | None
    slurmd_timeout_s: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about one cluster that follows from its state directory and its options."""

    state_dir: Path
    options: Options
    subnet: str

    @property
    def nodes(self) -> list[str]:
        """Names with a dash and a leading zero, which naive host list code gets wrong."""
        return [f"gpu-{number:02d}" for number in range(1, self.options.nodes + 1)]

    @property
    def addresses(self) -> dict[str, str]:
        """Address of the login host and of every node."""
        numbered = {name: f"{self.subnet}.{at}" for at, name in enumerate(self.nodes, start=1)}
        return {LOGIN: f"{self.subnet}.{_LOGIN_HOST}", **numbered}

    @property
    def outer_address(self) -> str:
        """Address under which this machine itself takes part."""
        return f"{self.subnet}.{_OUTER_HOST}"

    @property
    def link(self) -> str:
        """The one network interface that the machine sees."""
        return f"tc-{_digest(self.state_dir)[:8]}"

    @property
    def memory_group(self) -> Path | None:
        """Control group that all nodes' jobs are in, where their memory is limited."""
        return MEMORY_GROUPS / self.link if self.options.memory_limits else None

    @property
    def partitions(self) -> list[str]:
        """Names in slurm.conf.in, in its order, and that of `up --suspend`."""
        template = (Path(__file__).parent / "slurm.conf.in").read_text()
        found = re.findall(r"^PartitionName=(?!DEFAULT)(\S+)", template, re.MULTILINE)
        return [*found, *([SUSPENDING] if self.options.suspends else [])]

    @property
    def conf(self) -> Path:
        return self.state_dir / "etc" / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.state_dir / "munge" / "socket"


def make_plan(state_dir: Path, options: Options, routes: str) -> Plan:
    """Plan a cluster in `state_dir` on a subnet that does not occur in `routes` (`ip route`)."""
    if not 1 <= options.nodes <= MAX_NODES:
        raise ClusterError(f"--nodes {options.nodes}: need 1 to {MAX_NODES}")
    if options.cpus < 1:
        raise ClusterError(f"--cpus {options.cpus}: need at least 1")
    if options.rate:
        burst_bytes(options.rate)  # complains before anything is started
    if options.memory_limits and not (MEMORY_GROUPS / "memory.limit_in_bytes").exists():
        raise ClusterError(f"--memory-limits: no memory control groups (v1) in {MEMORY_GROUPS}")
    plan = Plan(state_dir, options, _free_subnet(state_dir, routes))
    longest = len(str(state_dir / _LONGEST_SOCKET))
    if longest > _MAX_SOCKET_PATH:
        raise ClusterError(
            f"--dir {state_dir}: too long for the Unix sockets below it "
            f"({longest} > {_MAX_SOCKET_PATH} characters); use a shorter path"
        )
    return plan


def burst_bytes(rate: str) -> int:
    """Token bucket for a `tc` rate such as `1gbit`: 4 ms of traffic, one kernel tick at 250 Hz.

    Smaller buckets never reach the rate; larger ones let short messages through for free.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(k|m|g)bit", rate)
    if not match:
        raise ClusterError(f"--rate {rate}: need a number with kbit, mbit or gbit, e.g. 1gbit")
    bits_per_s = float(match[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[match[2]]
    return max(int(bits_per_s / 8 * 0.004), 64 * 1024)


def _free_subnet(state_dir: Path, routes: str) -> str:
    first = int(_digest(state_dir), 16) % len(_SUBNETS)
    for subnet in _SUBNETS[first:] + _SUBNETS[:first]:
        if f"{subnet}." not in routes:
            return subnet
    raise ClusterError("no free subnet in 198.18.0.0/15; bring another test cluster down first")


def _digest(state_dir: Path) -> str:
    return hashlib.sha256(str(state_dir).encode()).hexdigest()
