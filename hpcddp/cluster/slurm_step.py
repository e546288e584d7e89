"""A task of a Slurm step -> its layout, from step-scoped variables. Asks no Slurm, no DNS.

Inside a step the job-scoped names (SLURM_NODELIST, SLURM_JOB_NUM_NODES ...) still describe the
whole allocation, so they are fallbacks only, and only where they agree with the step.
"""

import dataclasses
import ipaddress
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from hpcddp.cluster.devices import with_device
from hpcddp.cluster.hostlist import expand_counts, expand_hostlist, with_suffix
from hpcddp.cluster.job_names import (
    in_step,
    job_key,
    requeue_names,
    requeue_target_or_none,
    restart_count,
)
from hpcddp.cluster.ports import PORT_VARIABLE, with_port
from hpcddp.cluster.variables import first_set, read_count, short, stated
from hpcddp.config.layout import ProcessLayout
from hpcddp.errors import HpcddpError

ADDRESS_VARIABLE = "HPCDDP_MASTER_ADDR"
SUFFIX_VARIABLE = "HPCDDP_HOST_SUFFIX"
_COUNTS = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
_WORLD = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
_HOSTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
_NODES = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")


@dataclass(frozen=True, slots=True)
class Step:
    """Nodes and tasks of one step, and the variable each was read from."""

    hosts: tuple[str, ...]
    counts: tuple[int, ...]  # tasks on each host
    hosts_name: str
    counts_name: str
    world_name: str


def layout_from_slurm(environ: Mapping[str, str]) -> ProcessLayout:
    """The layout of a process that srun started.

    Raises HpcddpError: `not_in_step` outside a step, `inconsistent` where variables contradict
    each other or are missing, and what the values themselves raise.
    """
    if not in_step(environ):
        raise not_in_step(environ)
    step = read_step(environ)
    node_rank = _index(environ, "SLURM_NODEID", len(step.hosts), step.hosts_name)
    local_rank = _index(environ, "SLURM_LOCALID", step.counts[node_rank], step.counts_name)
    address, address_source, odd = _master_address(environ, step)
    layout = ProcessLayout(
        global_rank=_index(environ, "SLURM_PROCID", sum(step.counts), step.world_name),
        world_size=sum(step.counts),
        local_rank=local_rank,
        local_world_size=step.counts[node_rank],
        node_rank=node_rank,
        num_nodes=len(step.hosts),
        hosts=step.hosts,
        master_addr=address,
        requeue_target=requeue_target_or_none(environ),
        launcher="slurm",
        job_key=job_key(environ),
        restart_count=restart_count(environ),
        sources={
            **_sources(step, address_source),
            "requeue_target": " + ".join(requeue_names(environ)),
        },
        warnings=(*odd, *_ignored_port(environ), *_other_total(environ)),
    )
    return with_device(with_port(layout, environ), environ)


def _sources(step: Step, address_source: str) -> dict[str, str]:
    return {
        "global_rank": "SLURM_PROCID",
        "world_size": step.world_name,
        "local_rank": "SLURM_LOCALID",
        "local_world_size": f"{step.counts_name}[SLURM_NODEID]",
        "node_rank": "SLURM_NODEID",
        "num_nodes": step.hosts_name,
        "hosts": step.hosts_name,
        "master_addr": address_source,
    }


