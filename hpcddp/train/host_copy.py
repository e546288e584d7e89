"""A copy of the training state in host memory that is used again. Knows no file and no step."""

from collections.abc import Mapping
from typing import Any

import torch

from hpcddp.train.checkpoint import snapshot_state


class HostCopy:
    """One set of buffers, filled anew by each `take`; pinned, and by a stream of its own, on CUDA.

    A real copy also of CPU tensors: training changes them while the copy is being written.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}
        self._stream: torch.cuda.Stream | None = None
        self._filled: torch.cuda.Event | None = None

    def take(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """`state` as it is now, in the buffers; overwrites what the last call returned.

        With CUDA the host does not wait: work queued later on the device does, and who reads the
        copy calls `wait` first.
        """
        self._filled = None
        copied = snapshot_state(state, self._copy)
        if self._stream is not None:
            self._filled = self._stream.record_event()
            torch.cuda.current_stream(self._stream.device).wait_event(self._filled)
            self._stream = None
        return copied

    def wait(self) -> None:
        """Return when the last `take` is complete; from any thread."""
        if self._filled is not None:
            self._filled.synchronize()

    def _copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        buffer = self._buffer(name, tensor)
        if not tensor.is_cuda:
            return buffer.copy_(tensor)
        with torch.cuda.stream(self._copy_stream(tensor.device)):
            return buffer.copy_(tensor, non_blocking=True)

    def _buffer(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or not _fits(buffer, tensor):
            buffer = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            self._buffers[name] = buffer
        return buffer

    def _copy_stream(self, device: torch.device) -> torch.cuda.Stream:
        """The stream of this `take`; it begins when what is queued for the tensors is done."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
            self._stream.wait_stream(torch.cuda.current_stream(device))
        return self._stream


def _fits(buffer: torch.Tensor, tensor: torch.Tensor) -> bool:
    alike = buffer.shape == tensor.shape and buffer.dtype == tensor.dtype
    return alike and buffer.stride() == tensor.stride()
