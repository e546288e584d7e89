"""The page of `bench allreduce`. Draws nothing itself."""

from hpcddp.report.allreduce import paint_allreduce
from hpcddp.report.drawing import draw
from hpcddp.report.page import Drawing, Page
from hpcddp.report.tables import allreduce_table
from hpcddp.report.values import Row, bytes_text, number_text, percent_text, range_text, time_text

_TITLE = "Time and bandwidth by size"


def allreduce_page(document: Row) -> Page:
    """Figure, table and fitted line of a checked allreduce.json."""
    largest = document["rows"][-1]
    speed = number_text(8 * largest["busbw_gb_per_s"])
    said = f"Points: medians of the slowest process's times, with quartiles. {_counts(document)}"
    svg = draw("allreduce", _TITLE, 5.6, lambda figure: paint_allreduce(figure, document))
    return Page(
        title=f"All-reduce, {document.get('backend', '?')}",
        facts=_facts(document),
        headline=f"{bytes_text(largest['bytes'])}: bus bandwidth {speed} Gbit/s",
        evidence=_evidence(document),
        drawings=(Drawing(_TITLE, svg, f"{said}."),),
        tables=(allreduce_table(document),),
    )


def _counts(document: Row) -> str:
    n, discarded = (range_text(document["rows"], key) for key in ("n", "discarded"))
    return f"n = {n} calls of each size; discarded before them: {discarded}"


def _facts(document: Row) -> tuple[tuple[str, str], ...]:
    facts = {
        "processes": document.get("world_size"),
        "nodes": document.get("nodes"),
        "hosts": ", ".join(map(str, document.get("hosts") or ())) or None,
        "device": document.get("device"),
        **(document.get("versions") or {}),
        "date": document.get("date"),
    }
    return tuple((name, str(value)) for name, value in facts.items() if value is not None)


def _evidence(document: Row) -> tuple[str, ...]:
    checked = "Every sum was checked, bit by bit."
    fit = document.get("fit")
    if not fit:
        why = "one size" if len(document["rows"]) == 1 else "time does not grow with size here"
        return (checked, f"No line of latency and bandwidth: {why}.")
    return (
        checked,
        f"Line through all sizes: latency {time_text(fit['alpha_s'])}, bus bandwidth "
        f"{number_text(8 * fit['bus_gb_per_s'])} Gbit/s{_errors(fit)}; it misses a size by up to "
        f"{percent_text(fit['worst_relative_miss'])}.",
        *_no_line(document),
        "Bus bandwidth is size / time x 2(n-1)/n: what each of n processes sends, to be held "
        "against the speed of a link where each node has one process.",
        *_node_words(document["rows"][-1]),
    )


def _errors(fit: Row) -> str:
    """The standard errors of both."""
    if "alpha_error_s" not in fit:
        return ""
    sure = percent_text(fit["beta_error_gb_per_s"] / fit["beta_gb_per_s"])
    return f" (standard errors {time_text(fit['alpha_error_s'])} and {sure})"


def _no_line(document: Row) -> tuple[str, ...]:
    """What to take instead of a line that the times do not lie on."""
    if document["fit"].get("is_line", True):
        return ()
    largest = document["rows"][-1]
    fastest = min(document["rows"], key=lambda row: row["seconds"])
    return (
        f"No line describes times that it misses so far: take {time_text(fastest['seconds'])}, of "
        f"{bytes_text(fastest['bytes'])}, for the latency, and the bus bandwidth of "
        f"{bytes_text(largest['bytes'])}, {number_text(8 * largest['busbw_gb_per_s'])} Gbit/s.",
    )


def _node_words(largest: Row) -> tuple[str, ...]:
    """What may be held against the network of a node with several processes."""
    if largest.get("node_gb_per_s") is None:
        return ()
    speed = number_text(8 * largest["node_gb_per_s"])
    return (
        f"With several processes per node each of k nodes sends at least {speed} Gbit/s over its "
        "network with the largest size: size / time x 2(k-1)/k, the rest stays inside. A ring "
        "through all processes sends the whole bus bandwidth.",
    )
