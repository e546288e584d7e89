"""Figures as SVG that can stand in an HTML page beside others. Knows no report."""

import io
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Callable

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

WIDTH_IN = 7.5
GREY = "#666666"
# Colours that people who confuse red and green can tell apart (Okabe and Ito, 2008).
MODE_COLOURS = {"single": "#333333", "dp": "#D55E00", "ddp": "#0072B2"}
MODE_MARKERS = {"single": "s", "dp": "^", "ddp": "o"}
_LONGEST_LINE = 56
_STYLE = {
    "svg.fonttype": "none",  # text stays text: it can be searched, and needs no glyphs
    "svg.hashsalt": "hpcddp",  # the same figure is the same file
    "text.parse_math": False,  # a `$` in a name is a `$`
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Liberation Sans", "Arial", "sans-serif"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
}
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"


def draw(key: str, title: str, height_in: float, paint: Callable[[Figure], None]) -> str:
    """The SVG of what `paint` puts on an empty figure; `key` makes its ids unique in a page."""
    with mpl.rc_context({**mpl.rcParamsDefault, "backend": "svg"}), mpl.rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
        paint(figure)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return _for_page(text.getvalue(), key, title)


def _for_page(svg: str, key: str, title: str) -> str:
    """The root element alone, as wide as the page lets it, with a name for screen readers."""
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _XLINK)
    root = ET.fromstring(svg)
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == "id":
                element.set(name, f"{key}-{value}")
            elif name == f"{{{_XLINK}}}href" or "url(#" in value:
                element.set(name, value.replace("#", f"#{key}-", 1))
    for child in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(child)
    root.attrib |= {"width": "100%", "role": "img", "aria-label": title}
    del root.attrib["height"]
    return ET.tostring(root, encoding="unicode")


def wrapped(name: str) -> str:
    """A name of any length in lines that leave room for the figure."""
    return "\n".join(textwrap.wrap(name, _LONGEST_LINE))


def label_bars(axes: Axes, values: list[float], texts: list[str]) -> None:
    """Write a text behind the end of each horizontal bar, and make room for it."""
    for position, (value, text) in enumerate(zip(values, texts, strict=True)):
        axes.annotate(
            text, (value, position), xytext=(4, 0), textcoords="offset points", va="center"
        )
    axes.set_xlim(0, 1.18 * max(values))


def rows_axis(axes: Axes, names: list[str]) -> None:
    """Name the horizontal bars, the first on top."""
    axes.set_yticks(range(len(names)), [wrapped(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
