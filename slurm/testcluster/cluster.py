"""Brings a whole test cluster up and down."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import network
import record as records
from files import write_files
from plan import LOGIN, MEMORY_GROUPS, ClusterError, Options, Plan, make_plan
from processes import Process, daemon_environment, inside, kill_inhabitants, spawn
from record import Daemon, Host, Record

_TOOLS = ["slurmctld", "slurmd", "sinfo", "munged", "ip", "tc", "nsenter", "unshare", "hostname"]
_UP_TIMEOUT_S = 60
_signals_seen: list[int] = []


def note_signals() -> None:
    """From now on SIGINT and SIGTERM end `bring_up` at a point where everything is on record."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: _signals_seen.append(number))


def bring_up(state_dir: Path, options: Options) -> Record:
    """Start a cluster; return its record once all nodes are idle. Leaves nothing on failure."""
    _check_machine()
    # Other users read the configuration and the socket, whatever root's own umask.
    os.umask(0o022)
    plan = make_plan(state_dir, options, network.run(["ip", "-4", "route", "show"]))
    record = records.claim(plan)
    try:
        write_files(plan)
        _open_hosts(plan, record)
        network.connect(plan, {name: host.process for name, host in record.hosts.items()})
        _start_daemons(plan, record)
        _wait_until_idle(plan)
    except BaseException:
        tear_down(state_dir)
        raise
    return record


def tear_down(state_dir: Path) -> bool:
    """Stop and remove exactly what was started there; False if there is no cluster (any more)."""
    if not records.exists(state_dir):
        return False
    if not records.is_blank(state_dir):
        _stop(records.load(state_dir))
    records.remove(state_dir)
    return True


def _stop(record: Record) -> None:
    hosts = [host.process for host in record.hosts.values()]
    if left := kill_inhabitants(hosts, record.processes()):
        raise ClusterError(f"processes {left} do not die; {record.state_dir} stays")
    network.disconnect(record.link)
    _remove_groups(MEMORY_GROUPS / record.link)


def _remove_groups(top: Path) -> None:
    """Remove a control group and those below it; there are none without `--memory-limits`."""
    for folder, _, _ in os.walk(top, topdown=False):
        os.rmdir(folder)


def _check_machine() -> None:
    if os.geteuid() != 0:
        raise ClusterError("needs root, for namespaces and device files")
    path = daemon_environment()["PATH"]
    missing = [tool for tool in _TOOLS if not shutil.which(tool, path=path)]
    if missing:
        raise ClusterError(
            f"not found: {', '.join(missing)}. On Debian: apt install slurm-wlm munge iproute2"
        )


def _open_hosts(plan: Plan, record: Record) -> None:
    for name in plan.addresses:
        network.open_host(plan, name, partial(_add_host, plan, record, name))
        _stop_if_signalled()


def _add_host(plan: Plan, record: Record, name: str, process: Process) -> None:
    record.hosts[name] = Host(plan.addresses[name], process)
    record.save()


def _start_daemons(plan: Plan, record: Record) -> None:
    munge, conf = plan.state_dir / "munge", str(plan.conf)
    # --force: below a private directory (that of a test run, say) nobody else reaches the socket.
    munged = ["munged", "--foreground", "--force", f"--socket={plan.munge_socket}"]
    munged += [f"--{file}-file={munge / file}" for file in ("key", "pid", "seed")]
    _start(record, LOGIN, "munged", munged)
    _start(record, LOGIN, "slurmctld", ["slurmctld", "-D", "-f", conf])
    for name in plan.nodes:
        _start(record, name, f"slurmd-{name}", ["slurmd", "-D", "-f", conf])


def _start(record: Record, host: str, daemon: str, command: list[str]) -> None:
    log = Path(record.state_dir) / "log" / f"{daemon}.log"
    command = inside(record.hosts[host].process, command)
    record.daemons[daemon] = Daemon(command, spawn(command, log))
    record.save()
    _stop_if_signalled()


def _wait_until_idle(plan: Plan) -> None:
    sinfo = ["sinfo", "--noheader", "--partition=main", "--Node", "--format=%N %T"]
    environ = daemon_environment() | {"SLURM_CONF": str(plan.conf)}
    wanted = {f"{name} idle" for name in plan.nodes}
    deadline = time.monotonic() + _UP_TIMEOUT_S
    while True:
        seen = subprocess.run(sinfo, env=environ, capture_output=True, text=True, check=False)
        if set(seen.stdout.splitlines()) == wanted:
            return
        if time.monotonic() > deadline:
            raise ClusterError(f"nodes not idle: {seen.stdout}{seen.stderr}\n{_log_tails(plan)}")
        _stop_if_signalled()
        time.sleep(0.1)


def _stop_if_signalled() -> None:
    if _signals_seen:
        raise ClusterError(f"stopped by {signal.Signals(_signals_seen[0]).name}")


def _log_tails(plan: Plan) -> str:
    logs = sorted((plan.state_dir / "log").glob("*.log"))
    return "\n".join(f"--- {log.name}\n{log.read_text()[-1500:]}" for log in logs)
