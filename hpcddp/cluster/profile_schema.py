"""What a profile of a cluster can say, as strict frozen dataclasses. Reads no file, merges nothing.

A `Block` holds for the whole cluster, or in `nodes`, `queues` and `variants` only for a kind of
node, a queue, or a situation. A later, narrower block wins (`hpcddp.cluster.profile`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

GpuRequest = Literal["gpus-per-node", "gres", "gpus", "gpus-per-task", "implied", "none"]
Status = Literal["production", "retiring", "retired", "family", "generic", "personal"]


def resources_in(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """`defaults.resources` of a block as its file has it; null, which takes away what is inherited,
    holds none.
    """
    return (block.get("defaults") or {}).get("resources") or {}


@dataclass(frozen=True, slots=True)
class EnvSetting:
    """One environment variable of the processes, and why it is set.

    `$NAME` in the value is filled in by each process on its node. `prepend` puts the value in
    front of what is there. `needs` is the sbatch option without which the value would do harm
    (`network=...`): without it the variable is left alone.
    """

    value: str
    why: str
    prepend: bool = False
    needs: str = ""


@dataclass(frozen=True, slots=True)
class OptionSetting:
    """One option of sbatch or srun; True is a bare flag. `why` is its reason.

    `one_gpu` of an srun option: only for tasks with one GPU each. It would keep one process or one
    torchrun that has all of a node to the share of the first.
    """

    value: str | int | bool
    why: str
    one_gpu: bool = False


@dataclass(frozen=True, slots=True)
class NodeShape:
    """One node: GPUs as processes count them, and the cores that a job can get of it."""

    gpus: int | None = None
    gpu: str = ""
    gpu_memory_gb: float | None = None
    cpus: int | None = None
    memory_gb: float | None = None
    arch: Literal["", "x86_64", "aarch64"] = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the site allows one job. `time_by_nodes` maps "up to N nodes" to a longest time.

    `whole_node`: `required` where nodes are given whole, whatever is asked for; `or_one_gpu` where
    a job has whole nodes or exactly one GPU.
    """

    time_max: str | None = None
    time_min: str | None = None
    time_by_nodes: Mapping[str, str] = field(default_factory=dict)
    node_hours: float | None = None
    nodes_min: int | None = None
    nodes_max: int | None = None
    gpus_max: int | None = None
    cpus_max: int | None = None
    memory_max_gb: float | None = None
    whole_node: Literal["", "required", "or_one_gpu"] = ""


@dataclass(frozen=True, slots=True)
class Discouraged:
    """Why a site advises against a way of launching that works there; "" where it does not."""

    srun: str = ""
    torchrun: str = ""


@dataclass(frozen=True, slots=True)
class Preemption:
    """How Slurm takes the nodes away here. None is "nobody knows".

    `requeue`: `auto` comes back by itself, `on_request` only because the script asks for it
    (--requeue), `resubmit` never: the job must be sent again.
    """

    possible: bool = False
    grace_s: int | None = None
    protected_s: int | None = None  # cannot be preempted for so long after its start
    requeue: Literal["auto", "on_request", "resubmit"] | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Container:
    """How processes get into a container, once `resources.container` names an image.

    `wrap`: words in front of the command ({image} is the image, {mounts} a list of folders), for
    a runtime without a name of its own here. `python` is the interpreter inside.
    """

    runtime: Literal["none", "apptainer", "pyxis", "shifter", "environment", "wrap"] = "none"
    python: str = "python3"
    mounts: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    wrap: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LocalDisk:
    """Fast storage of one node. `ram` counts in the job's memory."""

    path: str
    kind: Literal["disk", "ram"] = "disk"
    size_gb: float | None = None


@dataclass(frozen=True, slots=True)
class When:
    """All conditions given must hold. `nodes` is a number, or a least one: `2+`."""

    nodes: str = ""
    whole_node: bool | None = None
    container: bool | None = None
    file: str = ""
    env: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """Facts and settings, all optional.

    `gpu_request` is how GPUs are asked for: an option of sbatch, `implied` where they come with
    the node, or `none` where there are none. `launch` is `srun` (one task per process) or
    `torchrun` (one task per node, which `launch_program` starts where srun is not the way).
    `interface`, `hca`, `master_as` and `host_suffix` are rules that each node applies to what it
    has (`hpcddp.cluster.network`).
    `runs_on_scratch` is the reason why runs belong below `scratch`, where they do.
    `setup` runs in the batch script, `setup_node` once per node, `setup_task` in every process.
    Only of a queue: `node_type`, the key of `nodes` that its nodes are. Only of a variant: `when`
    it holds; without it only for those who ask (`resources.variant=NAME`).
    """

    node_type: str = ""
    when: When | None = None

    gpu_request: GpuRequest = "gpus-per-node"
    launch: Literal["srun", "torchrun"] = "srun"
    discouraged: Discouraged = field(default_factory=Discouraged)
    launch_program: tuple[str, ...] = ()
    node_rank_variable: str = ""
    torchrun_args: tuple[str, ...] = ()
    node: NodeShape = field(default_factory=NodeShape)
    account: str = ""  # template, e.g. {project}@h100
    account_required: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    preempt: Preemption | None = None
    sbatch: Mapping[str, OptionSetting] = field(default_factory=dict)
    srun: Mapping[str, OptionSetting] = field(default_factory=dict)
    forbidden: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, EnvSetting] = field(default_factory=dict)
    host_suffix: EnvSetting | None = None
    interface: EnvSetting | None = None
    hca: EnvSetting | None = None
    master_as: EnvSetting | None = None  # name or address
    modules: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    setup_node: tuple[str, ...] = ()
    setup_task: tuple[str, ...] = ()
    container: Container = field(default_factory=Container)
    internet: Literal["", "open", "proxy", "none"] = ""
    scratch: str = ""
    scratch_purge_days: int | None = None
    runs_on_scratch: str = ""
    local: LocalDisk | None = None
    caches: Mapping[str, EnvSetting] = field(default_factory=dict)
    expected_busbw_gb_per_s: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sign:
    """One way of knowing that this is the cluster: exactly one of env, file, host.

    `matches` is a pattern for all of the variable's or the file's text; without it being there is
    enough. `host` is a pattern for the host's name.
    """

    env: str = ""
    file: str = ""
    host: str = ""
    matches: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProfileFile(Block):
    """One file of configs/clusters. `extends` names the profiles it starts from, later ones win.

    `test_queue` is the one of `queues` for short jobs that prove something, where nobody chooses.
    `unset` says which facts nobody could confirm, and are therefore left to you.
    """

    description: str = ""
    site: str = ""
    status: Status = "personal"
    verified_on: str = ""
    sources: tuple[str, ...] = ()
    unset: Mapping[str, str] = field(default_factory=dict)
    successor: str = ""
    aliases: tuple[str, ...] = ()
    extends: tuple[str, ...] = ()
    detect: tuple[Sign, ...] = ()
    launcher: Literal["slurm", "local"] = "slurm"
    default_queue: str = ""
    test_queue: str = ""
    nodes: Mapping[str, Block] = field(default_factory=dict)
    queues: Mapping[str, Block] = field(default_factory=dict)
    variants: Mapping[str, Block] = field(default_factory=dict)
