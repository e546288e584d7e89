"""Every process of a job examined, alone and together: facts, measurements, findings.

Knows what to measure in which order; what it means is up to `hpcddp.doctor`.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hpcddp.cluster.rendezvous_address import is_one_host
from hpcddp.config.layout import ProcessLayout
from hpcddp.config.schema import RunConfig
from hpcddp.data.workers import worker_batches
from hpcddp.doctor.counters import read_counters
from hpcddp.doctor.findings import as_document, from_document, has_failed, without
from hpcddp.doctor.gpu_facts import with_own_gpus
from hpcddp.doctor.host_checks import examine_hosts
from hpcddp.doctor.host_facts import (
    host_name,
    name_facts,
    read_node_facts,
    read_process_facts,
    resolve_all,
    with_node_facts,
)
from hpcddp.doctor.job_checks import examine_job
from hpcddp.errors import HpcddpError
from hpcddp.measure.allreduce_report import allreduce_document
from hpcddp.measure.collectives import bus_factor, measure_all_reduce
from hpcddp.measure.links import Leader, Links, clock_offsets, pair_speeds, visible_after
from hpcddp.train.device import choose_device
from hpcddp.train.process_group import Ranks, backend_of, open_ranks

_RENDEZVOUS_TIMEOUT_S = 120.0  # at most: a node that does not come is what one wants to hear of
_SIZES = (1 << 10, 1 << 15, 1 << 20, 1 << 24)
_GPU_SIZES = (*_SIZES, 1 << 28)
_SECONDS_PER_SIZE = 0.3

_log = logging.getLogger(__name__)


def examine(
    layout: ProcessLayout,
    environ: Mapping[str, str],
    folder: Path,
    config: RunConfig,
    expected_busbw_gb_per_s: float | None,
) -> tuple[dict[str, Any], bool]:
    """The report about all processes of this job, on the main one (empty on the others), and on
    every one whether something has failed. Collective.

    `folder` is where runs lie. Raises HpcddpError `rendezvous` where the processes do not meet.
    """
    timeout_s = min(_RENDEZVOUS_TIMEOUT_S, config.train.rendezvous_timeout_s)
    _log.info("Looking at this node")
    node = _node_facts(layout, environ, config)  # before this process opens a GPU
    facts = read_process_facts(layout, environ)
    device = _device(config.train.device, layout, node)
    ranks = open_ranks(layout, device, timeout_s)
    links = Links(layout.global_rank, layout.world_size)
    processes = links.gather(facts | _torch_facts(device, facts))
    processes = with_own_gpus(with_node_facts(processes, links.gather(node)))
    processes = _with_names(links, processes, layout, environ)
    leaders = _leaders(processes)
    _log.info("All have met; processes: %d, nodes: %d", len(processes), len(leaders))
    alone = len(leaders) == 1
    allreduce, sent = _all_reduce(layout, ranks, device)
    moved = {p["host"]: each for p, each in zip(processes, links.gather(sent), strict=True)}
    measured = {
        "allreduce": allreduce,
        "moved": {} if is_one_host(layout) or not allreduce else moved,
        "expected_busbw_gb_per_s": expected_busbw_gb_per_s,
        "clocks": clock_offsets(links, leaders),
        "visible": visible_after(links, leaders, folder),
        "pairs": [] if alone else pair_speeds(links, leaders, device),
    }
    document = _report(processes, measured) if layout.is_main else {}
    failed = ranks.decide(lambda: has_failed(from_document(document)))
    ranks.close()
    return document, failed


def _report(processes: list[dict[str, Any]], measured: dict[str, Any]) -> dict[str, Any]:
    findings = [*examine_hosts(processes), *examine_job(processes, measured)]
    return as_document(findings, allreduce=measured["allreduce"], pairs=measured["pairs"])


def _node_facts(
    layout: ProcessLayout, environ: Mapping[str, str], config: RunConfig
) -> dict[str, Any] | None:
    """What the first process of each node reads for all of them."""
    if layout.local_rank != 0:
        return None
    data_root = Path(config.data.root) if config.data.root else None
    uses_gpus = config.train.device != "cpu"
    return read_node_facts(layout, environ, data_root, uses_gpus=uses_gpus)


def _device(wish: str, layout: ProcessLayout, node: Mapping[str, Any] | None) -> torch.device:
    """The device as training chooses it. Where that fails there will be no report, so the error
    says which GPUs are lost. Raises HpcddpError.
    """
    try:
        return choose_device(wish, layout)
    except HpcddpError as error:
        lost = ", ".join(node["lost_gpus"]) if node else ""
        if not lost:
            raise
        fix = without(host_name(layout))
        raise HpcddpError(f"{lost}, so: {error.message} {fix}", error.code) from None


def _with_names(
    links: Links,
    processes: list[dict[str, Any]],
    layout: ProcessLayout,
    environ: Mapping[str, str],
) -> list[dict[str, Any]]:
    """The facts with what each node makes of the names of all, which it looks up by itself: what
    travels is what is odd. Torchrun does not name its nodes.
    """
    hosts = layout.hosts
    if layout.launcher != "slurm":
        hosts = tuple(dict.fromkeys(facts["host"] for facts in processes))
    asks = layout.local_rank == 0 and not is_one_host(layout)
    own = name_facts(resolve_all(hosts, environ), host_name(layout)) if asks else None
    known = links.gather(own)
    return [{**facts, "names": names} for facts, names in zip(processes, known, strict=True)]


def _torch_facts(device: torch.device, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What only a process with torch can say of itself."""
    versions = {**facts["versions"], "torch": str(torch.__version__)}
    uuid, gpus_seen, not_seen_because = None, None, "this process uses no GPU"
    if device.type == "cuda":
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        gpus_seen = None if torch.version.hip else torch.cuda.device_count()
        not_seen_because = "RCCL reaches GPUs that a process does not see"
    return {
        "threads": torch.get_num_threads(),
        "versions": versions,
        "device_uuid": uuid,
        "gpus_seen": gpus_seen,
        "not_seen_because": not_seen_because if gpus_seen is None else "",
        "worker_cpus": _cores_of_a_worker(),
    }


