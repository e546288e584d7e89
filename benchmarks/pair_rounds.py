"""What the rounds in which `doctor` measures pairs of nodes would cost with more nodes.

    python -m hpcddp submit --cluster testcluster --nodes 2 --follow -- \\
        python benchmarks/pair_rounds.py [--nodes 64] [--repeats 20]

In a job of two nodes, one process each: the round of their only pair, with the messages of
`doctor`, again and again. Prints one JSON document: what it took, and that times the rounds of so
many nodes, in which pairs do not disturb each other; also with as many slow pairs as are met once
more at most. Not in it: that every round ends with a gather of all processes, here of two.
"""

import argparse
import json
import logging
import os
import socket
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from hpcddp.cluster.layout import layout_from_environ
from hpcddp.doctor.pairs import MOST_DOUBTS, pair_rounds
from hpcddp.measure.links import Leader, Links, pair_speeds
from hpcddp.train.process_group import open_ranks


def parsed(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=20)
    return parser.parse_args(words)


def measure(options, layout):
    """Seconds and GB/s of each round of the pair, on every process."""
    device = torch.device("cpu")
    ranks = open_ranks(layout, device, 60)
    links = Links(layout.global_rank, layout.world_size)
    hosts = links.gather(socket.gethostname())
    leaders = [Leader(host, rank) for rank, host in enumerate(hosts)]
    seconds, speeds = [], []
    for _ in range(options.repeats):
        links.wait_for_all()
        begin = time.perf_counter()
        [(_, _, speed)] = pair_speeds(links, leaders, device)
        seconds.append(time.perf_counter() - begin)
        speeds.append(speed)
    ranks.close()
    return seconds, speeds


def summary(options, seconds, speeds):
    rounds, round_s = len(pair_rounds(options.nodes)), statistics.median(seconds)
    return {
        "round_s": {"median": round(round_s, 3), "least": min(seconds), "most": max(seconds)},
        "gb_per_s_median": round(statistics.median(speeds), 4),
        "nodes": options.nodes,
        "rounds": rounds,
        "simulated_s": round(rounds * round_s, 2),
        "simulated_with_most_doubts_s": round((rounds + MOST_DOUBTS) * round_s, 2),
        "load_average": os.getloadavg()[0],
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    chosen, here = parsed(sys.argv[1:]), layout_from_environ(os.environ)
    found = measure(chosen, here)
    if here.is_main:
        print(json.dumps(summary(chosen, *found), indent=2))
