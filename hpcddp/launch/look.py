"""Options of srun for a short look at one node of a cluster. Starts nothing."""

from collections.abc import Mapping

from hpcddp.cluster.options import is_given
from hpcddp.launch.place import ANYWHERE
from hpcddp.launch.render import sbatch_options
from hpcddp.launch.request import Request, resolve_request

_WAY = (
    "partition", "account", "qos", "constraint", "reservation",
    "gpus-per-node", "gpus-per-task", "gpus", "gres",
)  # fmt: skip


def one_node_options(cluster: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The way to one node of the default queue, and one GPU where it has any, as a job asks for
    them there: account, QOS, constraint ... Raises ConfigError for an unknown name.
    """
    small = {"nodes": 1, "gpus_per_node": 1}
    request = resolve_request(Request(cluster=cluster, resources=small), environ)
    options = sbatch_options(request.config.resources, request.profile, ANYWHERE, processes=1)
    return tuple(f"--{key}={options[key]}" for key in _WAY if is_given(options.get(key)))
