"""Settings of DistributedDataParallel side by side in one job, on any number of nodes.

Every process of the job holds a session for each setting; all of them visit these in the same
order, so that what disturbs the network for a while disturbs every setting.
"""

import logging
import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hpcddp.config.layout import ProcessLayout
from hpcddp.config.schema import RunConfig, value_at
from hpcddp.measure.bench import Bench, build_bench, unsettled_steps
from hpcddp.measure.blocks import CellRecord, Pace, pace_on_gpus
from hpcddp.measure.cells import Cell, Setting, config_of_setting
from hpcddp.measure.comparison import base_of, row_of, with_speedups
from hpcddp.measure.cpus import are_too_few, cores_used
from hpcddp.measure.document import Document, compare_document, not_measured, rounds_left
from hpcddp.measure.evidence import Circumstances
from hpcddp.measure.rounds import WARM_UP_STEPS, in_turn
from hpcddp.measure.verdict import verdict_of_sweep
from hpcddp.run_dir import RunDir
from hpcddp.train.device import open_device
from hpcddp.train.process_group import Ranks, backend_of, open_ranks

_NO_USE = "a sweep does not sample it"
# Every process holds a model and buckets for each setting all the time.
_NOT_OF_ONE = {
    "memory_bytes_per_device": None,
    "memory_imbalance": None,
    "resident_bytes_per_process": [],
}
_NO_MEMORY = "memory of each setting: the processes hold those of all settings at once"

_log = logging.getLogger(__name__)


def sweep_here(
    config: RunConfig,
    settings: Sequence[Setting],
    layout: ProcessLayout,
    rounds: int,
    steps: int,
    keep: Callable[[Document], None] = lambda document: None,
) -> Document | None:
    """Measure every setting; the document in the main process, None in the others. Collective.

    There `keep` gets after each round but the last the document of what is known so far.
    """
    device = open_device(config.train, layout)
    ranks = open_ranks(layout, device, config.train.rendezvous_timeout_s)
    # Each session would tell of a training that never is.
    logging.getLogger("hpcddp.train").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="hpcddp-") as folder:
        warmed_up = _warmed_up(config, settings, layout, Path(folder), device, ranks)
        benches, warm_up_s = zip(*warmed_up, strict=True)
        gatherer = _Gatherer(layout)
        pace = Pace(steps, unsettled_steps(config, layout.world_size))
        if device.type == "cuda":
            pace = pace_on_gpus(pace, gatherer.largest(min(warm_up_s)))
        where = Circumstances(backend_of(device), are_too_few(gatherer.gather(_place(device))))
        document = None
        for done, records in enumerate(gatherer.measure(benches, pace, rounds), 1):
            if layout.is_main:
                _log.info("round %d of %d", done, rounds)
                left = rounds_left(done, rounds)
                document = _document(config, settings, records, layout, where, left)
                if left:
                    keep(document)
    ranks.close()
    return document


def _warmed_up(
    config: RunConfig,
    settings: Sequence[Setting],
    layout: ProcessLayout,
    folder: Path,
    device: torch.device,
    ranks: Ranks,
) -> Iterator[tuple[Bench, float]]:
    """For each setting its session, and the seconds of its fastest step so far. Collective."""
    for index, setting in enumerate(settings):
        run_dir = RunDir(folder / str(index))
        run_dir.path.mkdir()
        bench = build_bench(config_of_setting(setting, config), layout, run_dir, device, ranks)
        yield bench, min(bench.take(WARM_UP_STEPS, discard=0).step_s)
        if layout.is_main:
            _log.info("%s is ready", Cell("ddp", layout.world_size, setting).name)


def _place(device: torch.device) -> tuple[str, list[int], Fraction]:
    """Of this process its host, its cores, and how many of them it takes."""
    # One thread feeds a GPU and waits for it: it wants a CPU of its own, not a whole core.
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    return socket.gethostname(), *cores_used(sorted(os.sched_getaffinity(0)), threads)


class _Gatherer:
    """Visits the benches of all processes together and collects what they say."""

    def __init__(self, layout: ProcessLayout) -> None:
        self._layout = layout
        self._group = dist.new_group(backend="gloo")  # beside the network that is measured

    def measure(
        self, benches: Sequence[Bench], pace: Pace, rounds: int
    ) -> Iterator[list[CellRecord]]:
        """After each round the records of all settings."""
        records = [CellRecord(WARM_UP_STEPS) for _ in benches]
        for number in range(rounds):
            for bench, record in in_turn(zip(benches, records, strict=True), number):
                record.visits.append(self.gather(bench.take(pace.steps, discard=pace.unsettled)))
                alone = bench.take(pace.steps, discard=pace.discard, sync=False)
                record.without_sync.append(self.gather(alone))
            yield records

    def largest(self, own: float) -> float:
        """Of what all processes give, in each of them: their steps must be as many. Collective."""
        value = torch.tensor(own, dtype=torch.float64)
        dist.all_reduce(value, op=dist.ReduceOp.MAX, group=self._group)
        return value.item()

    def gather(self, own: Any) -> list[Any]:  # noqa: ANN401
        """What each process gives, in the main process; in the others nothing. Collective."""
        found = [None] * self._layout.world_size if self._layout.is_main else None
        dist.gather_object(own, found, dst=0, group=self._group)
        return found or []


def _document(
    config: RunConfig,
    settings: Sequence[Setting],
    records: Sequence[CellRecord],
    layout: ProcessLayout,
    where: Circumstances,
    left: Sequence[str],
) -> Document:
    cells = [Cell("ddp", layout.world_size, setting) for setting in settings]
    rows = [
        row_of(cell, record, config.train.global_batch) | _NOT_OF_ONE
        for cell, record in zip(cells, records, strict=True)
    ]
    configured = {key: value_at(config, key) for key in settings[0]}
    base = base_of(rows, configured)
    index = [row is base for row in rows].index(True)
    rows = with_speedups(rows, base, is_weak=False)
    has_gpus = where.backend == "nccl"
    return compare_document(
        config,
        rows,
        verdict_of_sweep(rows, index, where, is_own=settings[index] == configured),
        backend=where.backend,
        is_strong=True,
        fitted={},
        missing=[
            *left,
            *not_measured(cells, cells, rows, has_gpus=has_gpus, no_use=_NO_USE),
            _NO_MEMORY,
        ],
        cpus=len(os.sched_getaffinity(0)),
        layout=layout,
    )
