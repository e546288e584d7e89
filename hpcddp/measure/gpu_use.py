"""How busy the GPUs of this node are while something else runs, by NVML. Knows no training.

NVML says a GPU is busy while any kernel is on it, one that waits for another GPU too: a low number
is a finding, a high one is not.
"""

import contextlib
import importlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

_EVERY_S = 0.1


class GpuUse:
    """Samples the GPUs that `entries` name, as CUDA_VISIBLE_DEVICES does: ordinals or UUIDs.

    Without nvidia-ml-py, a driver or any GPU it has nothing to say.
    """

    def __init__(self, entries: Sequence[str]) -> None:
        self._nvml = _open_nvml()
        self._handles = [] if self._nvml is None else self._find(entries)

    def _find(self, entries: Sequence[str]) -> list[Any]:
        by_number, by_uuid = (
            self._nvml.nvmlDeviceGetHandleByIndex,
            self._nvml.nvmlDeviceGetHandleByUUID,
        )
        try:
            return [by_number(int(e)) if e.isdigit() else by_uuid(e) for e in entries]
        except self._nvml.NVMLError:
            return []

    @contextlib.contextmanager
    def watch(self) -> Iterator[list[float]]:
        """At the end of the block the list holds the mean use of each GPU in it, 0 to 1."""
        means: list[float] = []
        if not self._handles:
            yield means
            return
        samples: list[list[float]] = []
        over = threading.Event()
        thread = threading.Thread(target=self._sample, args=(samples, over), daemon=True)
        thread.start()
        try:
            yield means
        finally:
            over.set()
            thread.join()
            means += [sum(gpu) / len(gpu) for gpu in zip(*samples, strict=True)]

    def _sample(self, samples: list[list[float]], over: threading.Event) -> None:
        while not over.wait(_EVERY_S):
            with contextlib.suppress(self._nvml.NVMLError):
                rates = [self._nvml.nvmlDeviceGetUtilizationRates(h) for h in self._handles]
                samples.append([rate.gpu / 100 for rate in rates])


def _open_nvml() -> Any:  # noqa: ANN401
    """The module, initialised, or None where it has nothing to work with."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml
