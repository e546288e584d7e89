"""What a checkpoint and the run that goes on from it must have in common, as far as the
configuration tells. Asked before a job is sent and again on its nodes. Knows no torch.
"""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from hpcddp.config.schema import OptimConfig, RunConfig, value_at
from hpcddp.errors import ConfigError

# Only a run that agrees in these can be continued; the rest may be changed between two starts.
IDENTITY_KEYS = (
    "train.model",
    "train.model_options",
    "train.global_batch",
    "train.seed",
    "data.name",
    "data.image_size",
    "data.synthetic_classes",
)

# Of what may be changed, what the bits depend on: a resumed run says so.
SETTINGS_KEYS = (
    "train.replicas",
    "train.channels_last",
    "train.precision",
    "train.label_smoothing",
    "train.max_grad_norm",
    "train.ema_decay",
    "data.augment",
    "ddp.bucket_cap_mib",
    "ddp.static_graph",
    *(f"optim.{field.name}" for field in fields(OptimConfig)),
)


def identity_of(config: RunConfig, run_name: str) -> Mapping[str, Any]:
    """What makes a checkpoint one of this run; kept in its manifest."""
    return {"run": run_name, **{key: value_at(config, key) for key in IDENTITY_KEYS}}


def chosen_settings(config: RunConfig) -> dict[str, Any]:
    """The values of SETTINGS_KEYS; kept in manifests, too."""
    return {key: value_at(config, key) for key in SETTINGS_KEYS}


def check_identity(path: Path, extra: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Raise ConfigError `foreign_checkpoint` where the checkpoint at `path`, whose manifest has
    this `extra`, is of another run.
    """
    differing = [key for key, value in identity.items() if extra.get(key, value) != value]
    if not differing:
        return
    said = ", ".join(f"{key}={extra[key]} there and {identity[key]} here" for key in differing)
    settings = " ".join(f"{key}={extra[key]}" for key in differing if key != "run")
    way_out = f"Go on with `{settings}`, or start" if settings else "Start"
    raise ConfigError(
        f"{path} cannot be continued by this run: {said}. {way_out} a new run under "
        "another name (`hpcddp submit --name NAME`).",
        "foreign_checkpoint",
    )


def check_unchanged(path: Path, changed: Mapping[str, Any]) -> None:
    """Raise ConfigError `other_fingerprint` where something has changed since the checkpoint at
    `path` was written: for runs that are to end with the same bits.
    """
    if changed:
        raise ConfigError(
            f"{path} was written under other conditions: {change_words(changed)}. Going on "
            "would not end with the same bits. Start it as before, or allow it with "
            "`checkpoint.strict_fingerprint=false`.",
            "other_fingerprint",
        )


def change_words(changed: Mapping[str, Any]) -> str:
    """The changes as part of a sentence; name -> [value then, value now]."""
    return ", ".join(f"{name} was {then} and is {now}" for name, (then, now) in changed.items())
