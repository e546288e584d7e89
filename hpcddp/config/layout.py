"""Where one process stands in the job: a frozen value. Does not know how it was found."""

from collections.abc import Mapping
from dataclasses import dataclass, field

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_AGAIN, EXIT_INTERRUPTED = 0, 1, 2, 75, 130


@dataclass(frozen=True, slots=True)
class ProcessLayout:
    """Ranks, sizes, hosts and rendezvous of this process; see `hpcddp.cluster.layout` for readers.

    `hosts` are the nodes of this step in node-rank order. `device_index` is the CUDA device of
    this process (the local rank where the environment does not say how many there are), or None
    for the CPU. `more_ports` are what all ranks try, in this order, when `master_port` is taken;
    empty if somebody chose the port. `requeue_target` is what `scontrol requeue`
    takes (`123`, `123_4`), or None outside Slurm. `job_key` names job, array index and step;
    `restart_count` how often this job was requeued, `elastic_restarts` how often torchrun has
    started its workers anew since; `attempt` numbers the starts of the run over all its jobs, from
    0. `sources` says for each field which variable it came from.
    """

    global_rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    num_nodes: int = 1
    hosts: tuple[str, ...] = ("localhost",)
    master_addr: str = "127.0.0.1"
    master_port: int = 29500
    more_ports: tuple[int, ...] = ()
    device_index: int | None = None
    requeue_target: str | None = None
    launcher: str = "single"  # slurm, torchrun, local or single
    job_key: str = "single"
    restart_count: int = 0
    elastic_restarts: int = 0
    attempt: int = 0
    sources: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def is_main(self) -> bool:
        """True in the one process that writes files."""
        return self.global_rank == 0

    @property
    def job_id(self) -> str:
        """The job as people and events name it; outside Slurm the launcher's own key."""
        return self.requeue_target or self.job_key

    @property
    def has_store(self) -> bool:
        """True where the launcher keeps a store for the rendezvous, as torchrun's agent does."""
        return self.launcher == "torchrun"

    @property
    def ports(self) -> tuple[int, ...]:
        """All ports to try, in the same order on every rank."""
        return (self.master_port, *self.more_ports)
