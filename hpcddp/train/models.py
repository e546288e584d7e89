"""torchvision's classification models by name. Knows no device and no process."""

import difflib
from collections.abc import Mapping
from typing import Any

import torch
import torchvision
from torch import nn

from hpcddp.errors import ConfigError

# How torch begins to say that a model cannot do with the shape of its images.
_TOO_FEW = "Expected more than 1 value per channel"
_WRONG_SIZE = ("Wrong image", "Kernel size can't be greater", "Output size is too small")


def check_model(name: str) -> None:
    """Raise ConfigError, with the nearest names, unless torchvision has this model."""
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(known)}."
        raise ConfigError(f"train.model={name}: torchvision has no such model. {hint}")


def build_model(name: str, num_classes: int, options: Mapping[str, Any], seed: int) -> nn.Module:
    """The untrained model; its weights depend on `seed` only. Moves torch's global generator.

    `options` go to torchvision's builder; one that is None is left out, so that the command line
    can take back what a file says. Raises ConfigError when the builder does not take them.
    """
    check_model(name)
    given = {option: value for option, value in options.items() if value is not None}
    torch.manual_seed(seed)
    try:
        return torchvision.models.get_model(name, num_classes=num_classes, **given)
    except (TypeError, ValueError) as error:
        without = " ".join(f"train.model_options.{option}=null" for option in given)
        raise ConfigError(
            f"train.model_options={given}: torchvision's {name} does not take this ({error}). Its "
            f"documentation lists what it takes; to leave it out: {without}"
        ) from error


def refused_images(name: str, images: int, image_size: int, error: Exception) -> ConfigError | None:
    """What to say where a model's first pass ended with `error` because of the shape of its
    images; None where it was something else.
    """
    said = str(error).strip().rpartition("\n")[2]
    if not any(words in said for words in (_TOO_FEW, *_WRONG_SIZE)):
        return None
    advice = "Change data.image_size."
    if _TOO_FEW in said:
        advice = (
            "Set data.image_size to 64 or more, or train.micro_batch (else train.global_batch over"
            " the processes) to 2 or more for each device: batch norm needs two values per "
            "channel, and small images end in maps of 1 x 1."
        )
    return ConfigError(
        f"train.model={name} cannot train on micro-batches of {images} x {image_size} x "
        f"{image_size} (images, pixels). {advice} torch says: {said}"
    )


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
