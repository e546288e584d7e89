"""What `bench` prints for people, from its report. Measures nothing."""

from typing import Any

from hpcddp.launch.phrases import count_text, table

_HEADER = ("BYTES", "TIME", "QUARTILES", "ALGBW GB/s", "BUSBW GB/s", "CALLS")


def allreduce_lines(report: dict[str, Any]) -> list[str]:
    """The report of `bench allreduce` as a table and what follows from it."""
    processes = count_text(report["world_size"], "process")
    what = f"all-reduce, {report['backend']}, {processes} on {count_text(report['nodes'], 'node')}"
    rows, largest = report["rows"], report["rows"][-1]
    return [
        "",
        f"{what}, torch {report['versions']['torch']}",
        "",
        *table([_HEADER, *map(_row, rows)]),
        "",
        f"every sum was checked; of each size the first {largest['discarded']} calls do not count",
        f"bus bandwidth of {largest['bytes']} bytes: {_speed_text(largest['busbw_gb_per_s'])}",
        *_node_lines(largest),
        *_fit_lines(report["fit"], rows),
    ]


def _node_lines(row: dict[str, Any]) -> list[str]:
    """Of a job with several processes on each of several nodes."""
    if row.get("node_gb_per_s") is None:
        return []
    return [
        f"over the network of each node at least {_speed_text(row['node_gb_per_s'])}: hold that, "
        "not bus bandwidth, against its link (a ring through all processes sends as much as the "
        "bus bandwidth)"
    ]


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    quartiles = (row["seconds_quartile_1"], row["seconds_quartile_3"])
    return (
        str(row["bytes"]),
        _time_text(row["seconds"]),
        " .. ".join(map(_time_text, quartiles)),
        f"{row['algbw_gb_per_s']:.4g}",
        f"{row['busbw_gb_per_s']:.4g}",
        str(row["n"]),
    )


def _fit_lines(fit: dict[str, float] | None, rows: list[dict[str, Any]]) -> list[str]:
    if len(rows) == 1:
        return ["latency and bandwidth apart take several sizes, such as --sizes 1KiB..1MiB"]
    if fit is None:
        return ["latency and bandwidth in one line: time does not grow with size in this range"]
    sure = fit["beta_error_gb_per_s"] / fit["beta_gb_per_s"]
    line = (
        f"line through all sizes: latency {_time_text(fit['alpha_s'])} ± "
        f"{_time_text(fit['alpha_error_s'])}, bus bandwidth {_speed_text(fit['bus_gb_per_s'])} "
        f"± {sure:.1%} (standard errors); it misses a size by up to "
        f"{fit['worst_relative_miss']:.0%}"
    )
    return [line, *_no_line_lines(fit, rows)]


def _no_line_lines(fit: dict[str, float], rows: list[dict[str, Any]]) -> list[str]:
    """What to take instead of a line that the times do not lie on."""
    if fit["is_line"]:
        return []
    fastest = min(rows, key=lambda row: row["seconds"])  # small ones scatter most
    latency, speed = _time_text(fastest["seconds"]), _speed_text(rows[-1]["busbw_gb_per_s"])
    return [
        f"no line describes times that it misses so far: take {latency}, of {fastest['bytes']} "
        f"bytes, for the latency, and the bus bandwidth of {rows[-1]['bytes']} bytes, {speed}"
    ]


def _speed_text(gb_per_s: float) -> str:
    return f"{gb_per_s:.4g} GB/s = {gb_per_s * 8:.4g} Gbit/s"


def _time_text(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
