"""Modes side by side on one node: starts a group for each cell, visits them in turn, compares.

Runs in one process that holds all devices of the node; the groups are its children.
"""

import contextlib
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hpcddp.cluster.devices import device_wish, visible_devices
from hpcddp.config.schema import RunConfig
from hpcddp.errors import HpcddpError
from hpcddp.measure.cells import Cell, Wanted, check_wanted, config_of
from hpcddp.measure.comparison import Row, base_of, row_of, serial_fractions, with_speedups
from hpcddp.measure.cpus import are_shared, cores_of, cpus_near, cpus_of, shares
from hpcddp.measure.document import Document, compare_document, not_measured, rounds_left
from hpcddp.measure.evidence import Circumstances
from hpcddp.measure.gpu_use import GpuUse
from hpcddp.measure.groups import Group
from hpcddp.measure.rounds import Contender, take_rounds
from hpcddp.measure.verdict import verdict_of

_SIDES_UNKNOWN = (
    "which CPUs are near which GPU: Linux does not say it, and a process of ddp may have been "
    "bound to the far side of the node"
)


@dataclass(frozen=True, slots=True)
class Node:
    """What there is to measure on; `gpus` as CUDA_VISIBLE_DEVICES could name them."""

    cores: Sequence[Sequence[int]]  # each with its CPUs
    gpus: Sequence[str]
    near: Sequence[frozenset[int] | None] = ()  # the CPUs on the side of each GPU, where known

    @property
    def backend(self) -> str:
        return "nccl" if self.gpus else "gloo"


def compare_on(
    node: Node,
    config: RunConfig,
    wanted: Wanted,
    environ: Mapping[str, str],
    keep: Callable[[Document], None] = lambda document: None,
) -> Document:
    """Measure every cell that this node has the devices for; the document of the comparison.

    After each round but the last, `keep` gets the document of what is known so far. A cell that
    fails is named among what was not measured.

    Raises ConfigError for what does not divide, GroupFailed where no cell is left.
    """
    check_wanted(wanted, config)
    cells = [cell for cell in wanted.cells if not node.gpus or cell.devices <= len(node.gpus)]
    if not cells:
        raise HpcddpError(
            f"This node shows {len(node.gpus)} GPUs, and {min(wanted.devices)} is the smallest of "
            "--devices. Ask for more (--gpus-per-node), or compare fewer.",
            "no_gpu",
        )
    per_device = shares(node.cores, max(cell.devices for cell in cells), node.near)
    comparison = _Comparison(node, config, wanted, per_device, GpuUse(node.gpus))
    document: Document = {}
    with _started(cells, config, wanted, per_device, environ) as groups:
        for done, contenders in enumerate(take_rounds(groups, wanted, comparison.gpus), 1):
            document = comparison.document(contenders, done)
            if done < wanted.rounds:
                keep(document)
    return document


@contextlib.contextmanager
def _started(
    cells: Sequence[Cell],
    config: RunConfig,
    wanted: Wanted,
    per_device: Sequence[Sequence[int]],
    environ: Mapping[str, str],
) -> Iterator[list[Group]]:
    """The processes of all cells, until the end of the block."""
    with contextlib.ExitStack() as open_groups:
        folder = Path(open_groups.enter_context(tempfile.TemporaryDirectory(prefix="hpcddp-")))
        groups = []
        for index, cell in enumerate(cells):
            own = folder / f"group-{index}"
            run, cpus = config_of(cell, wanted, config), cpus_of(cell, per_device)
            groups.append(open_groups.enter_context(Group(cell, run, cpus, own, environ)))
        yield groups


@dataclass(frozen=True, slots=True)
class _Comparison:
    """What is compared on which node, and how its CPUs are shared."""

    node: Node
    config: RunConfig
    wanted: Wanted
    per_device: Sequence[Sequence[int]]
    gpus: GpuUse

    def document(self, contenders: Sequence[Contender], rounds: int) -> Document:
        """What is known after so many rounds."""
        node, is_weak = self.node, self.wanted.is_weak
        rows = [self._row(each) for each in contenders if each.is_in]
        rows = with_speedups(rows, base_of(rows, {}), is_weak=is_weak)
        peers = (
            _have_peers(max(each.group.cell.devices for each in contenders)) if node.gpus else None
        )
        where = Circumstances(node.backend, are_shared(self.per_device), peers)
        return compare_document(
            self.config,
            rows,
            verdict_of(rows, where),
            backend=node.backend,
            is_strong=not is_weak,
            fitted=serial_fractions(rows, is_weak=is_weak),
            missing=self._missing(contenders, rows, rounds),
            cpus=sum(map(len, node.cores)),
        )

    def _row(self, contender: Contender) -> Row:
        group = contender.group
        row = row_of(group.cell, contender.record, group.config.train.global_batch)
        return row | {"cpus_per_process": len(cpus_of(group.cell, self.per_device)[0])}

    def _missing(
        self, contenders: Sequence[Contender], rows: Sequence[Row], rounds: int
    ) -> list[str]:
        node, wanted = self.node, self.wanted
        cells = [each.group.cell for each in contenders]
        has_gpus, no_use = bool(node.gpus), self.gpus.why_nothing
        return [
            *rounds_left(rounds, wanted.rounds),
            *wanted.left_out,
            *(each.failure.message.splitlines()[0] for each in contenders if each.failure),
            *not_measured(wanted.cells, cells, rows, has_gpus=has_gpus, no_use=no_use),
            *([_SIDES_UNKNOWN] if None in node.near else []),
        ]


def this_node(config: RunConfig, environ: Mapping[str, str]) -> Node:
    """What this process may use: its CPUs, and the GPUs it sees unless the CPU is wished for."""
    cores = cores_of(sorted(os.sched_getaffinity(0)))
    is_cpu = "cpu" in (config.train.device, device_wish(environ))
    count = 0 if is_cpu else torch.cuda.device_count()
    named = visible_devices(environ) or tuple(map(str, range(count)))
    gpus = tuple(map(_name_of, range(count), named))
    return Node(cores, gpus, tuple(map(_near, range(count))))


def _name_of(index: int, entry: str) -> str:
    """The UUID of the GPU that CUDA numbers so; `entry` of the variable where there is none.

    NVML numbers them in another order, and also those that Slurm has given to others.
    """
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return entry if uuid is None or not entry.isdigit() else f"GPU-{uuid}"


def _near(index: int) -> frozenset[int] | None:
    """The CPUs on the side of the GPU that CUDA numbers so; None where that is not known."""
    gpu = torch.cuda.get_device_properties(index)
    place = [getattr(gpu, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    return None if None in place else cpus_near("{:04x}:{:02x}:{:02x}.0".format(*place))


def _have_peers(count: int) -> bool | None:
    """Whether the first `count` GPUs all reach each other's memory; None where there is but one."""
    pairs = [*itertools.permutations(range(count), 2)]
    return all(torch.cuda.can_device_access_peer(*pair) for pair in pairs) if pairs else None