def not_in_step(environ: Mapping[str, str], verb: str = "run") -> HpcddpError:
    """The error for python started in a batch script or a salloc shell, with the line to type."""
    total = first_set(environ, "SLURM_NTASKS", "SLURM_NPROCS")
    nodes = first_set(environ, "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
    size = f"--nodes={environ[nodes].strip()} --ntasks-per-node=1" if nodes else "--ntasks=1"
    size = f"--ntasks={environ[total].strip()}" if total else size
    job = requeue_target_or_none(environ)
    return HpcddpError(
        f"This process runs {f'in Slurm job {job}' if job else 'outside Slurm'}, but srun did not "
        "start it (it has no step of its own), so it has no rank. Start it as "
        f"`srun {size} --kill-on-bad-exit=1 python -m hpcddp {verb}`, or set "
        "HPCDDP_LAUNCHER=single for one process on purpose.",
        "not_in_step",
    )


def read_step(environ: Mapping[str, str]) -> Step:
    """Hosts and task counts of the step, checked against each other."""
    hosts_name = _needed(environ, _HOSTS)
    hosts = expand_hostlist(environ[hosts_name], hosts_name)
    _check_num_nodes(environ, hosts_name, len(hosts))
    counts_name, world_name = first_set(environ, *_COUNTS), first_set(environ, *_WORLD)
    if counts_name is None:
        if len(hosts) > 1:
            raise _missing(_COUNTS)
        counts_name = world_name = _needed(environ, _WORLD)
        counts = (read_count(environ, world_name),)
    else:
        counts = expand_counts(environ[counts_name], counts_name)
    step = Step(hosts, counts, hosts_name, counts_name, world_name or f"sum of {counts_name}")
    _check_counts(environ, step, world_name)
    _check_same_job(environ, step)
    return _in_order_of_groups(environ, step)


def _in_order_of_groups(environ: Mapping[str, str], step: Step) -> Step:
    """The step with its nodes as SLURM_NODEID counts them.

    Over several groups of a heterogeneous job that is group by group, while Slurm sorts the node
    list, and the task counts with it, by name (observed in 22.05).
    """
    if not first_set(environ, "SLURM_HET_SIZE"):
        return step
    num_groups = read_count(environ, "SLURM_HET_SIZE")
    names = [f"SLURM_JOB_NODELIST_HET_GROUP_{group}" for group in range(num_groups)]
    groups = [expand_hostlist(environ[name], name) for name in names if first_set(environ, name)]
    place = {host: number for number, host in enumerate(itertools.chain(*groups))}
    if not place.keys() >= set(step.hosts):
        return step
    pairs = sorted(zip(step.hosts, step.counts, strict=True), key=lambda pair: place[pair[0]])
    hosts, counts = zip(*pairs, strict=True)
    return dataclasses.replace(step, hosts=hosts, counts=counts)


def _check_num_nodes(environ: Mapping[str, str], hosts_name: str, num_hosts: int) -> None:
    """Compare what has one scope: a job's node count says nothing about a step's node list."""
    names = _NODES[:1] if hosts_name == _HOSTS[0] else _NODES
    name = first_set(environ, *names)
    if name and read_count(environ, name) != num_hosts:
        raise _contradiction(
            f"{stated(environ, name)}, but {stated(environ, hosts_name)} names {num_hosts}"
        )


def _check_counts(environ: Mapping[str, str], step: Step, world_name: str | None) -> None:
    counts = stated(environ, step.counts_name)
    if len(step.counts) != len(step.hosts):
        hosts = stated(environ, step.hosts_name)
        raise _contradiction(
            f"{counts} covers {len(step.counts)} nodes, but {hosts} names {len(step.hosts)}"
        )
    if world_name and read_count(environ, world_name) != sum(step.counts):
        raise _contradiction(
            f"{stated(environ, world_name)}, but {counts} adds up to {sum(step.counts)} tasks"
        )


def _check_same_job(environ: Mapping[str, str], step: Step) -> None:
    """Refuse step variables that a job submitted from inside another job inherited from it."""
    job_name = first_set(environ, *_HOSTS[1:])
    if step.hosts_name != _HOSTS[0] or not job_name or first_set(environ, "SLURM_HET_SIZE"):
        return  # components of a heterogeneous job may know only their own nodes
    strangers = set(step.hosts).difference(expand_hostlist(environ[job_name], job_name))
    if strangers:
        raise _contradiction(
            f"{stated(environ, step.hosts_name)} names {short(min(strangers))}, which is not in "
            f"{stated(environ, job_name)}: the step variables come from a surrounding job"
        )


def _master_address(environ: Mapping[str, str], step: Step) -> tuple[str, str, tuple[str, ...]]:
    """The rendezvous address, where it comes from, and what looks odd."""
    if first_set(environ, ADDRESS_VARIABLE):
        return _explicit_address(environ, len(step.hosts)), ADDRESS_VARIABLE, ()
    if len(step.hosts) > 1 and _is_arbitrary(environ):
        raise _contradiction(
            "tasks are placed by a host file (--distribution=arbitrary), so the first host of "
            f"{step.hosts_name} need not run rank 0. Set {ADDRESS_VARIABLE} to the host that does"
        )
    address = with_suffix(step.hosts[0], environ.get(SUFFIX_VARIABLE, "").strip())
    source = f"first of {step.hosts_name}"
    if address != step.hosts[0]:
        source += f" + {SUFFIX_VARIABLE}"
    inherited = environ.get("MASTER_ADDR", "").strip()
    if inherited in ("", address, step.hosts[0]):
        return address, source, ()
    return (
        address,
        source,
        (
            f"MASTER_ADDR={short(inherited)} is ignored: rank 0 of this step runs on "
            f"{step.hosts[0]}, so {address} is used. Set {ADDRESS_VARIABLE} to decide yourself.",
        ),
    )


def _ignored_port(environ: Mapping[str, str]) -> tuple[str, ...]:
    if not first_set(environ, "MASTER_PORT") or first_set(environ, PORT_VARIABLE):
        return ()
    return (
        f"{stated(environ, 'MASTER_PORT')} is ignored: the port follows from the job, so that two "
        f"jobs on one node do not meet. Set {PORT_VARIABLE} to decide yourself.",
    )


def _other_total(environ: Mapping[str, str]) -> tuple[str, ...]:
    """srun sets both totals alike, but a job submitted inside a step inherits only the step's."""
    step, job = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    if not first_set(environ, job) or environ.get(step, environ[job]) == environ[job]:
        return ()
    return (
        f"{stated(environ, step)}, but {stated(environ, job)}. If this is the script of a job that "
        "was submitted from inside another one, it has that one's step variables: use srun.",
    )


def _is_arbitrary(environ: Mapping[str, str]) -> bool:
    by_option = environ.get("SLURM_DISTRIBUTION", "").startswith("arbitrary")
    return by_option or first_set(environ, "SLURM_HOSTFILE") is not None


def _explicit_address(environ: Mapping[str, str], num_nodes: int) -> str:
    """HPCDDP_MASTER_ADDR without blanks and brackets: torch wants bare IPv6 addresses."""
    text = environ[ADDRESS_VARIABLE].strip()
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = host == "localhost"
        if any(character.isspace() or character in ":/[]" for character in host):
            raise HpcddpError(
                f"{ADDRESS_VARIABLE}={short(text)!r} is no host name or address. Give the host "
                "alone; the port goes into HPCDDP_MASTER_PORT."
            ) from None
    if is_loopback and num_nodes > 1:
        raise HpcddpError(
            f"{ADDRESS_VARIABLE}={text}, but the step has {num_nodes} nodes and each would talk to "
            "itself. Give an address the other nodes can reach."
        )
    return host


def _index(environ: Mapping[str, str], name: str, size: int, size_name: str) -> int:
    """A rank, checked to be below `size`; where only 0 is possible the variable may be missing."""
    if size == 1 and not first_set(environ, name):
        return 0
    index = read_count(environ, name)
    if index >= size:
        raise _contradiction(f"{name}={index}, but {size_name} allows 0 to {size - 1}")
    return index


def _needed(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    name = first_set(environ, *names)
    if name is None:
        raise _missing(names)
    return name


def _missing(names: tuple[str, ...]) -> HpcddpError:
    return _contradiction(f"SLURM_STEP_ID is set, but none of {', '.join(names)} is")


def _contradiction(what: str) -> HpcddpError:
    return HpcddpError(
        f"The Slurm variables do not fit together: {what}. Start the processes with srun, and do "
        "not export SLURM_* variables by hand.",
        "inconsistent",
    )
