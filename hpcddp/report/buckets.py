"""The figure of one DDP step: its buckets against its backward pass. Knows no page."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpcddp.report.drawing import rows_axis
from hpcddp.report.values import Row, bytes_text

_BACKWARD, _HIDDEN, _EXPOSED, _WAITING = "#0072B2", "#56B4E9", "#D55E00", "#999999"


def paint_buckets(figure: Figure, row: Row) -> None:
    """When each bucket was ready, and when it was reduced; what outlasts backward is exposed."""
    axes, buckets = figure.subplots(), row["buckets"]
    end_ms = 1e3 * row["backward_s"]
    axes.barh(0, end_ms, 0.6, color=_BACKWARD, label="backward")
    for position, bucket in enumerate(buckets, start=1):
        _paint_bucket(axes, position, bucket, end_ms)
    axes.axvline(end_ms, color=_BACKWARD, linewidth=1, linestyle="--")
    for name, colour, hatch in (
        ("waits for its turn", _WAITING, ""),
        ("reduced beside backward", _HIDDEN, ""),
        ("reduced after backward: exposed", _EXPOSED, "////"),
    ):
        axes.barh(0, 0, 0.6, color=colour, hatch=hatch, edgecolor="white", label=name)
    names = [f"bucket {bucket['index']}, {bytes_text(bucket['bytes'])}" for bucket in buckets]
    rows_axis(axes, ["backward", *names])
    axes.set_xlim(0, 1.03 * max([end_ms, *(1e3 * bucket["end_s"] for bucket in buckets)]))
    axes.set_xlabel("milliseconds since the backward pass began")
    figure.legend(loc="outside lower center", ncols=4)


def _paint_bucket(axes: Axes, position: int, bucket: Row, end_ms: float) -> None:
    ready, start, end = (1e3 * bucket[key] for key in ("ready_s", "start_s", "end_s"))
    hidden_end = max(start, min(end, end_ms))
    axes.plot(ready, position, marker="|", markersize=11, color="black")
    axes.barh(position, start - ready, 0.12, ready, color=_WAITING)
    axes.barh(position, hidden_end - start, 0.6, start, color=_HIDDEN)
    axes.barh(position, end - hidden_end, 0.6, hidden_end, color=_EXPOSED, hatch="////",
              edgecolor="white", linewidth=0)  # fmt: skip
