"""The page of a comparison: which figures it has, and what is said below each. Draws nothing."""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure

from hpcddp.report.buckets import paint_buckets
from hpcddp.report.drawing import draw
from hpcddp.report.memory import paint_memory
from hpcddp.report.page import Drawing, Page
from hpcddp.report.step_time import paint_step_time
from hpcddp.report.sweep import paint_sweep
from hpcddp.report.tables import comparison_tables
from hpcddp.report.throughput import paint_throughput
from hpcddp.report.values import (
    Row,
    bytes_text,
    counts_text,
    place_text,
    range_text,
)

_MOST_TIMELINES = 6
_SPREAD = "whiskers are as long as the interquartile range"
Paint = Callable[[Figure], None]


def comparison_page(document: Row) -> Page:
    """Figures, tables, verdict and gaps of a checked compare.json."""
    verdict = document.get("verdict") or {}
    return Page(
        title=str(document.get("title", "Comparison")),
        facts=_facts(document),
        headline=str(verdict.get("words", "")),
        confidence=str(verdict.get("confidence", "")),
        is_noise=bool(verdict.get("within_noise")),
        evidence=tuple(map(str, verdict.get("evidence") or ())),
        drawings=tuple(_drawings(document)),
        tables=tuple(comparison_tables(document)),
        gaps=tuple(map(str, document.get("not_measured") or ())),
    )


def _facts(document: Row) -> tuple[tuple[str, str], ...]:
    rows = document["rows"]
    keeps = "global batch" if document.get("strong", True) else "micro-batch"
    facts: dict[str, Any] = {
        "model": document.get("model"),
        "data": document.get("data"),
        "precision": document.get("precision"),
        "global batch": document.get("global_batch"),
        "kept the same": f"the {keeps}",
        "backend": document.get("backend"),
    }
    facts |= document.get("settings") or {}
    facts |= document.get("machine") or {}
    facts |= document.get("versions") or {}
    facts["date"] = document.get("date")
    if any(row.get("mode") == "dp" for row in rows):
        facts["dp is"] = document.get("label_of_dp")
    return tuple((name, _plain(value)) for name, value in facts.items() if value not in (None, []))


def _plain(value: Any) -> str:  # noqa: ANN401
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _drawings(document: Row) -> list[Drawing]:
    rows: list[Row] = document["rows"]
    plain, swept = ([r for r in rows if bool(r.get("setting")) is s] for s in (False, True))
    found = [_throughput(plain, document)] if plain else []
    found += [_sweep(swept)] if swept else []
    return [
        *found,
        _step_time(rows, document),
        _memory(rows, document),
        *_timelines(rows, document),
    ]


def _drawing(key: str, title: str, height_in: float, said: str, paint: Paint) -> Drawing:
    return Drawing(title, draw(key, title, height_in, paint), said)


def _throughput(rows: Sequence[Row], document: Row) -> Drawing:
    said = f"Medians; {_SPREAD}. {counts_text(rows)}."
    return _drawing("throughput", "Throughput by mode and devices", 3.7, said,
                    lambda figure: paint_throughput(figure, rows, document))  # fmt: skip


def _sweep(rows: Sequence[Row]) -> Drawing:
    said = (
        "The step waits only for what is exposed; the rest may slow the backward pass beside it, "
        f"which the step without any exchange shows. Medians; {_SPREAD}. {counts_text(rows)}."
    )
    return _drawing("sweep", "Step and communication by setting", 4.4, said,
                    lambda figure: paint_sweep(figure, rows))  # fmt: skip


def _step_time(rows: Sequence[Row], document: Row) -> Drawing:
    said = (
        "Medians of the phases; they need not add up to that of the step, which stands behind the "
        f"bar and around which {_SPREAD}. Without what is hidden by backward. {counts_text(rows)}."
    )
    return _drawing("step", "What a step is spent on", 1.3 + 0.36 * len(rows), said,
                    lambda figure: paint_step_time(figure, rows, document))  # fmt: skip


def _memory(rows: Sequence[Row], document: Row) -> Drawing:
    title = "Memory per device"
    known = [row for row in rows if row.get("memory_bytes_per_device")]
    if not known:
        return Drawing(title, None, "")
    said = (
        "Highest of all steps that count, so it has no spread. What torch's allocator gave out: "
        "what it keeps free, CUDA's context and NCCL's buffers come on top. "
        f"{counts_text(known)}."
    )
    bars = sum(len(row["memory_bytes_per_device"]) for row in known)
    return _drawing("memory", title, 0.8 + 0.22 * bars, said,
                    lambda figure: paint_memory(figure, known, document))  # fmt: skip


def _timelines(rows: Sequence[Row], document: Row) -> list[Drawing]:
    """One step of ddp on the most devices, or one for each setting."""
    known = [row for row in rows if row.get("buckets") and row.get("backward_s")]
    most = max((row["devices"] for row in known), default=0)
    known = [row for row in known if row["devices"] == most][:_MOST_TIMELINES]
    if not known:
        return [Drawing("The buckets of a DDP step", None, "")]
    return [_timeline(number, row, document) for number, row in enumerate(known)]


def _timeline(number: int, row: Row, document: Row) -> Drawing:
    buckets = row["buckets"]
    reduced = sum(bucket["bytes"] for bucket in buckets)
    said = (
        f"The typical one of {range_text([row], 'n')} steps, so without a spread. Tick: its "
        "gradients were ready. "
        f"{bytes_text(reduced)} in {len(buckets)} bucket{'s' * (len(buckets) > 1)}."
    )
    title = f"Buckets of one step: {place_text(row, document)}"
    height_in = 1.4 + 0.26 * len(row["buckets"])
    return _drawing(f"buckets{number}", title, height_in, said,
                    lambda figure: paint_buckets(figure, row))  # fmt: skip
