"""The process environment -> who am I: picks the reader that fits. Knows no torch, no DNS."""

import dataclasses
import os
from collections.abc import Callable, Mapping

from hpcddp.cluster.devices import with_device
from hpcddp.cluster.job_names import (
    STEP_ID_NAMES,
    in_job,
    in_step,
    job_key,
    requeue_names,
    requeue_target_or_none,
    restart_count,
)
from hpcddp.cluster.ports import port_warnings, with_port
from hpcddp.cluster.slurm_step import layout_from_slurm, not_in_step
from hpcddp.cluster.torchrun import is_torchrun, layout_from_torchrun
from hpcddp.cluster.variables import ATTEMPT_VARIABLE, LOCAL_RESTARTS, first_set, read_count
from hpcddp.config.layout import ProcessLayout
from hpcddp.errors import HpcddpError

LAUNCHER_VARIABLE = "HPCDDP_LAUNCHER"


def layout_from_environ(
    environ: Mapping[str, str], *, ephemeral: tuple[int, int] | None = None
) -> ProcessLayout:
    """The layout of this process: HPCDDP_LAUNCHER decides, else torchrun, local, Slurm, single.

    `ephemeral` is the host's range of client ports (`ports.ephemeral_range()`); with it a port
    inside is warned about. Raises HpcddpError with one of the codes not_in_step, inconsistent,
    bad_hostlist, bad_value, gpu_mismatch, no_gpu.
    """
    launcher, source = choose_launcher(environ)
    layout = _READERS[launcher](environ)
    odd = port_warnings(layout, ephemeral) if ephemeral else ()
    numbered = ATTEMPT_VARIABLE in environ
    return dataclasses.replace(
        layout,
        attempt=read_count(environ, ATTEMPT_VARIABLE) if numbered else layout.restart_count,
        sources={**layout.sources, "launcher": source},
        warnings=layout.warnings + odd,
    )


def choose_launcher(environ: Mapping[str, str]) -> tuple[str, str]:
    """Who started this process, and the variable that says so."""
    wish = environ.get(LAUNCHER_VARIABLE, "").strip()
    if wish and wish not in _READERS:
        raise HpcddpError(
            f"{LAUNCHER_VARIABLE}={wish!r} is unknown. Use one of {', '.join(_READERS)}."
        )
    # The local executor sets HPCDDP_LAUNCHER for its processes; a torchrun below it is nearer.
    if wish and not (wish == "local" and is_torchrun(environ)):
        return wish, LAUNCHER_VARIABLE
    if is_torchrun(environ):
        return "torchrun", "TORCHELASTIC_RUN_ID"
    if first_set(environ, "HPCDDP_GLOBAL_RANK"):
        return "local", "HPCDDP_GLOBAL_RANK"
    if in_step(environ):
        return "slurm", first_set(environ, *STEP_ID_NAMES) or ""
    if in_job(environ):
        raise not_in_step(environ)
    return "single", "no launcher's variables"


def layout_from_local(environ: Mapping[str, str]) -> ProcessLayout:
    """The layout of a process of the local executor, which emulates nodes on this machine.

    The nodes are called node0, node1 ...; they all meet on 127.0.0.1. Raises HpcddpError
    `inconsistent` where a variable is missing or a rank is out of range.
    """
    sizes = {name: read_count(environ, f"HPCDDP_{name.upper()}") for name in _LOCAL_SIZES}
    ranks = {name: _local_rank(environ, name, sizes[_LOCAL_RANKS[name]]) for name in _LOCAL_RANKS}
    layout = ProcessLayout(
        **sizes,
        **ranks,
        hosts=tuple(f"node{index}" for index in range(sizes["num_nodes"])),
        master_addr="127.0.0.1",
        launcher="local",
        job_key=environ.get("HPCDDP_JOB_ID", "").strip() or "local",
        restart_count=read_count(environ, LOCAL_RESTARTS),
        sources={name: f"HPCDDP_{name.upper()}" for name in (*sizes, *ranks)}
        | {"hosts": "HPCDDP_NUM_NODES", "master_addr": "all on this machine"},
    )
    return with_device(with_port(layout, environ), environ)


_LOCAL_SIZES = ("world_size", "local_world_size", "num_nodes")
_LOCAL_RANKS = {
    "global_rank": "world_size",
    "local_rank": "local_world_size",
    "node_rank": "num_nodes",
}


def _local_rank(environ: Mapping[str, str], name: str, size: int) -> int:
    variable = f"HPCDDP_{name.upper()}"
    rank = read_count(environ, variable)
    if rank >= size:
        raise HpcddpError(
            f"{variable}={rank}, but HPCDDP_{_LOCAL_RANKS[name].upper()}={size} allows 0 to "
            f"{size - 1}. Let `python -m hpcddp submit --cluster local` set these variables.",
            "inconsistent",
        )
    return rank


def process_environment(
    environ: Mapping[str, str], *, nodes: int, processes_per_node: int, global_rank: int
) -> dict[str, str]:
    """`environ` plus the place of one process, as `layout_from_local` reads it."""
    node_rank, local_rank = divmod(global_rank, processes_per_node)
    place = {
        LAUNCHER_VARIABLE: "local",
        "HPCDDP_GLOBAL_RANK": global_rank,
        "HPCDDP_WORLD_SIZE": nodes * processes_per_node,
        "HPCDDP_LOCAL_RANK": local_rank,
        "HPCDDP_LOCAL_WORLD_SIZE": processes_per_node,
        "HPCDDP_NODE_RANK": node_rank,
        "HPCDDP_NUM_NODES": nodes,
        "HPCDDP_JOB_ID": environ.get("HPCDDP_JOB_ID", f"local-{os.getpid()}"),
        LOCAL_RESTARTS: environ.get(LOCAL_RESTARTS, "0"),
    }
    return {**environ, **{name: str(value) for name, value in place.items()}}


def single(environ: Mapping[str, str]) -> ProcessLayout:
    """One process by itself, wherever it runs."""
    layout = ProcessLayout(
        requeue_target=requeue_target_or_none(environ),
        launcher="single",
        job_key=job_key(environ) if in_job(environ) else "single",
        restart_count=restart_count(environ),
        sources={
            **dict.fromkeys((*_LOCAL_SIZES, *_LOCAL_RANKS, "hosts", "master_addr"), "one process"),
            "requeue_target": " + ".join(requeue_names(environ)),
        },
    )
    return with_device(with_port(layout, environ), environ)


_READERS: dict[str, Callable[[Mapping[str, str]], ProcessLayout]] = {
    "slurm": layout_from_slurm,
    "torchrun": layout_from_torchrun,
    "local": layout_from_local,
    "single": single,
}
