"""Everything one run can be told, as strict frozen dataclasses. Knows no file and no machine.

The comment behind a field is its help text; `hpcddp.config.load` merges the layers into a
`RunConfig`. `None` means "decide from the context", and the comment says how.
"""

from dataclasses import dataclass, field
from typing import Any

from hpcddp.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Resources:
    """What one submission asks Slurm (or the local executor) for."""

    nodes: int = 1
    gpus_per_node: int | None = None  # profile; 0 or None on clusters without GPUs
    gpu_type: str | None = None  # profile; the type named in that request, e.g. l40s
    processes_per_node: int | None = None  # one per GPU; without GPUs the profile's number
    cpus_per_process: int | None = None  # profile
    time: str | None = None  # Slurm's forms: minutes, HH:MM:SS, D-HH:MM:SS
    queue: str | None = None  # a queue by the profile's name for it; None: its default
    variant: str | None = None  # a named variant of the profile
    launch: str | None = None  # srun: a task per process; torchrun: one per node; None: profile
    container: str | None = None  # image to run in; how is up to the profile
    project: str | None = None  # fills {project} in the profile's account and paths
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    mem: str | None = None  # per node
    mem_per_cpu: str | None = None
    mem_per_gpu: str | None = None
    warn_before_s: int = 120  # Slurm signals the processes this long before the time limit
    sbatch: dict[str, Any] = field(default_factory=dict)  # any other sbatch option: value
    srun: dict[str, Any] = field(default_factory=dict)  # any other srun option: value


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """The model and the loop."""

    model: str = "resnet50"  # any torchvision classification model
    model_options: dict[str, Any] = field(default_factory=dict)  # for torchvision's builder
    replicas: str = "ddp"  # single; ddp: one process per device; dp: one process for all of a node
    dp_devices: int | None = None  # for replicas=dp; None: all visible GPUs, 2 threads on a CPU
    global_batch: int = 256  # images per optimizer step over all processes
    # images per process per pass, with replicas=dp over all its devices; None: all in one, and a
    # resumed run keeps the images per device of its first start
    micro_batch: int | None = None
    max_steps: int | None = None  # training ends at max_steps or max_epochs,
    max_epochs: float | None = None  # whichever comes first
    eval_every_epochs: float | None = 1.0  # None: only at the end
    seed: int = 0
    device: str = "auto"  # auto, cpu, cuda
    precision: str = "fp32"  # fp32, bf16, fp16 (autocast; fp16 with loss scaling)
    channels_last: bool | None = None  # memory format; None: on CUDA only
    label_smoothing: float = 0.0
    max_grad_norm: float | None = None
    ema_decay: float = 0.0  # of a moving average of the weights, which is evaluated; 0: none
    on_nonfinite: str = "stop"  # a loss that is NaN or infinite: stop, or skip the step
    deterministic: bool = True  # deterministic operators where torch has them
    rendezvous_timeout_s: int = 300  # how long the processes wait for each other at the start
    time_steps: bool = False  # say in every record what its steps consisted of
    # without any progress for so long an attempt has failed; 0: never. Before the first step and in
    # the last save, which wait for the file system, 1800 at least
    hang_timeout_s: int = 1800


FASHION_MNIST_ROOT = "/usr/share/datasets/fashion-mnist"  # Debian's dataset-fashion-mnist


@dataclass(frozen=True, slots=True)
class DataConfig:
    """Which images, from where, and what is done to them."""

    name: str = "digits"  # digits, fashion_mnist, cifar10, imagenet (a folder tree), synthetic
    root: str | None = None  # folder of the files; digits and synthetic need none
    image_size: int = 32
    augment: str = "none"  # none, shift, crop_flip (CIFAR), random_resized_crop (ImageNet)
    workers: int = 0  # loader processes per training process
    synthetic_samples: int = 4096  # only for data.name=synthetic
    synthetic_classes: int = 10


@dataclass(frozen=True, slots=True)
class OptimConfig:
    """SGD with momentum and its learning-rate schedule."""

    lr: float = 0.1  # at base_batch if scale_lr, else at the global batch
    scale_lr: bool = False  # lr x global_batch / base_batch (linear rule)
    base_batch: int = 256
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4  # not on norms and biases
    schedule: str = "cosine"  # cosine, step, constant
    lr_warmup_epochs: float = 0.0
    lr_step_epochs: float = 30.0  # only for schedule=step
    lr_gamma: float = 0.1  # only for schedule=step


@dataclass(frozen=True, slots=True)
class DdpConfig:
    """Options of DistributedDataParallel."""

    bucket_cap_mib: int = 25  # 25 as torch does by itself: the first of 1 MiB; else all alike
    static_graph: bool = True


