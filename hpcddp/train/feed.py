"""Batches from the loader to the device, as numbers the model expects. Knows no order, no rank.

Shapes: n images of this pass, c = 3 channels, h = w = image_size.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hpcddp.data.datasets import Batch, Dataset
from hpcddp.train.step_timer import Timer

_WHITE = 255.0


@dataclass(frozen=True, slots=True)
class ToDevice:
    """Turns (uint8, int64) of the loader into normalised floats and labels on the device.

    Only bytes cross the bus. From pinned memory the copy does not stop the host.
    """

    device: torch.device
    memory_format: torch.memory_format
    mean_1c11: torch.Tensor  # in units of bytes
    std_1c11: torch.Tensor

    def __call__(self, batch: Batch) -> Batch:
        images_nchw, labels_n = batch
        images_nchw = images_nchw.to(self.device, non_blocking=True)
        images_nchw = images_nchw.to(torch.float32, memory_format=self.memory_format)
        images_nchw.sub_(self.mean_1c11).div_(self.std_1c11)
        return images_nchw, labels_n.to(self.device, non_blocking=True)


def build_to_device(dataset: Dataset, device: torch.device, channels_last: bool) -> ToDevice:
    """Normalises with the data set's own mean and standard deviation."""

    def channels(values: tuple[float, float, float]) -> torch.Tensor:
        return torch.tensor(values, device=device).mul_(_WHITE).view(1, -1, 1, 1)

    return ToDevice(
        device,
        torch.channels_last if channels_last else torch.contiguous_format,
        channels(dataset.mean_c),
        channels(dataset.std_c),
    )


class Feed:
    """The endless stream of micro-batches of this process, on the device."""

    def __init__(self, batches: Iterator[Batch], to_device: ToDevice, timer: Timer) -> None:
        self._batches = batches
        self._to_device = to_device
        self._timer = timer
        self._waited_s = 0.0

    def next(self) -> Batch:
        """The next micro-batch."""
        begin = time.perf_counter()
        with self._timer.data_wait():
            batch = next(self._batches)
        self._waited_s += time.perf_counter() - begin
        with self._timer.host_to_device():
            return self._to_device(batch)

    def take_waited_s(self) -> float:
        """Seconds spent waiting for the loader since this was last asked."""
        waited_s, self._waited_s = self._waited_s, 0.0
        return waited_s
