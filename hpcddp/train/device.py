"""The device of this process and how exactly it computes. Knows no rank arithmetic and no model."""

import ctypes
import os
import socket

import torch

from hpcddp.config.layout import ProcessLayout
from hpcddp.config.schema import TrainConfig
from hpcddp.errors import HpcddpError

# Of glibc's malloc.h, and what its manual says that turns trimming off and is most for the other.
_M_TRIM_THRESHOLD, _NEVER = -1, -1
_M_MMAP_THRESHOLD, _MOST_BYTES = -3, 32 << 20
_USERS_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def open_device(config: TrainConfig, layout: ProcessLayout) -> torch.device:
    """The device of this process, and all that is set for the whole process to compute on it.

    Raises HpcddpError as `choose_device` does.
    """
    device = choose_device(config.device, layout)
    if device.type == "cpu":
        keep_freed_memory()
    if config.deterministic:
        make_deterministic()
    return device


def choose_device(wish: str, layout: ProcessLayout) -> torch.device:
    """The device for `train.device` = auto, cpu or cuda, made current before anything uses it.

    Where a GPU was granted, auto does not mean the CPU: a torch that cannot use the GPU would burn
    the allocation.

    Raises HpcddpError `no_gpu` or `gpu_mismatch` when the device that is wanted is not there.
    """
    num_devices = 0 if wish == "cpu" else torch.cuda.device_count()
    is_granted = "VISIBLE_DEVICES" in layout.sources.get("device_index", "")
    has_none = layout.device_index is None or (num_devices == 0 and not is_granted)
    if wish == "cpu" or (wish == "auto" and has_none):
        return torch.device("cpu")
    index = layout.local_rank if layout.device_index is None else layout.device_index
    if num_devices == 0:
        raise HpcddpError(_no_device_words(is_granted=is_granted), "no_gpu")
    _check_device(index, num_devices)
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def _check_device(index: int, num_devices: int) -> None:
    if index >= num_devices:
        raise HpcddpError(
            f"This process is to use CUDA device {index}, but only {num_devices} are visible to it "
            f"on {socket.gethostname()}. Start at most {num_devices} processes there "
            f"(--gpus-per-node {num_devices}).",
            "gpu_mismatch",
        )


def _no_device_words(*, is_granted: bool) -> str:
    """What torch lacks; `is_granted` where the job has a GPU and so need not ask for one."""
    cuda = torch.version.cuda
    has = "This process was given a GPU" if is_granted else "train.device=cuda asks for a GPU"
    built = f"built for CUDA {cuda}" if cuda else "built for the CPU"
    ways = [
        *([] if is_granted else ["Ask for GPUs (--gpus-per-node 1)"]),
        "see there whether nvidia-smi works" if cuda else "install a torch for its GPUs",
        "or use train.device=cpu",
    ]
    ways[0] = ways[0][0].upper() + ways[0][1:]
    return (
        f"{has}, but torch {torch.__version__} ({built}) sees no CUDA device on "
        f"{socket.gethostname()}. {', '.join(ways)}."
    )


def keep_freed_memory() -> None:
    """Let the C library keep what is freed, unless its user has decided about that.

    glibc gives the end of its heap back to the kernel. A step on the CPU frees its gradients, as
    DDP's buckets hold them, and so got its pages anew each time: 13,700 page faults in a step of
    ResNet-50, and 8 % of its time (docs/benchmarks.md). Does nothing without glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and not any(name in os.environ for name in _USERS_OWN):
        mallopt(_M_TRIM_THRESHOLD, _NEVER)
        mallopt(_M_MMAP_THRESHOLD, _MOST_BYTES)


def make_deterministic() -> None:
    """Use deterministic operators wherever torch has them; a warning names those that are not."""
    # cuBLAS reads it when its first handle is made; without it some products are not repeatable.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False  # picks kernels by timing, so another one every start
    # Only of use to code that reads memory it never wrote; costs a pass over every new tensor.
    torch.utils.deterministic.fill_uninitialized_memory = False
