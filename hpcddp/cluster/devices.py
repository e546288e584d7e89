"""Which GPU a process uses, from the variables that hide the others. Knows no torch, sets nothing.

The variables are only counted, never rewritten: their entries may be ordinals of the node,
UUIDs or MIG names, but a process always numbers what it sees from 0.
"""

import dataclasses
import re
from collections.abc import Mapping

from hpcddp.cluster.job_names import in_step
from hpcddp.config.layout import ProcessLayout
from hpcddp.errors import HpcddpError

DEVICE_VARIABLE = "HPCDDP_DEVICE"
VISIBILITY_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_ENTRY = re.compile(r"[0-9]+|(?:GPU|MIG)-.+")


def visible_devices(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """The devices this process may see, or None if no variable restricts them.

    As in CUDA, a list ends at its first unusable entry (`-1`, `NoDevFiles`). Where several
    variables are set they filter one after the other, so the shortest list counts.
    """
    lists = [_entries(environ[name]) for name in VISIBILITY_VARIABLES if name in environ]
    return min(lists, key=len) if lists else None


def _entries(text: str) -> tuple[str, ...]:
    entries = [entry.strip() for entry in text.split(",")]
    usable = [_ENTRY.fullmatch(entry) is not None for entry in entries]
    return tuple(entries[: usable.index(False)] if False in usable else entries)


def device_index(
    environ: Mapping[str, str],
    local_rank: int,
    local_world_size: int,
    device_count: int | None = None,
) -> int | None:
    """The device of this process, or None for the CPU; the same answer on every rank's own node.

    `device_count` is what torch sees, where torch is at hand. Without it and without a
    visibility variable the answer is `local_rank`: nothing is hidden. Raises HpcddpError: `no_gpu`
    where Slurm granted none (HPCDDP_DEVICE=cpu asks for the CPU), `gpu_mismatch` where more
    processes than devices share a node.
    """
    if device_wish(environ) == "cpu":
        return None
    visible = visible_devices(environ)
    listed = None if visible is None else len(visible)
    num_devices = listed if device_count is None else device_count
    if num_devices == 0:
        return _no_device(environ, listed)
    if num_devices is None:
        return local_rank
    if local_world_size > num_devices and not _bound_per_task(
        environ, local_world_size, num_devices, listed
    ):
        raise _mismatch(environ, local_world_size, num_devices)
    return local_rank % num_devices


def device_wish(environ: Mapping[str, str]) -> str:
    """HPCDDP_DEVICE: auto (the default), cpu or cuda."""
    wish = environ.get(DEVICE_VARIABLE, "").strip() or "auto"
    if wish not in ("auto", "cpu", "cuda"):
        raise HpcddpError(f"{DEVICE_VARIABLE}={wish!r} is unknown. Use auto, cpu or cuda.")
    return wish


def with_device(layout: ProcessLayout, environ: Mapping[str, str]) -> ProcessLayout:
    """`layout` with its device index, where that came from, and what looks odd about it.

    The emulated nodes of the local launcher share one machine, so there the global rank decides.
    """
    place = (layout.local_rank, layout.local_world_size)
    if layout.launcher == "local":
        place = (layout.global_rank, layout.world_size)
    index = device_index(environ, *place)
    # One process may well drive several GPUs by DataParallel, so `single` is no reason to warn.
    odd = () if layout.launcher == "single" else device_warnings(environ, place[1])
    return dataclasses.replace(
        layout,
        device_index=index,
        sources={**layout.sources, "device_index": _source(environ, index)},
        warnings=layout.warnings + odd,
    )


def device_warnings(environ: Mapping[str, str], local_world_size: int) -> tuple[str, ...]:
    """Sentences about GPUs that would idle, were not granted, or cannot be used together."""
    visible, granted = visible_devices(environ), granted_gpus(environ)
    if not visible or device_wish(environ) == "cpu":
        return ()
    sentences = []
    if len(visible) > local_world_size:
        tasks = "1 task" if local_world_size == 1 else f"{local_world_size} tasks"
        sentences.append(
            f"{tasks} on this node, but {len(visible)} GPUs: {len(visible) - local_world_size} "
            "would idle, unless one process drives several (train.replicas=dp). Start one per "
            f"GPU: --ntasks-per-node={len(visible)}."
        )
    # Each variable for itself: Slurm sets several, a script that overrides one hides what it got.
    for name in VISIBILITY_VARIABLES:
        listed = len(_entries(environ.get(name, "")))
        if granted and listed > granted:
            sentences.append(
                f"{name} lists {listed} devices, but Slurm granted {granted} "
                "(SLURM_GPUS_ON_NODE). Remove the line of your script that sets it."
            )
    if len(visible) > 1 and visible[0].startswith("MIG-"):
        sentences.append(
            f"{len(visible)} MIG instances are visible, but CUDA uses only the first in each "
            "process. Give each task its own: --gpus-per-task=1."
        )
    return tuple(sentences)


def granted_gpus(environ: Mapping[str, str]) -> int | None:
    """GPUs of this job on this node (SLURM_GPUS_ON_NODE), or None where Slurm does not say."""
    text = environ.get("SLURM_GPUS_ON_NODE", "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else None


def _bound_per_task(
    environ: Mapping[str, str], local_world_size: int, num_devices: int, listed: int | None
) -> bool:
    """True if Slurm shows each task only its own part of the node's GPUs."""
    if listed is not None and listed > num_devices:
        return False  # CUDA refuses some of the listed devices, such as a second MIG instance
    if "SLURM_LOCALID" not in environ or "TORCHELASTIC_RUN_ID" in environ:
        return False  # only Slurm binds, and only its own tasks
    if "SLURM_GPUS_PER_TASK" in environ or "gpu" in environ.get("SLURM_TRES_PER_TASK", ""):
        return True
    granted = granted_gpus(environ)
    return local_world_size % num_devices == 0 if granted is None else local_world_size <= granted


def _no_device(environ: Mapping[str, str], listed: int | None) -> None:
    """Pass where no GPU was ever promised; raise where one was."""
    name = _variable(environ)
    if name is None:
        return
    hidden_by_user = environ[name].strip() in ("", "-1") and not in_step(environ)
    if hidden_by_user and not listed:
        return
    found = "but torch sees no GPU" if listed else "so this process has no GPU"
    raise HpcddpError(
        f"{name}={environ[name]!r}, {found}. Ask for GPUs (--gpus-per-node=1), or set "
        f"{DEVICE_VARIABLE}=cpu to train on the CPU on purpose.",
        "no_gpu",
    )


def _mismatch(environ: Mapping[str, str], local_world_size: int, num_devices: int) -> HpcddpError:
    name = _variable(environ)
    seen = f" ({name}={environ[name]})" if name else ""
    return HpcddpError(
        f"{local_world_size} processes on this node, but {num_devices} visible GPUs{seen}. Each "
        f"process needs its own: ask per node, for example --gpus-per-node={local_world_size} "
        f"--ntasks-per-node={local_world_size}, or set {DEVICE_VARIABLE}=cpu.",
        "gpu_mismatch",
    )


def _variable(environ: Mapping[str, str]) -> str | None:
    """The variable that hides the most devices, or None if none is set."""
    names = [name for name in VISIBILITY_VARIABLES if name in environ]
    return min(names, key=lambda name: len(_entries(environ[name])), default=None)


def _source(environ: Mapping[str, str], index: int | None) -> str:
    if device_wish(environ) == "cpu":
        return f"{DEVICE_VARIABLE}=cpu"
    name = _variable(environ)
    if index is None:
        return f"{name} hides all"
    return f"local rank among {name}" if name else "local rank; no variable hides a GPU"
