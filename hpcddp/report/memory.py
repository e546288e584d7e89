"""The figure of the memory that each device needs. Knows no page."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from hpcddp.report.drawing import GREY, MODE_COLOURS, label_bars, rows_axis
from hpcddp.report.values import Row, bytes_text, place_text

_GIB = 1 << 30


def paint_memory(figure: Figure, rows: Sequence[Row], document: Row) -> None:
    """A bar for each device of each row; the first device of each row is dark."""
    axes = figure.subplots()
    bars = [
        (f"{place_text(row, document)}: device {index}", number, row["mode"], index)
        for row in rows
        for index, number in enumerate(row["memory_bytes_per_device"])
    ]
    values = [number / _GIB for _, number, _, _ in bars]
    colours = [MODE_COLOURS.get(mode, GREY) for _, _, mode, _ in bars]
    drawn = axes.barh(range(len(bars)), values, 0.7, color=colours)
    for patch, (_, _, _, index) in zip(drawn, bars, strict=True):
        patch.set_alpha(0.5 if index else 1.0)
    label_bars(axes, values, [bytes_text(number) for _, number, _, _ in bars])
    rows_axis(axes, [name for name, _, _, _ in bars])
    axes.set_xlabel("GiB, highest during the measurement")
