"""The figure of what a step is spent on, one bar for each row. Knows no page."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from hpcddp.phases import COMM_PARTS
from hpcddp.report.drawing import GREY, label_bars, rows_axis
from hpcddp.report.values import Row, place_text, time_text

# These add up to the step.
_PHASES = {
    "data_wait_s": ("waiting for data", "#999999", ""),
    "host_to_device_s": ("host to device", "#CC79A7", ""),
    "forward_s": ("forward", "#56B4E9", ""),
    "backward_s": ("backward", "#0072B2", ""),
    "exposed_comm_s": ("communication that nothing hides", "#D55E00", "////"),
    "broadcast_s": ("broadcast (DP: all, DDP: buffers)", "#F6D98B", "////"),
    "scatter_s": ("DP: scatter", "#E69F00", "////"),
    "gather_s": ("DP: gather", "#D55E00", "////"),
    "reduce_s": ("DP: reduce", "#A34700", "////"),
    "optimizer_s": ("optimizer", "#009E73", ""),
    "other_s": ("other", "#DDDDDD", ""),
}


def paint_step_time(figure: Figure, rows: Sequence[Row], document: Row) -> None:
    """Stacked phases; rows without phases show their whole step in grey."""
    axes = figure.subplots()
    left = [0.0] * len(rows)
    for phase, (name, colour, hatch) in _PHASES.items():
        widths = [1e3 * _stacked(row).get(phase, 0.0) for row in rows]
        if any(widths):
            axes.barh(range(len(rows)), widths, 0.6, left, label=name, color=colour, hatch=hatch,
                      edgecolor="white", linewidth=0.5)  # fmt: skip
        left = [begin + width for begin, width in zip(left, widths, strict=True)]
    unknown = [0.0 if row.get("phases") else 1e3 * row["step_s_median"] for row in rows]
    if any(unknown):
        axes.barh(range(len(rows)), unknown, 0.6, color="white", edgecolor=GREY,
                  label="phases not measured here")  # fmt: skip
    medians = [1e3 * row["step_s_median"] for row in rows]
    halves = [1e3 * (row.get("step_s_iqr") or 0.0) / 2 for row in rows]
    axes.errorbar(medians, range(len(rows)), xerr=halves, fmt="none", capsize=3, color="black")
    highs = [median + half for median, half in zip(medians, halves, strict=True)]
    tips = [max(pair) for pair in zip(left, highs, strict=True)]
    label_bars(axes, tips, [time_text(row["step_s_median"]) for row in rows])
    rows_axis(axes, [place_text(row, document) for row in rows])
    axes.set_xlabel("milliseconds per step")
    figure.legend(loc="outside lower center", ncols=3)


def _stacked(row: Row) -> dict[str, float]:
    """The phases that add up to the step; of communication the parts that are known."""
    phases = dict(row.get("phases") or {})
    if any(phases.get(part) for part in COMM_PARTS):
        parts_s = sum(phases.get(part, 0.0) for part in COMM_PARTS)
        phases["exposed_comm_s"] = max(0.0, phases.get("exposed_comm_s", 0.0) - parts_s)
        if phases["exposed_comm_s"] < 0.05 * parts_s:  # medians of a sum and of its parts differ
            del phases["exposed_comm_s"]
    return phases
