"""From the report of a run to its page, by the report's name. The only door to this package."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpcddp.report.bandwidth import allreduce_page
from hpcddp.report.comparison import comparison_page
from hpcddp.report.page import Page, html
from hpcddp.report.values import check_document
from hpcddp.run_dir import write_atomically

_PAGES: Mapping[str, Callable[[Mapping[str, Any]], Page]] = {
    "compare": comparison_page,
    "allreduce": allreduce_page,
}


def write_page(name: str, document: Mapping[str, Any], folder: Path) -> Path:
    """Write NAME.html for this report into the folder; returns its path.

    Raises HpcddpError where the document has not what a page needs.
    """
    path = folder / f"{name}.html"
    write_atomically(path, html(_PAGES[name](check_document(name, document))))
    return path
