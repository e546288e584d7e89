"""What is compared: modes, numbers of devices, settings, and the run each of them stands for.

Pure; starts nothing and knows no torch.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcddp.config.batch import busy_devices, plan_batches
from hpcddp.config.load import Layer, command_line_layer, resolve
from hpcddp.config.schema import RunConfig, value_at
from hpcddp.errors import ConfigError

MODES = ("single", "dp", "ddp")
SWEPT = "ddp."  # what a sweep may vary: it must not change the model, the data or their order
_NEVER, _TINY = 1_000_000_000, 1e-6

Setting = Mapping[str, Any]  # of a sweep: dotted key -> value


@dataclass(frozen=True, slots=True)
class Cell:
    """One way to train: `devices` are GPUs, or shares of a machine without them."""

    mode: str
    devices: int
    setting: Setting = field(default_factory=dict)

    @property
    def name(self) -> str:
        """How messages, tables and logs call it."""
        values = ", ".join(f"{key}={value}" for key, value in self.setting.items())
        return f"{self.mode} x {self.devices}" + (f", {values}" if values else "")

    @property
    def processes(self) -> int:
        return self.devices if self.mode == "ddp" else 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for on the command line, checked."""

    modes: tuple[str, ...]
    devices: tuple[int, ...]
    is_weak: bool = False
    rounds: int = 5
    steps: int = 10

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every mode on every number of devices; `single` only on one."""
        pairs = itertools.product(self.devices, self.modes)
        return tuple(Cell(mode, n) for n, mode in pairs if mode != "single" or n == 1)

    @property
    def left_out(self) -> list[str]:
        """What is asked for and is no cell."""
        if "single" not in self.modes or 1 in self.devices:
            return []
        return ["single: it trains on one device, and 1 is not among --devices"]


def parse_modes(text: str) -> tuple[str, ...]:
    """`single,dp,ddp` in the order of MODES. Raises ConfigError for a word that is none."""
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word not in MODES:
            raise ConfigError(
                f"--modes {text}: `{word}` is no mode. Use some of {', '.join(MODES)}."
            )
    return tuple(mode for mode in MODES if mode in words)


def parse_devices(text: str) -> tuple[int, ...]:
    """`1,2,4` in ascending order. Raises ConfigError for what is no positive number."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) for word in words):
        raise ConfigError(f"--devices {text}: use numbers of devices, for example 1,2,4.")
    return tuple(sorted({int(word) for word in words}))


def all_devices(most: int) -> tuple[int, ...]:
    """1, 2, 4 ... up to `most`, and that."""
    return tuple(sorted({1 << power for power in range(most.bit_length())} | {most}))


def parse_sweep(words: Sequence[str], config: RunConfig) -> tuple[Setting, ...]:
    """`ddp.key=1,2,3` as one setting per value; several words as all their combinations.

    The same value twice is two settings: what differs between them is noise.
    Raises ConfigError for a key outside `ddp.` and for a value that its key cannot have.
    """
    axes: dict[str, list[str]] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if key.startswith(SWEPT) and not text:
            raise ConfigError(f"--sweep {word}: it needs values, for example {key}=1,2,4.")
        if not key.startswith(SWEPT) or not equals:
            raise ConfigError(
                f"--sweep {word}: a sweep varies options of DistributedDataParallel only, for "
                "example ddp.bucket_cap_mib=1,10,25,50,100."
            )
        if key in axes:
            raise ConfigError(f"--sweep {word}: give all values of {key} in one --sweep.")
        axes[key] = [f"{key}={value.strip()}" for value in text.split(",")]
    return tuple(_setting(combination, config) for combination in itertools.product(*axes.values()))


def check_swept(words: Sequence[str], config: RunConfig, world_size: int) -> tuple[Setting, ...]:
    """The settings of a sweep in a job of that size. Raises ConfigError for what cannot be."""
    settings = parse_sweep(words, config)
    if world_size < 2:
        raise ConfigError(
            "One process exchanges no gradients, so no setting of ddp makes a difference. Use "
            "--nodes 2, --gpus-per-node 2, or on CPUs resources.processes_per_node=2."
        )
    train = config.train
    plan_batches(
        global_batch=train.global_batch, micro_batch=train.micro_batch, world_size=world_size
    )
    if train.replicas != "ddp":
        raise ConfigError(
            f"train.replicas={train.replicas}, and a sweep varies settings of ddp. Use "
            "train.replicas=ddp."
        )
    return settings