class _Cores:
    """Stands in for a data set: its only item is the cores of the worker that fetches it."""

    def __getitem__(self, index: int) -> list[int]:
        return sorted(os.sched_getaffinity(0))


def _cores_of_a_worker() -> list[int] | None:
    try:
        [cores] = worker_batches(_Cores(), [0], workers=1, pin_memory=False)
    except (OSError, RuntimeError) as error:
        _log.warning("No loader worker: %s", error)
        return None
    return cores


def _leaders(processes: list[dict[str, Any]]) -> list[Leader]:
    """The first process of every node, by global rank."""
    return [Leader(p["host"], p["global_rank"]) for p in processes if p["local_rank"] == 0]


def _all_reduce(
    layout: ProcessLayout, ranks: Ranks, device: torch.device
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Times of all-reduces, and what this node's devices sent meanwhile. None for one process."""
    if layout.world_size == 1:
        return None, {}
    before, rows, correct = read_counters(), [], True
    try:
        for each in measure_all_reduce(
            ranks,
            _GPU_SIZES if device.type == "cuda" else _SIZES,
            device,
            global_rank=layout.global_rank,
            world_size=layout.world_size,
            seconds_per_size=_SECONDS_PER_SIZE,
        ):
            rows.append(each)
    except HpcddpError as error:
        if error.code != "wrong_sum":
            raise
        correct = False
    sent = read_counters().since(before)
    factor = bus_factor(layout.world_size)
    payload = factor * sum(row.bytes * (row.n + row.discarded) for row in rows)
    counted = {
        "adapters": dict(sent.adapters),
        "interfaces": dict(sent.interfaces),
        "over_infiniband": dict(sent.over_infiniband),
        "slingshot": list(sent.slingshot),
        "payload_bytes": payload,
    }
    reduced = allreduce_document(rows, layout, backend_of(device))
    return {**reduced, "correct": correct}, counted
