"""The tables of a page: headers and cells as text. Knows no HTML."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hpcddp.report.values import (
    Row,
    bytes_text,
    many,
    mode_text,
    number_text,
    percent_text,
    place_text,
    setting_text,
    shown,
    time_text,
)

Cell = Callable[[Row], str]
_SPEED = "Speed"
_KARP_FLATT = "Karp-Flatt"  # of a fixed size of the problem: under weak scaling there is none
_LAWS = (
    ("amdahl", "Amdahl's law", "the step times, as a share of one device's"),
    ("gustafson", "Gustafson's law", "the speed-ups"),
)
_NOTHING = "-"  # where there is nothing that could have been measured


@dataclass(frozen=True, slots=True)
class Table:
    """A caption, a header and rows, all of them text."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def comparison_tables(document: Row) -> list[Table]:
    """What the figures show and what they do not, in numbers."""
    rows = document["rows"]
    swept = any(row.get("setting") for row in rows)
    who: dict[str, Cell] = {"mode": lambda row: mode_text(row, document)}
    who["devices"] = lambda row: str(row["devices"])
    if swept:
        who["setting"] = lambda row: setting_text(row) or "as configured"
    hidden = () if document.get("strong", True) else (_KARP_FLATT,)
    bases = [f" (against {place_text(row, document)})" for row in rows if row.get("is_base")]
    tables = [
        _table("".join([caption, *bases * (caption == _SPEED)]), rows, who | columns | _COUNTS)
        for caption, every in _COLUMNS.items()
        for columns in [{name: cell for name, cell in every.items() if name not in hidden}]
    ]
    return [*tables, *_serial_fractions(document)]


def allreduce_table(document: Row) -> Table:
    """Every size that was measured."""
    return _table("By size", document["rows"], _ALLREDUCE | _COUNTS)


def _table(caption: str, rows: Sequence[Row], columns: dict[str, Cell]) -> Table:
    cells = tuple(tuple(column(row) for column in columns.values()) for row in rows)
    return Table(caption, tuple(columns), cells)


def _value(key: str, text: Callable[[Any], str]) -> Cell:
    return lambda row: shown(row.get(key), text)


def _serial_fractions(document: Row) -> list[Table]:
    """Amdahl's law for one amount of work, Gustafson's for work that grows with the devices."""
    tables = []
    for key, law, what in _LAWS:
        fits = document.get(key) or {}
        rows = tuple(
            (
                mode_text({"mode": mode}, document),
                shown(fit.get("serial_fraction"), percent_text),
                _NOTHING if fit.get("residual") is None else number_text(fit["residual"]),
            )
            for mode, fit in fits.items()
        )
        if rows:
            header = ("mode", "serial fraction", f"residual of {what}")
            tables.append(Table(f"Part of the work that does not scale ({law})", header, rows))
    return tables


def _where(applies: Callable[[Row], bool], cell: Cell) -> Cell:
    return lambda row: cell(row) if applies(row) else _NOTHING


def _phase(name: str) -> Cell:
    """The time of a phase with its interquartile range."""

    def text(row: Row) -> str:
        said = shown((row.get("phases") or {}).get(name), time_text)
        iqr_s = (row.get("phases_iqr") or {}).get(name)
        return said if iqr_s is None else f"{said}, IQR {time_text(iqr_s)}"

    return text


def _share(key: str) -> Cell:
    """A share of the step with its interquartile range, where it has one."""

    def text(row: Row) -> str:
        said, iqr = shown(row.get(key), percent_text), row.get(f"{key}_iqr")
        return f"{said}, IQR {percent_text(iqr)}" if iqr else said

    return text


def _with_bounds(key: str, interval: str, text: Callable[[Any], str]) -> Cell:
    """A value with the bounds of its 95 % interval, where it has one."""

    def both(row: Row) -> str:
        said, between = shown(row.get(key), text), row.get(interval)
        return f"{said} ({' to '.join(map(text, between))})" if between else said

    return both


def _has_several(row: Row) -> bool:
    return row["devices"] > 1


def _exchanges(row: Row) -> bool:
    return row.get("mode") == "ddp" and _has_several(row)


def _is_scaling(row: Row) -> bool:
    return not row.get("setting")


def _busiest_threads(row: Row) -> str:
    """Of each process: what a process of several threads can at best be as fast as."""
    processes = row.get("cpu_s_per_step_per_thread") or []
    return shown([max(threads) for threads in processes if threads], many(time_text))


_COUNTS: dict[str, Cell] = {
    "n": _value("n", str),
    "discarded": _value("discarded", str),
}
_COLUMNS: dict[str, dict[str, Cell]] = {
    _SPEED: {
        "step, median": _value("step_s_median", time_text),
        "95 % of steps below": _value("step_s_p95", time_text),
        "interquartile range": _value("step_s_iqr", time_text),
        "images/s": _value("images_per_s", number_text),
        "speed-up": _with_bounds("speedup", "speedup_interval", number_text),
        "efficiency": _where(_is_scaling, _value("efficiency", percent_text)),
        _KARP_FLATT: _where(
            lambda row: _is_scaling(row) and _has_several(row), _value("karp_flatt", percent_text)
        ),
    },
    "Communication (bytes of ddp: gradients; of dp: gradients and parameters)": {
        "bytes per step": _value("comm_bytes_per_step", bytes_text),
        "buckets": _where(_exchanges, _value("buckets", lambda buckets: str(len(buckets)))),
        "share of the step": _share("comm_fraction"),
        "exposed": _share("exposed_comm_fraction"),
        "exposed, by leaving it out": _where(
            _exchanges,
            _with_bounds("no_sync_exposed_fraction", "no_sync_exposed_interval", percent_text),
        ),
        "in all": _phase("comm_s"),
    },
    "Use of the machine": {
        "memory per device": _value("memory_bytes_per_device", many(bytes_text)),
        "first device / others": _where(_has_several, _value("memory_imbalance", number_text)),
        "resident memory per process": _value("resident_bytes_per_process", many(bytes_text)),
        "CPU time per step and process": _value("cpu_s_per_step_per_process", many(time_text)),
        "busiest thread (last round)": _busiest_threads,
        "use of the GPUs (waiting counts)": _value("gpu_utilisation", many(percent_text)),
    },
}
_ALLREDUCE: dict[str, Cell] = {
    "size": _value("bytes", bytes_text),
    "median": _value("seconds", time_text),
    "first quartile": _value("seconds_quartile_1", time_text),
    "third quartile": _value("seconds_quartile_3", time_text),
    "algorithm bandwidth, GB/s": _value("algbw_gb_per_s", number_text),
    "bus bandwidth, GB/s": _value("busbw_gb_per_s", number_text),
}
