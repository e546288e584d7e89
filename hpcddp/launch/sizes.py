"""How many GPUs and CPUs one process of a job gets. Pure arithmetic; knows no cluster."""

from hpcddp.config.schema import Resources


def gpus_per_process(resources: Resources, processes: int) -> int:
    """1, but for train.replicas=dp; also 1 where there are no GPUs."""
    return max(1, (resources.gpus_per_node or 0) // processes)


def threads_of_process(resources: Resources) -> int:
    """OMP_NUM_THREADS where the user has not set it."""
    return resources.cpus_per_process or 1


def cpus_of_process(resources: Resources, processes: int) -> int:
    """CPUs of one process: one that drives all GPUs also loads for all of them."""
    return threads_of_process(resources) * gpus_per_process(resources, processes)
