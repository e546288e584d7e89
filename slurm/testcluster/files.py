"""Writes what the daemons of a test cluster read: configuration, host names, key, GPU devices."""

from __future__ import annotations

import os
import secrets
import socket
import stat
from pathlib import Path
from string import Template

from plan import LOGIN, SUSPENDING, Plan

_HERE = Path(__file__).parent
_CGROUP_CONF = "CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\n"
_NULL_DEVICE = os.makedev(1, 3)


def write_files(plan: Plan) -> None:
    """Fill the state directory; it exists and is empty but for the record."""
    for folder in ("etc", "munge", "dev", "log", "slurmctld", "slurmd"):
        (plan.state_dir / folder).mkdir()
    # munged wants its socket reachable by everybody, and its key by nobody else.
    (plan.state_dir / "munge").chmod(0o711)
    _write_munge_key(plan.state_dir / "munge" / "key")
    for gpu in range(plan.options.gpus):
        os.mknod(plan.state_dir / "dev" / f"gpu{gpu}", 0o666 | stat.S_IFCHR, _NULL_DEVICE)
    plan.conf.write_text(slurm_conf(plan))
    (plan.state_dir / "etc" / "gres.conf").write_text(gres_conf(plan))
    if plan.memory_group:
        (plan.state_dir / "etc" / "cgroup.conf").write_text(_CGROUP_CONF)
        plan.memory_group.mkdir()
    (plan.state_dir / "etc" / "hosts").write_text(hosts(plan))


def slurm_conf(plan: Plan) -> str:
    """Return the text of slurm.conf."""
    options = plan.options
    return Template((_HERE / "slurm.conf.in").read_text()).substitute(
        state_dir=plan.state_dir,
        munge_socket=plan.munge_socket,
        login_address=plan.addresses[LOGIN],
        slurmd_timeout_s=options.slurmd_timeout_s,
        task_plugin="task/cgroup" if options.memory_limits else "task/none",
        cpus=options.cpus,
        memory_mib=options.memory_mib,
        memory_mib_per_cpu=options.memory_mib // options.cpus,
        preempt_mode="REQUEUE,GANG" if options.suspends else "REQUEUE",
        suspending=f"PartitionName={SUSPENDING} PreemptMode=SUSPEND" if options.suspends else "",
        node_list=f"gpu-[01-{options.nodes:02d}]",
        node_addresses=f"{plan.subnet}.[1-{options.nodes}]",
        node_gres=f"Gres=gpu:a100:{options.gpus}" if options.gpus else "",
    )


def gres_conf(plan: Plan) -> str:
    """Return the text of gres.conf: devices that look like GPUs to Slurm and to nothing else."""
    last = plan.options.gpus - 1
    lines = ["AutoDetect=off"]
    if last >= 0:
        lines.append(f"Name=gpu Type=a100 File={plan.state_dir}/dev/gpu[0-{last}]")
    return "\n".join(lines) + "\n"


def hosts(plan: Plan) -> str:
    """Return the /etc/hosts of every host; this machine's name leads to its end of the link."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
    lines += [f"{address} {name}" for name, address in plan.addresses.items()]
    lines.append(f"{plan.outer_address} {socket.gethostname()}")
    return "\n".join(lines) + "\n"


def _write_munge_key(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_bytes(128))
