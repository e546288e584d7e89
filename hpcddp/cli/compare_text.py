"""What `compare` prints for people, from its document. Measures nothing."""

import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

Row = Mapping[str, Any]

_WIDEST, _TERMINAL, _NOTHING = 250, 80, "-"
_LEGEND = (
    "N: steps counted + left out at the beginning and after pauses. "
    "IQR: width of the middle half; ±: half of it. "
    "SPEED-UP: of images per second against {base}, round by round, and where it lies with 95 %. "
    "EXPOSED: communication that nothing hides, the wait for late processes in it, and its share "
    "OF STEP. "
    "HIDDEN: the share of communication that is not exposed; DDP's broadcast of buffers is, so it "
    "is not torch's overlap. "
    "NO SYNC: by how much a step is shorter without any exchange, measured apart; with what hidden "
    "communication takes from backward. "
    "CPU ms: of all processes."
)
_LEGEND_OF_GPUS = (
    "GPU %: of the time that some kernel was on it; one that waits for another GPU counts, too."
)
_LEGEND_OF_POINTS = (
    "Point by point: the same everywhere is a serial part, a rise is communication, a jump a "
    "border such as that of a socket."
)
_MIB = 1 << 20


def compare_text(document: Mapping[str, Any]) -> str:
    """The document as two tables, the verdict below it with its evidence, and what is missing."""
    verdict, missing = document["verdict"], document["not_measured"]
    evidence = [f"  - {line}" for line in verdict["evidence"]]
    return "\n".join(
        [
            "",
            *_heading(document),
            "",
            _table_text(document["rows"], _SPEED),
            "",
            _table_text(document["rows"], _PARTS),
            *_footnotes(document),
            "",
            f"{verdict['words']} Confidence: {verdict['confidence']}.",
            *evidence,
            *(["Not measured here:"] if missing else []),
            *(f"  - {line}" for line in missing),
        ]
    )


def _heading(document: Mapping[str, Any]) -> list[str]:
    machine = document["machine"]
    what = ", ".join(dict.fromkeys(machine["gpus"])) or f"{machine['cpus']} CPUs"
    scaling = "the same global batch" if document["strong"] else "the same images per device"
    return [
        f"{document['title']}: {document['model']}, {document['data']}, {document['precision']}, "
        f"global batch {document['global_batch']} ({scaling})",
        f"{_processes(document)}{len(machine['hosts'])} x {what} ({machine['processor']}), "
        f"{document['backend']}, torch {document['versions']['torch']}, {document['date']}",
    ]


def _processes(document: Mapping[str, Any]) -> str:
    """How many take part in every row; nothing where that is a matter of the row."""
    if document.get("world_size") is None:
        return ""
    return f"{document['world_size']} processes, {document['processes_per_node']} per node; "


def _table_text(rows: Sequence[Row], figures: Mapping[str, Callable[[Row], str]]) -> str:
    """As wide as it needs to be: a figure that is cut off is none. Empty columns are left out."""
    swept = any(row["setting"] for row in rows)
    columns = {**(_SETTING if swept else _PLACE), **figures}
    cells = {name: [cell(row) for row in rows] for name, cell in columns.items()}
    shown = {name: texts for name, texts in cells.items() if set(texts) != {_NOTHING}}
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for name in shown:
        table.add_column(name, justify="right" if name in figures else "left", no_wrap=True)
    for texts in zip(*shown.values(), strict=True):
        table.add_row(*texts)
    text = io.StringIO()
    Console(file=text, width=_WIDEST, color_system=None, legacy_windows=False).print(table)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    return "\n".join(line for line in lines if line)


def _ms(seconds: float | None) -> str:
    return _NOTHING if seconds is None else f"{1000 * seconds:.1f}"


def _phase(name: str) -> Callable[[Row], str]:
    """The milliseconds of a phase, with half the width of their middle half where it is known."""

    def text(row: Row) -> str:
        said, iqr_s = _ms(row["phases"].get(name)), row.get("phases_iqr", {}).get(name)
        if iqr_s is None:
            return said
        half_ms = 1000 * iqr_s / 2
        return f"{said} ±{half_ms:.{0 if half_ms >= 10 else 1}f}"

    return text


def _percent(fraction: float | None) -> str:
    return _NOTHING if fraction is None else f"{100 * fraction:.0f} %"


def _times(ratio: float | None) -> str:
    return _NOTHING if ratio is None else f"{ratio:.2f}"


