"""The figure of images per second by mode and number of devices. Knows no page."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from hpcddp.report.drawing import GREY, MODE_COLOURS, MODE_MARKERS, wrapped
from hpcddp.report.values import Row, mode_text

_ASIDE = 0.008  # of the axis


def paint_throughput(figure: Figure, rows: Sequence[Row], document: Row) -> None:
    """A line for each mode, and the line that perfect scaling would be."""
    axes = figure.subplots()
    devices = sorted({row["devices"] for row in rows})
    modes = list(dict.fromkeys(row.get("mode") for row in rows))
    for number, mode in enumerate(modes):
        aside = _ASIDE * (devices[-1] - devices[0]) * (number - (len(modes) - 1) / 2)
        own = sorted((r for r in rows if r.get("mode") == mode), key=lambda row: row["devices"])
        axes.errorbar(
            [row["devices"] + aside for row in own],  # whiskers side by side
            [row["images_per_s"] for row in own],
            yerr=[_spread(row) for row in own],
            label=wrapped(mode_text(own[0], document)),
            color=MODE_COLOURS.get(mode, GREY),
            marker=MODE_MARKERS.get(mode, "D"),
            capsize=3,
        )
    _paint_ideal(axes, rows, devices)
    axes.xaxis.set_major_locator(FixedLocator(devices))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(min(devices) - 0.3, max(devices) + 0.3)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("devices")
    axes.set_ylabel("images per second")
    figure.legend(loc="outside lower center", ncols=2)


def _spread(row: Row) -> float:
    """Half of the interquartile range, as images per second."""
    return row["images_per_s"] * (row.get("step_s_iqr") or 0.0) / row["step_s_median"] / 2


def _paint_ideal(axes: Axes, rows: Sequence[Row], devices: Sequence[int]) -> None:
    """From the row that speed-ups refer to."""
    base = min(rows, key=lambda row: (not row.get("is_base"), row["devices"]))
    per_device = base["images_per_s"] / base["devices"]
    ends = [devices[0], devices[-1]]
    ideal = [per_device * n for n in ends]
    axes.plot(ends, ideal, "--", color=GREY, linewidth=1, label="ideal: as many times as devices")
