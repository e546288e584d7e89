"""The report of `bench allreduce`, from measured times to a document. Sends and times nothing."""

import time
from collections.abc import Sequence
from typing import Any

import torch

from hpcddp.config.layout import ProcessLayout
from hpcddp.measure.alpha_beta import AlphaBeta, fit_alpha_beta
from hpcddp.measure.collectives import AllReduceTime, bus_factor

_LARGEST_MISS = 0.25  # of a time that is known as well as that; what is missed by more is no line


def allreduce_document(
    times: Sequence[AllReduceTime], layout: ProcessLayout, backend: str
) -> dict[str, Any]:
    """The times and the line through them, with what they were measured on."""
    world_size = layout.world_size
    return {
        "title": "all-reduce",
        "date": time.strftime("%Y-%m-%d"),
        "backend": backend,
        "world_size": world_size,
        "nodes": layout.num_nodes,
        "hosts": list(layout.hosts),
        "device": torch.cuda.get_device_name() if backend == "nccl" else "CPU",
        "versions": {"torch": str(torch.__version__)},
        "rows": [_row(each, world_size, layout.num_nodes) for each in times],
        "fit": _fit(times, world_size),
    }


def _row(measured: AllReduceTime, world_size: int, nodes: int) -> dict[str, Any]:
    low, high = measured.quartiles_s
    return {
        "bytes": measured.bytes,
        "seconds": measured.seconds,
        "algbw_gb_per_s": measured.algbw_gb_per_s,
        "busbw_gb_per_s": measured.busbw_gb_per_s(world_size),
        "node_gb_per_s": measured.node_gb_per_s(world_size, nodes),
        "n": measured.n,
        "seconds_quartile_1": low,
        "seconds_quartile_3": high,
        "discarded": measured.discarded,
    }


def _fit(times: Sequence[AllReduceTime], world_size: int) -> dict[str, Any] | None:
    """None where one size alone was measured, or time does not grow with size."""
    if len(times) < 2:
        return None
    fit = fit_alpha_beta(
        [each.bytes for each in times],
        [each.seconds for each in times],
        [_spread(each) for each in times],
    )
    if fit.beta_bytes_per_s == float("inf"):
        return None
    return {
        "alpha_s": fit.alpha_s,
        "beta_gb_per_s": fit.beta_bytes_per_s / 1e9,
        "bus_gb_per_s": fit.beta_bytes_per_s * bus_factor(world_size) / 1e9,
        "alpha_error_s": fit.alpha_error_s,
        "beta_error_gb_per_s": fit.beta_error_bytes_per_s / 1e9,
        "worst_relative_miss": fit.worst,
        "is_line": _is_line(fit, times),
    }


def _spread(measured: AllReduceTime) -> float:
    low, high = measured.quartiles_s
    return (high - low) / measured.seconds


def _is_line(fit: AlphaBeta, times: Sequence[AllReduceTime]) -> bool:
    """Whether no size is missed far, but for those whose own times scatter."""
    known = [each for each in times if _spread(each) <= _LARGEST_MISS]
    return all(abs(fit.seconds(each.bytes) / each.seconds - 1) <= _LARGEST_MISS for each in known)