TORCHS_BUCKET_CAP_MIB = DdpConfig().bucket_cap_mib


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """When state is saved and how much of it is kept."""

    every_steps: int | None = None  # None: chosen from what a save and a step cost
    mtbf_hours: float = 24.0  # mean time between failures that come without a warning
    max_interval_s: float = 600.0  # the longest interval that is chosen
    keep_last: int = 2
    keep_every_steps: int | None = None  # also keep the first one at each multiple
    keep_best: bool = False  # also save and keep the state with the best test accuracy so far
    strict_fingerprint: bool = False  # refuse to resume where the bits would differ


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How often the loop reports."""

    every_steps: int = 10


@dataclass(frozen=True, slots=True)
class RequeueConfig:
    """How often a run may start again by itself."""

    max_failures: int = 0  # failed attempts that are tried again
    max_without_progress: int = 3  # attempts in a row without a new checkpoint; 0: no limit


@dataclass(frozen=True, slots=True)
class RunConfig:
    """One run, resolved. `command` replaces training by the user's own program."""

    experiment: str | None = None  # a file of configs/train; null: none
    cluster: str = "auto"  # a file of configs/clusters, or auto
    resources: Resources = field(default_factory=Resources)
    train: TrainConfig = field(default_factory=TrainConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    ddp: DdpConfig = field(default_factory=DdpConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
    requeue: RequeueConfig = field(default_factory=RequeueConfig)
    command: tuple[str, ...] = ()


_CHOICES = {
    "train.replicas": ("single", "ddp", "dp"),
    "train.device": ("auto", "cpu", "cuda"),
    "train.on_nonfinite": ("stop", "skip"),
    "train.precision": ("fp32", "bf16", "fp16"),
    "data.name": ("digits", "fashion_mnist", "cifar10", "imagenet", "synthetic"),
    "data.augment": ("none", "shift", "crop_flip", "random_resized_crop"),
    "optim.schedule": ("cosine", "step", "constant"),
}
_AT_LEAST_ONE = (
    "resources.nodes",
    "resources.processes_per_node",
    "resources.cpus_per_process",
    "resources.warn_before_s",
    "train.global_batch",
    "train.micro_batch",
    "train.dp_devices",
    "train.max_steps",
    "train.rendezvous_timeout_s",
    "data.image_size",
    "data.synthetic_samples",
    "data.synthetic_classes",
    "optim.base_batch",
    "ddp.bucket_cap_mib",
    "checkpoint.every_steps",
    "checkpoint.keep_last",
    "checkpoint.keep_every_steps",
    "log.every_steps",
)
_NOT_NEGATIVE = (
    "resources.gpus_per_node",
    "data.workers",
    "train.seed",
    "train.hang_timeout_s",
    "train.ema_decay",
    "optim.lr",
    "optim.momentum",
    "optim.weight_decay",
    "optim.lr_warmup_epochs",
    "requeue.max_failures",
    "requeue.max_without_progress",
)
_ABOVE_ZERO = (
    "train.max_epochs",
    "train.eval_every_epochs",
    "train.max_grad_norm",
    "checkpoint.mtbf_hours",
    "checkpoint.max_interval_s",
    "optim.lr_step_epochs",
    "optim.lr_gamma",
)


def value_at(config: RunConfig, key: str) -> Any:  # noqa: ANN401
    """The value of a dotted key, e.g. `train.global_batch`."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def check(config: RunConfig) -> None:
    """Raise ConfigError for a value no machine could run; never looks at the local machine."""
    for key, allowed in _CHOICES.items():
        if value_at(config, key) not in allowed:
            raise ConfigError(f"{key}={value_at(config, key)}: use one of {', '.join(allowed)}.")
    if config.resources.launch not in (None, "srun", "torchrun"):
        raise ConfigError(f"resources.launch={config.resources.launch}: use srun or torchrun.")
    for keys, least in ((_AT_LEAST_ONE, 1), (_NOT_NEGATIVE, 0)):
        for key in keys:
            value = value_at(config, key)
            if value is not None and value < least:
                raise ConfigError(f"{key}={value}: must be at least {least}.")
    for key in _ABOVE_ZERO:
        value = value_at(config, key)
        if value is not None and value <= 0:
            raise ConfigError(f"{key}={value}: must be above 0.")
    if config.train.ema_decay >= 1:
        raise ConfigError(
            f"train.ema_decay={config.train.ema_decay}: must be below 1, for example 0.999; 0 "
            "turns the average off."
        )
    if not config.command:
        _check_length(config.train)


def check_data(data: DataConfig) -> None:
    """Raise ConfigError for data that no node can find: nobody has said where they lie."""
    if data.name == "imagenet" and data.root is None:
        raise ConfigError(
            "data.name=imagenet needs data.root: the folder that holds train/CLASS/*.JPEG and "
            "val/CLASS/*.JPEG. Type data.root=/path/to/it",
            "missing_data",
        )


def _check_length(train: TrainConfig) -> None:
    if train.max_steps is None and train.max_epochs is None:
        raise ConfigError(
            "train.max_steps and train.max_epochs are both unset: set one of them, or name an "
            "experiment that does (experiment=NAME)."
        )
