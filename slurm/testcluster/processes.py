"""Starts processes that outlive us and finds them again without mistaking strangers for them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """A process id with its start time: process ids are reused, the pair is not."""

    pid: int
    start_ticks: int

    def is_alive(self) -> bool:
        return start_ticks(self.pid) == self.start_ticks

    def namespace(self, kind: str) -> str:
        """Return the path of its namespace of one kind: net, uts or mnt."""
        return f"/proc/{self.pid}/ns/{kind}"


def spawn(command: list[str], log: Path) -> Process:
    """Start a process of its own session that writes to `log`, and return who it is."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=daemon_environment(),
            cwd="/",
            start_new_session=True,
        )
    return identify(child.pid)


def identify(pid: int) -> Process:
    """Return the process that has this id now."""
    return Process(pid, start_ticks(pid) or 0)


def inside(host: Process, command: list[str]) -> list[str]:
    """Return `command` prefixed so that it runs in the namespaces of `host`.

    `ip netns exec` would mount a new /sys, without the control groups.
    """
    net, uts, mnt = (host.namespace(kind) for kind in ("net", "uts", "mnt"))
    return ["nsenter", f"--net={net}", f"--uts={uts}", f"--mount={mnt}", *command]


def daemon_environment() -> dict[str, str]:
    """Return all that a daemon needs of our environment; the rest is nobody's business."""
    return {"PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"}


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None without a live process."""
    try:
        # The name in parentheses may hold blanks and parentheses; start time is field 22.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def kill_inhabitants(
    hosts: list[Process], started: list[Process], timeout_s: float = 20
) -> list[int]:
    """Kill everything in the network namespaces of the `started` processes; return who is left.

    A host's own process ends last: as long as it lives the namespace cannot become a stranger's.
    """
    living = [process for process in started if process.is_alive()]
    homes = {_network_of(process.pid) for process in living} - {_network_of("self"), None}
    keepers = [host.pid for host in hosts if host in living]
    deadline = time.monotonic() + timeout_s
    while guests := [pid for pid in _pids_in(homes) if pid not in keepers]:
        if time.monotonic() > deadline:
            return guests
        _kill(guests)
    _kill(keepers)
    return []


def _pids_in(networks: set[int | None]) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if _network_of(pid) in networks]


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    time.sleep(0.05)


def _network_of(pid: int | str) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:  # gone, or a zombie
        return None
