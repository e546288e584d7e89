"""The figure of time and bandwidth of the all-reduce by size. Knows no page."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from hpcddp.report.drawing import GREY, MODE_COLOURS
from hpcddp.report.values import Row, bytes_text, time_text

_LINE = MODE_COLOURS["ddp"]


def paint_allreduce(figure: Figure, document: Row) -> None:
    """Time with its quartiles and the fitted line above, bandwidths below."""
    above, below = figure.subplots(2, sharex=True)
    rows, fit = document["rows"], document.get("fit")
    sizes = [row["bytes"] for row in rows]
    _paint_times(above, document)
    below.semilogx(sizes, [row["algbw_gb_per_s"] for row in rows], "s:", base=2, color="#D55E00",
                   label="algorithm bandwidth: size / time")  # fmt: skip
    below.semilogx(sizes, [row["busbw_gb_per_s"] for row in rows], "o-", base=2, color=_LINE,
                   label="bus bandwidth: what each process sends")  # fmt: skip
    if fit:
        below.axhline(fit["bus_gb_per_s"], color=GREY, linewidth=1, linestyle="--",
                      label="bus bandwidth of the fitted line")  # fmt: skip
    below.set_ylim(bottom=0)
    below.set_ylabel("GB/s")
    below.set_xlabel("size of the tensor")
    ticks = sizes[:: max(1, round(len(sizes) / 7))]
    below.set_xticks(ticks, [bytes_text(size) for size in ticks])
    below.legend(loc="lower right")


def _paint_times(axes: Axes, document: Row) -> None:
    rows, fit = document["rows"], document.get("fit")
    sizes = [row["bytes"] for row in rows]
    middles = [row["seconds"] for row in rows]
    spreads = [_spread(row) for row in rows]
    axes.errorbar(sizes, middles, yerr=list(zip(*spreads, strict=True)), fmt="o", capsize=3,
                  color=_LINE, label="median, with quartiles")  # fmt: skip
    if fit:
        line = [fit["alpha_s"] + size / (1e9 * fit["beta_gb_per_s"]) for size in sizes]
        axes.plot(sizes, line, "--", color=GREY, linewidth=1, label="latency + size / bandwidth")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: time_text(seconds)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("time of a call")
    axes.legend(loc="upper left")


def _spread(row: Row) -> tuple[float, float]:
    """From the median down to the first and up to the third quartile."""
    low = row.get("seconds_quartile_1", row["seconds"])
    high = row.get("seconds_quartile_3", row["seconds"])
    return max(0.0, row["seconds"] - low), max(0.0, high - row["seconds"])
