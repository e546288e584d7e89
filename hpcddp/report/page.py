"""A page: figures, tables and words in one HTML file that asks for nothing else. Draws nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from hpcddp.report.tables import Table
from hpcddp.report.values import NOT_MEASURED


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure with what is to be known about it; without SVG it says that nothing was measured."""

    title: str
    svg: str | None
    caption: str


@dataclass(frozen=True, slots=True)
class Page:
    """What a page shows; all of it text that may hold anything."""

    title: str
    facts: Sequence[tuple[str, str]]
    headline: str
    confidence: str = ""
    is_noise: bool = False
    evidence: Sequence[str] = ()
    drawings: Sequence[Drawing] = ()
    tables: Sequence[Table] = ()
    gaps: Sequence[str] = ()


def html(page: Page) -> str:
    """The file. Everything is escaped but the figures, whose own text already is."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["drawn"] = Markup  # SVG that `drawing` has written
    template = environment.get_template("page.html.j2")
    return template.render(page=page, not_measured=NOT_MEASURED)
