"""A worker of torchrun -> its layout. Torchrun's own values win over Slurm's. Knows no torch."""

from collections.abc import Mapping

from hpcddp.cluster.devices import with_device
from hpcddp.cluster.hostlist import expand_counts, expand_hostlist
from hpcddp.cluster.job_names import (
    in_job,
    in_step,
    job_key,
    requeue_names,
    requeue_target_or_none,
    restart_count,
)
from hpcddp.cluster.ports import explicit_port
from hpcddp.cluster.variables import first_set, read_count
from hpcddp.config.layout import ProcessLayout
from hpcddp.errors import HpcddpError


def is_torchrun(environ: Mapping[str, str]) -> bool:
    """True in a process that torchrun started; RANK alone may be a leftover of anything."""
    return first_set(environ, "TORCHELASTIC_RUN_ID") is not None and "RANK" in environ


def layout_from_torchrun(environ: Mapping[str, str]) -> ProcessLayout:
    """The layout of a torchrun worker; torchrun has already agreed on address and port.

    Raises HpcddpError `inconsistent` where a variable is missing or a rank is out of range, or
    where several torchruns were started on one node.
    """
    _refuse_torchrun_per_task(environ)
    world_size = read_count(environ, "WORLD_SIZE")
    local_world_size = read_count(environ, "LOCAL_WORLD_SIZE")
    num_nodes, num_nodes_source = _num_nodes(environ, world_size, local_world_size)
    node_rank, node_rank_source = _node_rank(environ, num_nodes, local_world_size)
    hosts, hosts_source = _hosts(environ, num_nodes)
    in_slurm, elastic_restarts = in_job(environ), _elastic_restarts(environ)
    layout = ProcessLayout(
        global_rank=_rank(environ, "RANK", world_size),
        world_size=world_size,
        local_rank=_rank(environ, "LOCAL_RANK", local_world_size),
        local_world_size=local_world_size,
        node_rank=node_rank,
        num_nodes=num_nodes,
        hosts=hosts,
        master_addr=environ.get("MASTER_ADDR", "").strip() or "127.0.0.1",
        master_port=explicit_port(environ.get("MASTER_PORT", "29500"), "MASTER_PORT"),
        requeue_target=requeue_target_or_none(environ),
        launcher="torchrun",
        job_key=job_key(environ) if in_slurm else environ["TORCHELASTIC_RUN_ID"].strip(),
        # Slurm's count where there is one: torchrun's own starts again at 0 after a requeue.
        restart_count=restart_count(environ) if in_slurm else elastic_restarts,
        elastic_restarts=elastic_restarts,
        sources={
            "global_rank": "RANK",
            "world_size": "WORLD_SIZE",
            "local_rank": "LOCAL_RANK",
            "local_world_size": "LOCAL_WORLD_SIZE",
            "node_rank": node_rank_source,
            "num_nodes": num_nodes_source,
            "hosts": hosts_source,
            "master_addr": "MASTER_ADDR",
            "master_port": "MASTER_PORT",
            "requeue_target": " + ".join(requeue_names(environ)),
        },
    )
    return with_device(layout, environ)


def _refuse_torchrun_per_task(environ: Mapping[str, str]) -> None:
    """One torchrun per node is right; one per task makes them fight for port and GPUs."""
    name = "SLURM_STEP_TASKS_PER_NODE"
    if not (in_step(environ) and first_set(environ, name)):
        return
    most = max(expand_counts(environ[name], name))
    if most > 1:
        raise HpcddpError(
            f"srun started {most} torchruns on one node ({name}={environ[name]}). Use "
            "`srun --ntasks-per-node=1 torchrun ...`, or drop torchrun and start one task per GPU.",
            "inconsistent",
        )


def _rank(environ: Mapping[str, str], name: str, size: int) -> int:
    rank = read_count(environ, name)
    if rank >= size:
        raise HpcddpError(
            f"{name}={rank}, but only 0 to {size - 1} are possible. Let torchrun set these "
            "variables.",
            "inconsistent",
        )
    return rank


def _num_nodes(
    environ: Mapping[str, str], world_size: int, local_world_size: int
) -> tuple[int, str]:
    name = first_set(environ, "GROUP_WORLD_SIZE", "SLURM_STEP_NUM_NODES")
    if name:
        return read_count(environ, name), name
    return -(-world_size // max(local_world_size, 1)), "WORLD_SIZE / LOCAL_WORLD_SIZE"


def _node_rank(
    environ: Mapping[str, str], num_nodes: int, local_world_size: int
) -> tuple[int, str]:
    name = first_set(environ, "GROUP_RANK", "SLURM_NODEID")
    if name:
        return _rank(environ, name, num_nodes), name
    return read_count(environ, "RANK") // max(local_world_size, 1), "RANK / LOCAL_WORLD_SIZE"


def _hosts(environ: Mapping[str, str], num_nodes: int) -> tuple[tuple[str, ...], str]:
    """Slurm's hosts where they fit, else placeholders: torchrun does not name its nodes.

    Its nodes may have another order than Slurm's, because they are numbered as they arrive.
    """
    name = first_set(environ, "SLURM_STEP_NODELIST")
    if name:
        hosts = expand_hostlist(environ[name], name)
        if len(hosts) == num_nodes:
            return hosts, f"{name} (order may differ)"
    return tuple(f"node{index}" for index in range(num_nodes)), "torchrun does not name hosts"


def _elastic_restarts(environ: Mapping[str, str]) -> int:
    name = first_set(environ, "TORCHELASTIC_RESTART_COUNT")
    return read_count(environ, name) if name else 0
