"""From blocks of steps to the rows of a comparison. Pure; starts nothing and knows no torch."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hpcddp.measure.blocks import Block, CellRecord
from hpcddp.measure.cells import MODES, Cell
from hpcddp.measure.scaling import (
    Ratio,
    Serial,
    amdahl,
    efficiency,
    gustafson,
    imbalance,
    karp_flatt,
    median,
    ratio_of,
    spread_of,
)

Row = dict[str, Any]
_KEPT_DIGITS = 6


def row_of(cell: Cell, record: CellRecord, global_batch: int) -> Row:
    """What was measured of one cell; `with_speedups` adds what needs the others."""
    spread, blocks = spread_of(record.step_s), record.blocks
    memory = _highest(record)
    return {
        "mode": cell.mode,
        "devices": cell.devices,
        "setting": dict(cell.setting),
        "global_batch": global_batch,
        "n": spread.n,
        "discarded": record.discarded,
        "step_s_median": spread.median,
        "step_s_p95": spread.p95,
        "step_s_iqr": spread.iqr,
        "round_s_medians": record.round_s,
        "images_per_s": global_batch / spread.median,
        **_with_iqr("comm_fraction", _fractions("comm_s", blocks)),
        **_with_iqr("exposed_comm_fraction", _fractions("exposed_comm_s", blocks)),
        "exposed_comm_s_per_process": _waits(record),
        **_with_iqr("overlap_ratio", _overlaps(blocks)),
        **_without_sync(record),
        "memory_bytes_per_device": memory,
        "memory_imbalance": imbalance(memory) if memory else None,
        "cpu_s_per_step_per_process": _cpu_s(record),
        "cpu_s_per_step_per_thread": _thread_cpu_s(record),
        "resident_bytes_per_process": [block.resident_bytes for block in _latest(record)],
        "gpu_utilisation": _utilisation(record),
        "phases": {name: median(values) for name, values in _phases(blocks).items()},
        "phases_iqr": {name: spread_of(values).iqr for name, values in _phases(blocks).items()},
        "comm_bytes_per_step": blocks[-1].comm_bytes,
        "buckets": [dict(bucket) for bucket in record.typical[0].buckets],
        "backward_s": record.typical[0].backward_s,
    }


def _latest(record: CellRecord) -> Sequence[Block]:
    return record.visits[-1]


def _phases(blocks: Sequence[Block]) -> dict[str, list[float]]:
    """Each phase's seconds in every step of every process."""
    steps = [step for block in blocks for step in block.phases]
    names = dict.fromkeys(name for step in steps for name in step)
    return {name: [step.get(name, 0.0) for step in steps] for name in names}


def _with_iqr(name: str, values: Sequence[float]) -> Row:
    """The median and the interquartile range; None where there are no values."""
    spread = spread_of(values) if values else None
    return {name: spread and spread.median, f"{name}_iqr": spread and spread.iqr}


def _fractions(phase: str, blocks: Sequence[Block]) -> list[float]:
    """The share of a phase in each step; empty where steps were not taken apart."""
    return [
        step[phase] / step_s
        for block in blocks
        for step, step_s in zip(block.phases, block.step_s, strict=bool(block.phases))
    ]


def _waits(record: CellRecord) -> list[float]:
    """In each process the median of what it waits for others; who is late waits least."""
    processes = [*zip(*record.visits, strict=True)]
    phases = [[step for block in own for step in block.phases] for own in processes]
    return [median([step["exposed_comm_s"] for step in own]) for own in phases if own]


def _overlaps(blocks: Sequence[Block]) -> list[float]:
    """The share of its communication that each step hides which communicates.

    Of that DDP's broadcast of buffers is a part, exposed as a whole: torch's own overlap, of the
    reductions alone, is another number.
    """
    steps = [step for block in blocks for step in block.phases if step["comm_s"]]
    return [1 - step["exposed_comm_s"] / step["comm_s"] for step in steps]


def _without_sync(record: CellRecord) -> Row:
    """By how much a step is shorter that exchanges nothing, and between what bounds; not from the
    step's own clock.
    """
    value = between = None
    if record.without_sync:
        alone = CellRecord(visits=record.without_sync)
        ratio = ratio_of(record.round_s, alone.round_s)
        value, bounds = 1 - ratio.value, _interval(ratio)
        between = bounds and [1 - bounds[1], 1 - bounds[0]]
    return {"no_sync_exposed_fraction": value, "no_sync_exposed_interval": between}


def _highest(record: CellRecord) -> list[int] | None:
    """The peak of each device over all visits; the devices of all processes in order."""
    visits = [
        [peak for block in visit for peak in block.memory_bytes or ()] for visit in record.visits
    ]
    return [max(device) for device in zip(*visits, strict=True)] or None