def _speedup(row: Row) -> str:
    """With its interval, which what it refers to and a single round have not."""
    bounds = row["speedup_interval"]
    between = f"{bounds[0]:.2f}-{bounds[1]:.2f}" if bounds and bounds[0] < bounds[1] else _NOTHING
    return f"{_times(row['speedup'])} {between:>9}"


def _memory(row: Row) -> str:
    peaks = row["memory_bytes_per_device"]
    return _NOTHING if not peaks else " ".join(f"{peak / _MIB:.0f}" for peak in peaks)


def _utilisation(row: Row) -> str:
    use = row["gpu_utilisation"]
    return _NOTHING if not use else " ".join(f"{100 * share:.0f}" for share in use)


def _setting(row: Row) -> str:
    """Without the `ddp.` that all of them begin with, which has no room here."""
    settings = row["setting"].items()
    return " ".join(f"{key.removeprefix('ddp.')}={value}" for key, value in settings)


_PLACE = {"MODE": lambda row: row["mode"], "DEVICES": lambda row: str(row["devices"])}
_SETTING = {"SETTING": _setting}
_SPEED = {
    "STEP ms": lambda row: _ms(row["step_s_median"]),
    "P95": lambda row: _ms(row["step_s_p95"]),
    "IQR": lambda row: _ms(row["step_s_iqr"]),
    "N": lambda row: f"{row['n']}+{row['discarded']}",
    "IMAGES/S": lambda row: f"{row['images_per_s']:.4g}",
    "SPEED-UP    95 %": _speedup,
    "EFF": lambda row: _percent(row["efficiency"]),
}
_PARTS = {
    "COMM ms": _phase("comm_s"),
    "EXPOSED ms": _phase("exposed_comm_s"),
    "OF STEP": lambda row: _percent(row["exposed_comm_fraction"]),
    "HIDDEN": lambda row: _percent(row["overlap_ratio"]),
    "NO SYNC": lambda row: _percent(row["no_sync_exposed_fraction"]),
    "CPU ms": lambda row: _ms(sum(row["cpu_s_per_step_per_process"])),
    "MiB/DEVICE": _memory,
    "GPU %": _utilisation,
}


def _footnotes(document: Mapping[str, Any]) -> list[str]:
    rows = document["rows"]
    said = [*textwrap.wrap(_LEGEND.format(base=_base(rows)), _TERMINAL)]
    if any(row["gpu_utilisation"] for row in rows):
        said += textwrap.wrap(_LEGEND_OF_GPUS, _TERMINAL)
    if any(row["mode"] == "dp" for row in rows):
        said.append(f"dp: {document['label_of_dp']}")
    return [*said, *_serial_notes(document)]


def _serial_notes(document: Mapping[str, Any]) -> list[str]:
    from hpcddp.measure.comparison import rows_on_one_device

    rows = document["rows"]
    fitted = {**document.get("amdahl", {}), **document.get("gustafson", {})}
    if not fitted:
        return []
    said = []
    for mode, serial in fitted.items():
        said += textwrap.wrap(_serial_words(mode, serial, document), _TERMINAL)
    modes = [row["mode"] for row in rows_on_one_device(rows)]
    mean = "the mean of " if len(modes) > 1 else ""
    said.append(f"Serial fractions are against {mean}{' and '.join(modes)} on one device.")
    if any(len(_karp_flatts(rows, mode)) > 1 for mode in fitted):
        said += textwrap.wrap(_LEGEND_OF_POINTS, _TERMINAL)
    if any(serial["serial_fraction"] > 1 for serial in fitted.values()):
        said.append("A serial fraction above 1: more devices are slower than one.")
    return said


def _serial_words(mode: str, serial: Row, document: Mapping[str, Any]) -> str:
    law, missed = ("Amdahl", "step times by {:.2f} of one device's")
    if not document["strong"]:
        law, missed = ("Gustafson", "speed-ups by {:.2f}")
    points, residual = _karp_flatts(document["rows"], mode), serial["residual"]
    misses = "" if residual is None else f", misses {missed.format(residual)}"
    each = f"; point by point (Karp-Flatt) {', '.join(points)}" if points else ""
    return f"serial fraction of {mode} ({law}): {serial['serial_fraction']:.2f}{misses}{each}"


def _base(rows: Sequence[Row]) -> str:
    """What speed-ups refer to."""
    [base] = [row for row in rows if row["is_base"]]
    return _setting(base) if base["setting"] else f"{base['mode']} on {base['devices']}"


def _karp_flatts(rows: Sequence[Row], mode: str) -> list[str]:
    return [
        f"{row['karp_flatt']:.2f} at {row['devices']}"
        for row in rows
        if row["mode"] == mode and row["karp_flatt"] is not None
    ]
