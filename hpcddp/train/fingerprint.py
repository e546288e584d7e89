"""What the bits of a run depend on besides its configuration. Knows no file and no step."""

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy
import PIL
import torch
import torchvision

from hpcddp.config.layout import ProcessLayout
from hpcddp.train.process_group import Ranks

_NCCL_CHOICES = ("NCCL_ALGO", "NCCL_PROTO")
_DIGEST_BYTES = 7  # which make a number that is not negative
# Facts that are only recorded where they are not what they nearly always are.
_ONLY_UNUSUAL = ("devices_per_process", "unlike_processes", *_NCCL_CHOICES)


def fingerprint_of(
    device: torch.device, layout: ProcessLayout, ranks: Ranks, devices_per_process: int = 1
) -> dict[str, Any]:
    """JSON values that must be equal for a resumed run to end with equal bits. Collective.

    Those of this process, and which others differ from the main process.
    """
    facts = _own_facts(device, layout, devices_per_process)
    unlike = _unlike_main(facts, layout, ranks)
    return facts | ({"unlike_processes": unlike} if unlike else {})


def _unlike_main(facts: Mapping[str, Any], layout: ProcessLayout, ranks: Ranks) -> str:
    """The ranks whose facts are others than rank 0's, each with a digest; "" if all are alike."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()
    digests = torch.zeros(layout.world_size, dtype=torch.int64)
    digests[layout.global_rank] = int.from_bytes(digest[:_DIGEST_BYTES], "big")
    ranks.start_max(digests).wait()
    main, *others = digests.tolist()
    ranks_and_digests = enumerate(others, start=1)
    return ", ".join(f"{rank} ({own:x})" for rank, own in ranks_and_digests if own != main)


def _own_facts(
    device: torch.device, layout: ProcessLayout, devices_per_process: int
) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "world_size": layout.world_size,
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": "cpu",
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "numpy": numpy.__version__,
        "pillow": PIL.__version__,  # decodes the images
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
    if devices_per_process > 1:
        facts["devices_per_process"] = devices_per_process
    if device.type == "cuda":
        facts["device"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
        facts["cudnn"] = torch.backends.cudnn.version()
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        facts["processes_per_node"] = layout.local_world_size  # which decides NCCL's rings
        facts |= {name: os.environ[name] for name in _NCCL_CHOICES if name in os.environ}
    return facts


def changes(saved: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, list[Any]]:
    """name -> [value then, value now] of what differs; nothing is said of what was not recorded."""
    unusual = [name for name in _ONLY_UNUSUAL if name in here]
    names = sorted({*saved, *unusual}) if saved else []
    return {
        name: [saved.get(name), here.get(name)]
        for name in names
        if saved.get(name) != here.get(name)
    }