def _cpu_s(record: CellRecord) -> list[float]:
    """CPU seconds of a step in each process."""
    processes = [*zip(*record.visits, strict=True)]
    return [sum(b.cpu_s for b in own) / sum(len(b.step_s) for b in own) for own in processes]


def _thread_cpu_s(record: CellRecord) -> list[list[float]]:
    """CPU seconds of a step in each thread of each process, from the latest visit."""
    return [
        [seconds / len(block.step_s) for seconds in block.thread_cpu_s if seconds > 0]
        for block in _latest(record)
    ]


def _utilisation(record: CellRecord) -> list[float] | None:
    visits = [visit for visit in record.utilisation if visit]
    return [sum(gpu) / len(gpu) for gpu in zip(*visits, strict=True)] if visits else None


def with_speedups(rows: Sequence[Row], base: Row, *, is_weak: bool) -> list[Row]:
    """The rows with speed-up and efficiency relative to `base`, and with Karp-Flatt's fraction.

    Speed-ups are formed round by round: they need not be the ratio of `images_per_s`. `is_base`
    marks the row that they refer to.
    """
    fractions = [None if is_weak or row["setting"] else _karp_flatt(row, rows) for row in rows]
    return [
        row | _relative(row, base) | {"karp_flatt": fraction}
        for row, fraction in zip(rows, fractions, strict=True)
    ]


def _relative(row: Row, base: Row) -> Row:
    speedup = throughput_ratio(base, row)
    n = row["devices"] / base["devices"]
    return {
        "speedup": speedup.value,
        "speedup_interval": _interval(speedup),
        "efficiency": None if row["setting"] else efficiency(speedup.value, n),
        "is_base": row is base,
    }


def throughput_ratio(first: Row, second: Row) -> Ratio:
    """Images per second round by round, second / first."""
    return ratio_of(
        *(
            [row["global_batch"] / seconds for seconds in row["round_s_medians"]]
            for row in (first, second)
        )
    )


def _interval(ratio: Ratio) -> list[float] | None:
    return [ratio.low, ratio.high] if math.isfinite(ratio.high) else None


def _karp_flatt(row: Row, rows: Sequence[Row]) -> float | None:
    speedup = _against_one_device(row, rows)
    return None if speedup is None else karp_flatt(speedup, row["devices"])


def _against_one_device(row: Row, rows: Sequence[Row]) -> float | None:
    """The speed-up that serial fractions are about; None where nothing was measured on one device.

    There single and ddp run the same code: their geometric mean, round by round, is known better
    than either, and two modes do not differ by what disturbed their one device.
    """
    ones = rows_on_one_device(rows)
    if not ones:
        return None
    rounds = zip(*(each["round_s_medians"] for each in ones), strict=True)
    means = [math.prod(seconds) ** (1 / len(ones)) for seconds in rounds]
    return throughput_ratio(ones[0] | {"round_s_medians": means}, row).value


def rows_on_one_device(rows: Sequence[Row]) -> list[Row]:
    """Those that serial fractions are against.

    dp computes what the others do with threads around it, so it counts only where it is alone.
    """
    ones = [each for each in rows if each["devices"] == 1 and not each["setting"]]
    return [each for each in ones if each["mode"] != "dp"] or ones


def base_of(rows: Sequence[Row], configured: Mapping[str, Any]) -> Row:
    """What speed-ups refer to: one device, the plainest mode; of a sweep what the run is set to.

    `configured` holds the run's own values of what is swept.
    """
    for row in rows:
        if row["setting"] and row["setting"] == {key: configured[key] for key in row["setting"]}:
            return row
    return min(rows, key=lambda row: (row["devices"], MODES.index(row["mode"])))


def serial_fractions(rows: Sequence[Row], *, is_weak: bool) -> dict[str, Row]:
    """Per mode Amdahl's serial fraction, or Gustafson's for weak scaling.

    None where nothing was measured on one device: no formula knows what to compare with.
    """
    fitted: dict[str, Row] = {}
    for mode in MODES:
        own = [row for row in rows if row["mode"] == mode and not row["setting"]]
        points = {row["devices"]: _against_one_device(row, rows) for row in own}
        known = {n: speedup for n, speedup in points.items() if speedup is not None}
        serial = (gustafson if is_weak else amdahl)(known)
        if serial is not None:
            fitted[mode] = _serial(serial)
    return fitted


def _serial(serial: Serial) -> Row:
    return {"serial_fraction": serial.fraction, "residual": serial.residual}


def rounded(value: Any) -> Any:  # noqa: ANN401
    """A document with no more digits than anybody can have measured."""
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    if isinstance(value, float) and value:
        return round(value, _KEPT_DIGITS - 1 - math.floor(math.log10(abs(value))))
    return value
