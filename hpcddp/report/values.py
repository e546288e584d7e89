"""Measured values as text, and what stands in the place of a missing one. Knows no HTML."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcddp.errors import HpcddpError

NOT_MEASURED = "not measured here"
_SPACE = "\N{NO-BREAK SPACE}"  # between a number and its unit
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_NEEDED = {
    "compare": ("devices", "step_s_median", "images_per_s"),
    "allreduce": ("bytes", "seconds", "algbw_gb_per_s", "busbw_gb_per_s"),
}
Row = Mapping[str, Any]


def check_document(kind: str, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The document, if it has what every page needs. Raises HpcddpError that names what is not."""
    rows = document.get("rows")
    if not isinstance(rows, list) or not rows:
        raise _unusable(kind, "it has no rows")
    for number, row in enumerate(rows, start=1):
        for key in _NEEDED[kind]:
            if not isinstance(row, dict) or not _is_number(row.get(key)):
                raise _unusable(kind, f"row {number} has no number `{key}`")
    return document


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _unusable(kind: str, why: str) -> HpcddpError:
    return HpcddpError(f"{kind}.json cannot be drawn: {why}. Measure again.")


def shown(value: Any, text: Callable[[Any], str]) -> str:  # noqa: ANN401
    """`text(value)`, or that it was not measured."""
    return NOT_MEASURED if value is None or value == [] else text(value)


def time_text(seconds: float) -> str:
    """Seconds with a unit that fits: `4.20 ms`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g}{_SPACE}{unit}"
    return f"{seconds / 1e-6:.3g}{_SPACE}us"


def bytes_text(number: float) -> str:
    """Bytes in the binary unit that fits: `25 MiB`."""
    power = 0
    while abs(number) >= 1024 and power < len(_BYTE_UNITS) - 1:
        number, power = number / 1024, power + 1
    return f"{number:.4g}{_SPACE}{_BYTE_UNITS[power]}"


def percent_text(fraction: float) -> str:
    """`12.3 %`."""
    return f"{100 * fraction:.1f}{_SPACE}%"


def number_text(value: float) -> str:
    """Three digits that count, without a power of ten."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def many(text: Callable[[Any], str]) -> Callable[[Sequence[Any]], str]:
    """The text of a list whose values are written by `text`."""
    return lambda values: ", ".join(shown(value, text) for value in values)


def setting_text(row: Row) -> str:
    """`ddp.bucket_cap_mib=25`; empty where nothing was varied."""
    return ", ".join(f"{key}={value}" for key, value in (row.get("setting") or {}).items())


def mode_text(row: Row, document: Row) -> str:
    """The mode, for DP with what stood in for it."""
    mode = str(row.get("mode", "?"))
    label = document.get("label_of_dp")
    return f"dp: {label}" if mode == "dp" and label else mode


def place_text(row: Row, document: Row) -> str:
    """Mode, number of devices and setting of a row: what a figure calls it."""
    devices = row["devices"]
    what = f"{mode_text(row, document)}, {devices} device{'s' if devices != 1 else ''}"
    setting = setting_text(row)
    return f"{what}, {setting}" if setting else what


def counts_text(rows: Sequence[Row]) -> str:
    """How many values stand behind a figure, and how many were thrown away."""
    n, discarded = range_text(rows, "n"), range_text(rows, "discarded")
    return f"n = {n} steps each; discarded as warm-up: {discarded}"


def range_text(rows: Sequence[Row], key: str) -> str:
    """`9`, or `9 to 40` where rows differ."""
    values = [row[key] for row in rows if row.get(key) is not None]
    if not values:
        return "unknown"
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low} to {high}"
