"""What to type where Slurm has refused a new job, or has not answered. Sends nothing."""

import re
from difflib import SequenceMatcher

from hpcddp.cluster.live import Ask, ask_slurm
from hpcddp.launch.slurm_tool import is_silence

_UNCONFIGURED = re.compile(r"configuration (file|source)", re.IGNORECASE)
_NO_SUCH_PARTITION = re.compile(
    r"(?:no|invalid) partition (?:name )?specified(?:: (\S+))?", re.IGNORECASE
)
_NO_SUCH_NODE = re.compile(r"requested node configuration is not available", re.IGNORECASE)
_MOST_NAMED = 8
_NODES = "--format=%R|%c CPUs, %m MB of memory, %G"  # a + says that some nodes have more


def advice(refusal: str, ask: Ask = ask_slurm) -> str:
    """A sentence to put behind what sbatch has said, "" where there is nothing to add."""
    if is_silence(refusal) or _UNCONFIGURED.search(refusal):
        return (
            "Slurm does not answer here: `python -m hpcddp doctor` says what to do about it; with "
            "--cluster local the job runs on this machine"
        )
    if found := _NO_SUCH_PARTITION.search(refusal):
        return _partitions(found[1] or "", ask)
    return _nodes(ask) if _NO_SUCH_NODE.search(refusal) else ""


def _nodes(ask: Ask) -> str:
    """What nodes have, and in which partitions, for who has asked for more than any of them has."""
    alike: dict[str, list[str]] = {}
    for line in ask(["sinfo", "--noheader", _NODES]).splitlines():
        partition, _, has = line.partition("|")
        alike.setdefault(has.strip().removesuffix(", (null)"), []).append(partition)
    kinds = [f"{has} ({', '.join(partitions)})" for has, partitions in alike.items()]
    said = f". Nodes have: {'; '.join(kinds[:_MOST_NAMED])}" if kinds else ""
    return (
        "No node has all that one node is asked for. Ask for less (resources.mem, "
        f"resources.cpus_per_process, --gpus-per-node), or another --partition{said}"
    )


def _partitions(wanted: str, ask: Ask) -> str:
    """Those that Slurm shows to this user, nearest first."""
    names = sorted(set(ask(["sinfo", "--noheader", "--format=%R"]).split()))
    names.sort(key=lambda name: SequenceMatcher(None, name, wanted).ratio(), reverse=True)
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"Choose another --partition: {', '.join(names[:_MOST_NAMED])}{more}" if names else ""
