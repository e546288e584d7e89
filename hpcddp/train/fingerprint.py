"""What the bits of a run depend on besides its configuration. Knows no file and no step."""

from collections.abc import Mapping
from typing import Any

import numpy
import torch


def fingerprint_of(
    device: torch.device, world_size: int, devices_per_process: int = 1
) -> dict[str, Any]:
    """JSON values that must be equal for a resumed run to end with equal bits.

    Of the main process: nodes of one job are taken to be alike.
    """
    facts: dict[str, Any] = {
        "world_size": world_size,
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": "cpu",
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
    if devices_per_process > 1:
        facts["devices_per_process"] = devices_per_process
    if device.type == "cuda":
        facts["device"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
        facts["cudnn"] = torch.backends.cudnn.version()
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return facts


def changes(saved: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, list[Any]]:
    """name -> [value then, value now] of what differs; nothing is said of what was not recorded."""
    names = sorted(saved.keys() | here.keys()) if saved else []
    return {
        name: [saved.get(name), here.get(name)]
        for name in names
        if saved.get(name) != here.get(name)
    }


def change_words(changed: Mapping[str, Any]) -> str:
    """The changes as part of a sentence."""
    return ", ".join(f"{name} was {then} and is {now}" for name, (then, now) in changed.items())
