"""The document of a comparison, as JSON and as CSV. Pure but for versions and the date."""

import csv
import io
import platform
import socket
import time
from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch

import hpcddp
from hpcddp.config.layout import ProcessLayout
from hpcddp.config.schema import RunConfig, value_at
from hpcddp.measure.cells import Cell
from hpcddp.measure.comparison import Row, rounded
from hpcddp.measure.verdict import Verdict
from hpcddp.phases import DP_ON_CPU, DP_ON_GPUS
from hpcddp.train.setup import is_channels_last

Document = dict[str, Any]
_SETTINGS = (
    *("train.deterministic", "train.channels_last", "train.micro_batch", "data.workers"),
    *("data.augment", "ddp.bucket_cap_mib", "ddp.static_graph"),
)
_CSV_FIELDS = (
    *("mode", "label", "devices", "setting", "global_batch", "n", "discarded"),
    *("step_s_median", "step_s_p95", "step_s_iqr", "images_per_s", "speedup", "efficiency"),
    *("karp_flatt", "comm_fraction", "exposed_comm_fraction", "overlap_ratio"),
    *("no_sync_exposed_fraction", "comm_bytes_per_step", "memory_imbalance"),
)


def compare_document(
    config: RunConfig,
    rows: Sequence[Row],
    verdict: Verdict,
    *,
    backend: str,
    is_strong: bool,
    fitted: Mapping[str, Any],
    missing: Sequence[str],
    cpus: int,
    layout: ProcessLayout | None = None,
) -> Document:
    """All that is known about a comparison, with what it was measured on.

    `layout` is that of a job whose processes all take part, whatever the row.
    """
    swept = any(row["setting"] for row in rows)
    label_of_dp = DP_ON_GPUS if backend == "nccl" else DP_ON_CPU
    document = {
        "title": "settings of DistributedDataParallel" if swept else "DataParallel against DDP",
        **_where(backend, cpus, [socket.gethostname()] if layout is None else layout.hosts),
        **_what(config, backend, {key for row in rows for key in row["setting"]}),
        "world_size": None if layout is None else layout.world_size,
        "processes_per_node": None if layout is None else layout.local_world_size,
        "global_batch": max(row["global_batch"] for row in rows),
        "strong": is_strong,
        "backend": backend,
        "label_of_dp": label_of_dp,
        "rows": [row | {"label": label_of_dp if row["mode"] == "dp" else None} for row in rows],
        "amdahl" if is_strong else "gustafson": dict(fitted),
        "verdict": {
            "words": verdict.words,
            "confidence": verdict.confidence,
            "evidence": list(verdict.evidence),
            "within_noise": verdict.within_noise,
        },
        "not_measured": list(missing),
    }
    return rounded(document)


def _where(backend: str, cpus: int, hosts: Sequence[str]) -> dict[str, Any]:
    """On what machine, when and with which versions."""
    gpus = range(torch.cuda.device_count() if backend == "nccl" else 0)
    machine = {
        "hosts": list(hosts),
        "cpus": cpus,
        "processor": _processor(),
        "gpus": [torch.cuda.get_device_name(index) for index in gpus],
    }
    return {
        "machine": machine,
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "versions": {"hpcddp": hpcddp.__version__, "torch": str(torch.__version__)},
    }


def _what(config: RunConfig, backend: str, swept: Set[str]) -> dict[str, Any]:
    """The training, and what else the time of a step depends on that is the same in all rows."""
    device = torch.device("cuda" if backend == "nccl" else "cpu")
    settings = {key: value_at(config, key) for key in _SETTINGS if key not in swept}
    settings["train.channels_last"] = is_channels_last(config.train.channels_last, device)
    return {
        "model": config.train.model,
        "data": f"{config.data.name}, {config.data.image_size} x {config.data.image_size}",
        "precision": config.train.precision,
        "settings": settings,
    }


def _processor() -> str:
    """The processor's name, as Linux knows it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2] for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0].strip() if names else platform.machine()


def not_measured(
    wanted: Sequence[Cell],
    cells: Sequence[Cell],
    rows: Sequence[Row],
    *,
    has_gpus: bool,
    no_use: str,
) -> list[str]:
    """What was asked for, or belongs to such a report, and could not be had here.

    `no_use` says why nothing is known of the use of the GPUs, where that is so.
    """
    said = [
        f"{cell.name}: this node does not show {cell.devices} GPUs"
        for cell in wanted
        if cell not in cells
    ]
    if not has_gpus:
        said.append("memory per device and use of the GPUs: there is no GPU here")
        if any(row["mode"] == "dp" for row in rows):
            said.append(f"{DP_ON_GPUS}: it needs GPUs; dp is the {DP_ON_CPU}")
    elif not any(row["gpu_utilisation"] for row in rows):
        said.append(f"use of the GPUs: {no_use}")
    return said


def rounds_left(done: int, wanted: int) -> list[str]:
    """What a document says that was left before the last round."""
    return [f"all rounds: this was kept after {done} of {wanted}"] if done < wanted else []


def csv_text(rows: Sequence[Row]) -> str:
    """One line for each row below a header, for spreadsheets; lists stay in the JSON."""
    names = list(dict.fromkeys(name for row in rows for name in row["phases"]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_CSV_FIELDS, *names])
    for row in rows:
        setting = " ".join(f"{key}={value}" for key, value in row["setting"].items())
        values = row | {"setting": setting}
        phases = [row["phases"].get(name) for name in names]
        writer.writerow([*(values[field] for field in _CSV_FIELDS), *phases])
    return text.getvalue()
