"""Hosts made of Linux namespaces and the network between them. Knows nothing about Slurm."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from plan import LOGIN, ClusterError, Plan, burst_bytes
from processes import Process, daemon_environment, identify, inside

_HERE = Path(__file__).parent
# What Docker leaves on a real node: up, with an address that every node has. Software that
# takes the first interface, or advertises all of them, meets itself here.
_DECOY = """\
link add docker0 type bridge
link add veth-box type veth peer name eth0-box
link set veth-box master docker0 up
link set eth0-box up
address add 172.17.0.1/16 dev docker0
link set docker0 up
"""


def open_host(plan: Plan, name: str, put_on_record: Callable[[Process], None]) -> None:
    """Create the namespaces of one host; record the process that keeps them open."""
    command = [str(_HERE / "become-host"), name, str(plan.state_dir), str(plan.memory_group or "")]
    # Mounts made later on the machine appear in the host, never the other way round.
    unshare = ["unshare", "--net", "--uts", "--mount", "--propagation", "slave"]
    child = subprocess.Popen(
        [*unshare, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=daemon_environment(),
        cwd="/",
        start_new_session=True,
        text=True,
    )
    if child.stdout.readline() != "ready\n":
        raise ClusterError(f"host {name}: {child.stderr.read().strip()}")
    put_on_record(identify(child.pid))
    print("stay", file=child.stdin, flush=True)


def connect(plan: Plan, hosts: dict[str, Process]) -> None:
    """Join all hosts to a switch inside the login host, and this machine by one link.

    The switch stays out of this machine's own namespace, so that its firewall (Docker drops
    forwarded traffic, bridged traffic included) does not come between the nodes.
    """
    login = hosts[LOGIN]
    run(["ip", *f"link add {plan.link} type veth peer name uplink netns {login.pid}".split()])
    run(["ip", *f"address add {plan.outer_address}/24 dev {plan.link}".split()])
    run(["ip", "link", "set", plan.link, "up"])
    _ip(login, _switch(plan, hosts))
    for name in plan.nodes:
        address = f"address add {plan.addresses[name]}/24 dev eth0"
        _ip(hosts[name], f"{_DECOY}{address}\nlink set eth0 up")
    if plan.options.rate:
        _limit(plan, hosts, plan.options.rate)


def disconnect(link: str) -> None:
    """Remove this machine's end of a cluster's link, if it is still there."""
    subprocess.run(["ip", "link", "delete", link], capture_output=True, check=False)


def run(command: list[str]) -> str:
    """Run a command to its end; return its output; raise ClusterError with what it said."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=daemon_environment()
    )
    if done.returncode:
        raise ClusterError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _switch(plan: Plan, hosts: dict[str, Process]) -> str:
    lines = ["link add switch type bridge", "link set uplink master switch up"]
    for name in plan.nodes:
        port = f"to-{name}"
        lines.append(f"link add {port} type veth peer name eth0 netns {hosts[name].pid}")
        lines.append(f"link set {port} master switch up")
    lines += [f"address add {plan.addresses[LOGIN]}/24 dev switch", "link set switch up"]
    return "\n".join(lines)


def _limit(plan: Plan, hosts: dict[str, Process], rate: str) -> None:
    """Give every node's link a speed: its own end limits sending, the switch's end receiving."""
    shape = f"root tbf rate {rate} burst {burst_bytes(rate)} latency 50ms"
    for name in plan.nodes:
        _tc(hosts[name], "eth0", shape)
        _tc(hosts[LOGIN], f"to-{name}", shape)


def _tc(host: Process, interface: str, shape: str) -> None:
    run(inside(host, ["tc", "qdisc", "add", "dev", interface, *shape.split()]))


def _ip(host: Process, batch: str) -> None:
    command = inside(host, ["ip", "-batch", "-"])
    done = subprocess.run(command, input=batch, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"cannot set up the network: {done.stderr.strip()}")
