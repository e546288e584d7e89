"""Modes side by side on one node: starts a group for each cell, visits them in turn, compares.

Runs in one process that holds all devices of the node; the groups are its children.
"""

import contextlib
import itertools
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hpcddp.cluster.devices import device_wish, visible_devices
from hpcddp.config.schema import RunConfig
from hpcddp.errors import HpcddpError
from hpcddp.measure.bench import unsettled_steps
from hpcddp.measure.blocks import CellRecord
from hpcddp.measure.cells import Cell, Wanted, check_wanted, config_of
from hpcddp.measure.comparison import base_of, row_of, serial_fractions, with_speedups
from hpcddp.measure.cpus import are_shared, cores_of, cpus_of, shares
from hpcddp.measure.document import compare_document, not_measured
from hpcddp.measure.evidence import Circumstances
from hpcddp.measure.gpu_use import GpuUse
from hpcddp.measure.groups import Group
from hpcddp.measure.verdict import verdict_of

_WARM_UP_STEPS = 3  # DDP's buckets are in their final order before; caches and allocators are not

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Node:
    """What there is to measure on; `gpus` as CUDA_VISIBLE_DEVICES would name them."""

    cores: Sequence[Sequence[int]]  # each with its CPUs
    gpus: Sequence[str]

    @property
    def backend(self) -> str:
        return "nccl" if self.gpus else "gloo"


def compare_on(
    node: Node, config: RunConfig, wanted: Wanted, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Measure every cell that this node has the devices for; the document of the comparison.

    Raises ConfigError for what does not divide, GroupFailed where a process fails.
    """
    check_wanted(wanted, config)
    cells = [cell for cell in wanted.cells if not node.gpus or cell.devices <= len(node.gpus)]
    if not cells:
        raise HpcddpError(
            f"This node shows {len(node.gpus)} GPUs, and {min(wanted.devices)} is the smallest of "
            "--devices. Ask for more (--gpus-per-node), or compare fewer.",
            "no_gpu",
        )
    most = max(cell.devices for cell in cells)
    per_device = shares(node.cores, most)
    gpus = GpuUse(node.gpus)
    records = _measure(cells, config, wanted, per_device, gpus, environ)
    rows = [
        row_of(cell, record, config_of(cell, wanted, config).train.global_batch)
        | {"cpus_per_process": len(cpus_of(cell, per_device)[0])}
        for cell, record in zip(cells, records, strict=True)
    ]
    base = base_of(rows, {})
    rows = with_speedups(rows, base, is_weak=wanted.is_weak)
    missing = not_measured(
        wanted.cells, cells, rows, has_gpus=bool(node.gpus), no_use=gpus.why_nothing
    )
    peers = _have_peers(most) if node.gpus else None
    verdict = verdict_of(rows, Circumstances(node.backend, are_shared(per_device), peers))
    return compare_document(
        config,
        rows,
        verdict,
        backend=node.backend,
        is_strong=not wanted.is_weak,
        fitted=serial_fractions(rows, is_weak=wanted.is_weak),
        missing=[*wanted.left_out, *missing],
        cpus=sum(map(len, node.cores)),
    )


def this_node(config: RunConfig, environ: Mapping[str, str]) -> Node:
    """What this process may use: its CPUs, and the GPUs it sees unless the CPU is wished for."""
    cores = cores_of(sorted(os.sched_getaffinity(0)))
    is_cpu = "cpu" in (config.train.device, device_wish(environ))
    count = 0 if is_cpu else torch.cuda.device_count()
    named = visible_devices(environ) or tuple(map(str, range(count)))
    return Node(cores, named[:count])


def _have_peers(count: int) -> bool | None:
    """Whether the first `count` GPUs all reach each other's memory; None where there is but one."""
    pairs = [*itertools.permutations(range(count), 2)]
    return all(torch.cuda.can_device_access_peer(*pair) for pair in pairs) if pairs else None


def _measure(
    cells: Sequence[Cell],
    config: RunConfig,
    wanted: Wanted,
    per_device: Sequence[Sequence[int]],
    gpus: GpuUse,
    environ: Mapping[str, str],
) -> list[CellRecord]:
    records = [CellRecord(_WARM_UP_STEPS) for _ in cells]
    with contextlib.ExitStack() as open_groups:
        folder = Path(open_groups.enter_context(tempfile.TemporaryDirectory(prefix="hpcddp-")))
        groups = []
        for index, cell in enumerate(cells):
            own = folder / f"group-{index}"
            run, cpus = config_of(cell, wanted, config), cpus_of(cell, per_device)
            groups.append(open_groups.enter_context(Group(cell, run, cpus, own, environ)))
        for group in groups:
            group.wait_until_ready()
            group.take(_WARM_UP_STEPS, discard=0)
            _log.info("%s is ready", group.cell.name)
        for number in range(wanted.rounds):
            _visit_all(groups, records, wanted, number, gpus)
            _log.info("round %d of %d", number + 1, wanted.rounds)
    return records


def _visit_all(
    groups: Sequence[Group],
    records: Sequence[CellRecord],
    wanted: Wanted,
    number: int,
    gpus: GpuUse,
) -> None:
    """One round; every other one goes backwards, so that a steady drift cancels."""
    pairs = list(zip(groups, records, strict=True))
    for group, record in reversed(pairs) if number % 2 else pairs:
        unsettled = unsettled_steps(group.config, group.cell.processes)
        with gpus.watch() as use:
            record.visits.append(group.take(wanted.steps, discard=unsettled))
        record.utilisation.append(use)
        if group.cell.processes > 1:
            # The first without exchange still sends out buffers, and the first of the next round
            # does not: neither counts.
            record.without_sync.append(group.take(wanted.steps, sync=False))
