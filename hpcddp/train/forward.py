"""From images to a loss, in the number format that was asked for. Knows no step and no optimizer.

Shapes: n images, c = 3 channels, h = w = image_size, k classes.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from hpcddp.train.replicas import Replicas

_AUTOCAST_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class Forward:
    """The replicas with `precision` (fp32, or autocast to bf16 or fp16) and their loss."""

    replicas: Replicas
    device: torch.device
    precision: str = "fp32"
    label_smoothing: float = 0.0

    def loss(self, images_nchw: torch.Tensor, labels_n: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy over this process's images; its backward reduces over processes."""
        with self._autocast():
            logits_nk = self.replicas(images_nchw)
            return F.cross_entropy(logits_nk, labels_n, label_smoothing=self.label_smoothing)

    def logits(self, model: nn.Module, images_nchw: torch.Tensor) -> torch.Tensor:
        """Logits (n, k) of `model`, one copy of this process; no other process takes part."""
        with self._autocast():
            return model(images_nchw)

    def _autocast(self) -> torch.autocast:
        chosen = _AUTOCAST_TYPES.get(self.precision)
        return torch.autocast(self.device.type, dtype=chosen, enabled=chosen is not None)


def build_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """Scales the loss for fp16, whose gradients would underflow; otherwise it changes nothing."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")