def _setting(words: Sequence[str], config: RunConfig) -> Setting:
    run = Layer("run", {**dataclasses.asdict(config), "command": []})
    swept = resolve([run, command_line_layer(words)]).config
    return {key: value_at(swept, key) for key, _, _ in (word.partition("=") for word in words)}


def check_wanted(wanted: Wanted, config: RunConfig) -> None:
    """Raise ConfigError for what could only fail once the job has started."""
    if not wanted.cells:
        raise ConfigError(
            f"--modes {','.join(wanted.modes)} with --devices {','.join(map(str, wanted.devices))}"
            " leaves nothing: `single` trains on one device. Add 1 to --devices, or dp or ddp."
        )
    nodes = config.resources.nodes
    if nodes > 1:
        raise ConfigError(
            f"{nodes} nodes, and `compare` puts its modes side by side on one node: torch's "
            "DataParallel knows no other. Leave --nodes out, or compare settings of ddp on several "
            "nodes: --modes ddp --sweep ddp.bucket_cap_mib=1,10,25,50,100."
        )
    for cell in wanted.cells:
        config_of(cell, wanted, config)


def config_of(cell: Cell, wanted: Wanted, config: RunConfig) -> RunConfig:
    """The run that a cell measures. Raises ConfigError where its batches do not divide.

    The global batch is the same everywhere; with `is_weak` the images per device are, as many as
    the largest number of devices leaves to each.
    """
    train, most = config.train, max(wanted.devices)
    if wanted.is_weak:
        per_device = plan_batches(
            global_batch=train.global_batch, micro_batch=None, world_size=most
        ).micro_batch
        global_batch = per_device * cell.devices
    else:
        global_batch = train.global_batch
    # Both are meant per device; dp's only process feeds several.
    micro_batch, workers = train.micro_batch, config.data.workers
    if cell.mode == "dp":
        micro_batch = None if micro_batch is None else micro_batch * cell.devices
        workers *= cell.devices
    plan = plan_batches(
        global_batch=global_batch, micro_batch=micro_batch, world_size=cell.processes
    )
    if cell.mode == "dp":
        _check_none_is_idle(cell, plan.micro_batch)
    trained = dataclasses.replace(
        train,
        replicas=cell.mode,
        dp_devices=cell.devices if cell.mode == "dp" else None,
        global_batch=global_batch,
        micro_batch=micro_batch,
    )
    data = dataclasses.replace(config.data, workers=workers)
    return measured(dataclasses.replace(config, train=trained, data=data))


def _check_none_is_idle(cell: Cell, images: int) -> None:
    """What is called so many devices must be that many."""
    busy = busy_devices(images, cell.devices)
    if busy < cell.devices:
        raise ConfigError(
            f"{cell.name}: DataParallel cuts {images} images into equal chunks, so only {busy} of "
            f"{cell.devices} devices would get any. Set train.global_batch to a multiple of "
            f"{cell.devices}, or compare fewer --devices."
        )


def config_of_setting(setting: Setting, config: RunConfig) -> RunConfig:
    """The run of one value of a sweep."""
    values = {key.removeprefix(SWEPT): value for key, value in setting.items()}
    return measured(dataclasses.replace(config, ddp=dataclasses.replace(config.ddp, **values)))


def measured(config: RunConfig) -> RunConfig:
    """A run that only takes steps: it never ends, reports or evaluates, and hardly learns."""
    return dataclasses.replace(
        config,
        command=(),
        train=dataclasses.replace(
            config.train,
            max_steps=_NEVER,
            max_epochs=None,
            eval_every_epochs=None,
            time_steps=True,
        ),
        # The time of a step does not depend on it, and no loss can grow beyond all bounds.
        optim=dataclasses.replace(config.optim, lr=_TINY, scale_lr=False, schedule="constant"),
        log=dataclasses.replace(config.log, every_steps=_NEVER),
    )
