"""The figure of a setting that was varied: its step and its communication. Knows no page."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from hpcddp.report.drawing import MODE_COLOURS
from hpcddp.report.values import Row, setting_text

_WIDTH = 0.38


def paint_sweep(figure: Figure, rows: Sequence[Row]) -> None:
    """The step above; total and exposed communication side by side below, where it is known."""
    places, has_phases = range(len(rows)), any(row.get("phases") for row in rows)
    axis, names = _names(rows)
    upper, *lower = figure.subplots(2 if has_phases else 1, sharex=True, squeeze=False)[:, 0]
    upper.errorbar(
        places,
        [1e3 * row["step_s_median"] for row in rows],
        yerr=[1e3 * (row.get("step_s_iqr") or 0.0) / 2 for row in rows],
        fmt="o", capsize=3, color=MODE_COLOURS["ddp"],
    )  # fmt: skip
    upper.set_ylabel("step, ms")
    upper.set_ylim(bottom=0)
    for axes in lower:
        for offset, phase, name, colour, hatch in (
            (-_WIDTH / 2, "comm_s", "total", "#56B4E9", ""),
            (_WIDTH / 2, "exposed_comm_s", "exposed: the step waits for it", "#D55E00", "////"),
        ):
            heights = [1e3 * (row.get("phases") or {}).get(phase, 0.0) for row in rows]
            axes.bar([place + offset for place in places], heights, _WIDTH, color=colour,
                     yerr=[_half_ms(row, phase) for row in rows], capsize=2,
                     hatch=hatch, edgecolor="white", label=name)  # fmt: skip
        axes.set_ylabel("communication, ms")
        axes.set_ylim(top=1.35 * axes.get_ylim()[1])  # room for the legend
        axes.legend(loc="upper right", ncols=2)
    lowest = (lower or [upper])[-1]
    lowest.set_xticks(places, names)
    lowest.set_xlabel(axis)


def _half_ms(row: Row, phase: str) -> float:
    """Half of a phase's interquartile range."""
    return 1e3 * (row.get("phases_iqr") or {}).get(phase, 0.0) / 2


def _names(rows: Sequence[Row]) -> tuple[str, list[str]]:
    """What to write below the axis, and below each place on it."""
    keys = {tuple(row["setting"]) for row in rows}
    if len(keys) == 1 and len(only := keys.pop()) == 1:
        return only[0], [str(row["setting"][only[0]]) for row in rows]
    return "", [setting_text(row).replace(", ", "\n") for row in rows]
