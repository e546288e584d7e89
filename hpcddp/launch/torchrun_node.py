"""One torchrun per node: what the batch script starts once on each node, by srun or mpirun.

Knows the job's variables and torchrun; training itself is `hpcddp run`, as everywhere. The
rendezvous is torchrun's static one: nobody has to recognise its own host name, which fails where
nodes have a second name on the fast network.
"""

import argparse
import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from hpcddp.cluster.hostlist import expand_hostlist
from hpcddp.cluster.job_names import requeue_target, restart_count
from hpcddp.cluster.names import Resolve, resolve_name
from hpcddp.cluster.ports import PORT_VARIABLE, choose_ports, explicit_port
from hpcddp.cluster.rendezvous_address import node_names, settle_name
from hpcddp.cluster.slurm_step import ADDRESS_VARIABLE
from hpcddp.cluster.variables import first_set, read_count
from hpcddp.config.layout import EXIT_DONE, EXIT_USAGE
from hpcddp.errors import HpcddpError
from hpcddp.stop_flag import STOP_SIGNALS

_HOSTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
# torchrun would write logs elsewhere and under other names; `exec` lets signals reach python.
_INTO_OWN_LOG = 'exec "$@" >>"$(printf "%s/rank-%04d.log" "$0" "$RANK")" 2>&1'


def torchrun_words(
    environ: Mapping[str, str],
    *,
    processes_per_node: int,
    logs: Path,
    command: Sequence[str],
    node_rank_variable: str = "",
    resolve: Resolve = resolve_name,
) -> list[str]:
    """Torchrun's words for this node. Raises HpcddpError where a variable is missing."""
    name = first_set(environ, *_HOSTS)
    if name is None:
        raise HpcddpError(f"{_HOSTS[0]} is not set: this must run in a Slurm job.", "not_in_step")
    hosts = expand_hostlist(environ[name], name)
    port = first_set(environ, PORT_VARIABLE)
    ports = choose_ports(f"{requeue_target(environ)}.torchrun", restart_count(environ))
    address = environ.get(ADDRESS_VARIABLE, "").strip()
    if not address:
        address, _ = settle_name(node_names(hosts[0], environ), socket.gethostname(), resolve)
    return [
        f"--nnodes={len(hosts)}",
        f"--nproc-per-node={processes_per_node}",
        f"--node-rank={read_count(environ, node_rank_variable or 'SLURM_NODEID')}",
        f"--master-addr={address}",
        f"--master-port={explicit_port(environ[port]) if port else ports[0]}",
        f"--rdzv-id={requeue_target(environ)}.{restart_count(environ)}",
        "--max-restarts=0",  # who starts again is decided for the whole job
        "--no-python",
        *("bash", "-c", _INTO_OWN_LOG, str(logs)),
        *command,
    ]


def run_torchrun(words: Sequence[str], further: Sequence[str] = ()) -> int:
    """Run torchrun in this process; 0, or the exit code of the process that failed first.

    `further` are words of the profile's: `words` win, and one that an older torch does not know is
    left out with a message.
    """
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    parser = torchrun.get_args_parser()
    # Torchrun's own handlers would give the processes 30 s and then kill them while they save.
    ours = []
    for word in ("--signals-to-handle=SIGINT", *further):
        if _knows(parser, word):
            ours.append(word)
        elif word in further:
            print(f"hpcddp: this torchrun does not know {word}: left out", file=sys.stderr)
    for signum in STOP_SIGNALS:
        signal.signal(signum, _forward)
    try:
        torchrun.run(parser.parse_args([*ours, *words]))
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        return 128 - code if code < 0 else code
    return EXIT_DONE


def _knows(parser: argparse.ArgumentParser, word: str) -> bool:
    return re.search(rf"{word.partition('=')[0]}(?![\w-])", parser.format_help()) is not None


def _forward(signum: int, frame: FrameType | None) -> None:
    """Hand on what Slurm sends; this process waits for those that save. Before it has started any
    there is nothing to save.
    """
    children = psutil.Process().children()
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just left by itself
            child.send_signal(signum)
    if not children:
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)


def main(words: Sequence[str] | None = None) -> int:
    """Entry of `python -m hpcddp.launch.torchrun_node`."""
    parser = argparse.ArgumentParser(prog="hpcddp.launch.torchrun_node")
    parser.add_argument("--processes-per-node", type=int, required=True)
    parser.add_argument("--node-rank-variable", default="")
    parser.add_argument("--torchrun-arg", action="append", default=[])
    parser.add_argument("--logs", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    typed: Any = parser.parse_args(words)
    command = [sys.executable, "-u", "-m", "hpcddp", "run", "--run-dir", str(typed.run_dir)]
    try:
        own = torchrun_words(
            os.environ,
            processes_per_node=typed.processes_per_node,
            logs=typed.logs,
            command=command,
            node_rank_variable=typed.node_rank_variable,
        )
    except HpcddpError as error:
        print(f"Error: {error.message}", file=sys.stderr)
        return EXIT_USAGE
    return run_torchrun(own, typed.torchrun_arg)


if __name__ == "__main__":
    sys.exit(main())
