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
_MEAN_OVER_S = 1.0  # what NVML says is a mean of up to so long: at first of what ran before


class GpuUse:
    """Samples the GPUs that `entries` name, as CUDA_VISIBLE_DEVICES does: ordinals or UUIDs.

    Without nvidia-ml-py, a driver or any GPU it has nothing to say, and `why_nothing` why.
    """

    def __init__(self, entries: Sequence[str]) -> None:
        self.why_nothing = "no visit was longer than a second (take more --steps)"
        self._nvml: Any = None
        self._handles: list[Any] = []
        try:
            self._nvml = importlib.import_module("pynvml")
        except ImportError:
            self.why_nothing = "NVML does not answer (pip install nvidia-ml-py)"
            return
        try:
            self._nvml.nvmlInit()
            self._handles = [self._find(entry) for entry in entries]
        except self._nvml.NVMLError as error:
            self._refused(error)

    def _find(self, entry: str) -> Any:  # noqa: ANN401
        if entry.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(entry))
        return self._nvml.nvmlDeviceGetHandleByUUID(entry)

    def _refused(self, error: Exception) -> None:
        self.why_nothing = f"NVML refuses to say it ({error})"

    @contextlib.contextmanager
    def watch(self) -> Iterator[list[float]]:
        """At the end of the block the list holds the mean use of each GPU in it, 0 to 1; of a block
        that is over too soon to tell it from what ran before, nothing.
        """
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
        pause_s = _MEAN_OVER_S
        while not over.wait(pause_s):
            try:
                rates = [self._nvml.nvmlDeviceGetUtilizationRates(h) for h in self._handles]
                samples.append([rate.gpu / 100 for rate in rates])
            except self._nvml.NVMLError as error:
                self._refused(error)
            pause_s = _EVERY_S
