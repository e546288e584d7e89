"""What a checkpoint must hold to go on exactly: values only. Knows no file and no device choice."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hpcddp.train.ema import WeightAverage
from hpcddp.train.process_group import Ranks


@dataclass(slots=True)
class TrainState:
    """Everything that training changes.

    `step` counts optimizer updates, `samples_seen` images over all processes.
    """

    model: nn.Module  # never wrapped, so names are torchvision's
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    step: int = 0
    samples_seen: int = 0
    ema: WeightAverage | None = None

    @property
    def evaluated(self) -> tuple[nn.Module, str]:
        """The model that is evaluated, the average where there is one; and which that is."""
        return (self.model, "model") if self.ema is None else (self.ema.model, "ema")

    def to_dict(self) -> dict[str, Any]:
        """Tensors (shared, not copied) and plain values; the optimizer's by parameter name."""
        return {
            "model": self.model.state_dict(),
            "optimizer": {name: values for name, _, values in self._optimizer_values()},
            "scaler": self.scaler.state_dict(),
            **({} if self.ema is None else {"ema": self.ema.state_dict()}),
            **self._counts(),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Take over what `to_dict` gave. Options of the optimizer stay as configured.

        An average that was not saved begins with the weights that were.
        """
        self.model.load_state_dict(saved["model"])
        if self.ema is not None:
            self.ema.load(saved.get("ema", saved["model"]))
        for name, parameter in self.model.named_parameters():
            values = saved["optimizer"].get(name, {})
            self.optimizer.state[parameter] = {
                key: torch.empty_like(parameter, requires_grad=False).copy_(value)
                for key, value in values.items()
            }
        self._load_counts(saved)
        if saved["scaler"]:
            self.scaler.load_state_dict(saved["scaler"])

    def share(self, ranks: Ranks) -> None:
        """Give every process the main one's state. Collective."""
        keys_of, counts, scaler = ranks.decide(self._outline)
        for name, parameter in self.model.named_parameters():
            held = self.optimizer.state[parameter]
            for key in keys_of[name]:
                held.setdefault(key, torch.empty_like(parameter, requires_grad=False))
        self._load_counts(counts)
        if scaler:
            self.scaler.load_state_dict(scaler)
        ranks.broadcast(list(self.tensors()))

    def tensors(self) -> Iterator[torch.Tensor]:
        """All tensors of model, average and optimizer, in the same order in every process."""
        yield from self.model.state_dict().values()
        if self.ema is not None:
            yield from self.ema.state_dict().values()
        for _, _, values in self._optimizer_values():
            yield from values.values()

    def _outline(self) -> tuple[dict[str, list[str]], dict[str, Any], dict[str, Any]]:
        keys_of = {name: sorted(values) for name, _, values in self._optimizer_values()}
        return keys_of, self._counts(), self.scaler.state_dict()

    def _optimizer_values(self) -> Iterator[tuple[str, nn.Parameter, dict[str, torch.Tensor]]]:
        for name, parameter in self.model.named_parameters():
            held = self.optimizer.state.get(parameter, {})
            values = {key: held[key] for key in sorted(held) if torch.is_tensor(held[key])}
            yield name, parameter, values

    def _counts(self) -> dict[str, Any]:
        return {"step": self.step, "samples_seen": self.samples_seen}

    def _load_counts(self, saved: Mapping[str, Any]) -> None:
        self.step = saved["step"]
        self.samples_seen = saved["samples_seen"]
