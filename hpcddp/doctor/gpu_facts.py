"""The GPUs of this host as NVIDIA's management library sees them. Judges nothing, opens no GPU."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from hpcddp.doctor.findings import Facts

_DRIVER = Path("/proc/driver/nvidia")
_AMD = Path("/dev/kfd")  # what ROCm computes through
# Bits of the reasons for a lower clock that do not come with ordinary load or rest.
_SLOWDOWNS = {0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat (hardware)", 0x80: "power brake"}


def read_gpus(driver: Path = _DRIVER, amd: Path = _AMD) -> dict[str, Any]:
    """The facts `gpus`, `lost_gpus` (what the library says of each that does not answer), `driver`
    (its version) and `no_gpu` (why there are none, "" if there are).
    """
    none = "AMD GPUs are not read by doctor; rocm-smi shows them" if amd.exists() else ""
    try:
        nvml = import_module("pynvml")
    except ModuleNotFoundError:
        missing = "pip install nvidia-ml-py, to look at the GPUs"
        return no_gpus(missing if driver.exists() else none or "no NVIDIA GPU")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return no_gpus(none or f"no NVIDIA GPU ({error})")
    try:
        return _all_gpus(nvml)
    except nvml.NVMLError as error:
        return no_gpus(f"no NVIDIA GPU ({error})")
    finally:
        nvml.nvmlShutdown()


def no_gpus(why: str) -> dict[str, Any]:
    return {"gpus": [], "lost_gpus": [], "driver": "", "no_gpu": why}


def _all_gpus(nvml: Any) -> dict[str, Any]:  # noqa: ANN401
    gpus, lost = [], []
    for number in range(nvml.nvmlDeviceGetCount()):
        try:
            gpus.append(_gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(number)))
        except nvml.NVMLError as error:
            # Slurm may have closed the GPUs of others to this job.
            if getattr(error, "value", None) != nvml.NVML_ERROR_NO_PERMISSION:
                lost.append(f"GPU {number}: {error}")
    driver = _text(nvml.nvmlSystemGetDriverVersion())
    why = "" if gpus else "no NVIDIA GPU"
    return {"gpus": gpus, "lost_gpus": lost, "driver": driver, "no_gpu": why}


def with_own_gpus(processes: Sequence[Facts]) -> list[dict[str, Any]]:
    """The facts of all processes, each with those GPUs of its node that the job uses.

    The library also sees what Slurm has given to others. CUDA writes UUIDs without `GPU-`.
    """
    used: dict[str, set[str]] = {}
    for facts in processes:
        used.setdefault(facts["host"], set()).add(facts["device_uuid"] or "")
    return [{**facts, **_own(facts, used[facts["host"]])} for facts in processes]


def _own(facts: Facts, used: set[str]) -> dict[str, Any]:
    own = [gpu for gpu in facts["gpus"] if gpu["uuid"].removeprefix("GPU-") in used]
    why = facts["no_gpu"] or ("" if own else "this job uses no GPU that NVIDIA's library names")
    return {"gpus": own, "no_gpu": why}


def _gpu(nvml: Any, handle: Any) -> dict[str, Any]:  # noqa: ANN401
    """Raises NVMLError where not even its UUID can be had."""

    def ask(name: str, *words: Any) -> Any:  # noqa: ANN401
        try:
            return getattr(nvml, name)(handle, *words)
        except (AttributeError, nvml.NVMLError):
            return None  # not every GPU, partition or version of the library answers everything

    memory = ask("nvmlDeviceGetMemoryInfo")
    reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
    return {
        "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
        "name": _text(ask("nvmlDeviceGetName")),
        "used_bytes": int(memory.used) if memory else None,
        "slowed_by": [word for bit, word in _SLOWDOWNS.items() if reasons & bit],
        "clock_mhz": ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        "temperature_c": ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        "pcie_width": ask("nvmlDeviceGetCurrPcieLinkWidth"),
        "max_pcie_width": ask("nvmlDeviceGetMaxPcieLinkWidth"),
    }


def _text(value: Any) -> str:  # noqa: ANN401
    return value.decode() if isinstance(value, bytes) else str(value or "")
