"""What one node has: interfaces, RDMA devices, GPUs, cores. A short job prints it as JSON.

`python -m hpcddp.cluster.node_facts` on the node; knows no Slurm and no torch.
"""

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from hpcddp.cluster.interfaces import read_host

_RDMA = Path("/sys/class/infiniband")


def node_facts(rdma: Path = _RDMA) -> dict[str, Any]:
    """Facts of this machine as plain values."""
    return {
        "host": socket.gethostname(),
        "arch": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_mib": psutil.virtual_memory().total // 2**20,
        "interfaces": _interfaces(),
        "rdma": _rdma_devices(rdma),
        "gpus": _gpus(),
    }


def _interfaces() -> dict[str, dict[str, Any]]:
    """Interfaces that are up, with their addresses, kind and speed."""
    return {
        each.name: {
            "addresses": [address for address in each.addresses if ":" not in address],
            "kind": each.kind,
            "speed_mbit_per_s": each.speed_mbit_per_s,
        }
        for each in read_host(os.environ).interfaces
        if each.is_up
    }


def _rdma_devices(root: Path) -> dict[str, str]:
    """Name and link layer (InfiniBand or Ethernet) of each device."""
    found = {}
    for device in sorted(root.glob("*")):
        layers = [_text(port) for port in sorted(device.glob("ports/*/link_layer"))]
        found[device.name] = layers[0] if layers else ""
    return found


def _gpus() -> list[str]:
    """One line per GPU, as nvidia-smi or rocm-smi names it; empty without either."""
    for program, words in (("nvidia-smi", ["-L"]), ("rocm-smi", ["--showproductname"])):
        if not shutil.which(program):
            continue
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=60)
        return [line for line in done.stdout.splitlines() if line.startswith("GPU")]
    return []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


if __name__ == "__main__":
    sys.stdout.write(json.dumps(node_facts()))
