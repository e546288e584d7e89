"""What it costs that all processes agree, in every step, whether to stop.

    python benchmarks/agreement_cost.py [--model resnet18] [--micro-batch 16] [--pairs 200]

Two processes with gloo, one core each. Steps of `hpcddp.train.loop` alternate, one with the vote
and one with a vote that asks nobody; which comes first changes from pair to pair. Prints one JSON
document: the medians of the pairs' ratios of wall time and of CPU time of all threads, with
bootstrap intervals, and what the calls of the vote themselves took (`close` includes waiting for
the other process, which the next step would otherwise do).
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from loop_overhead import WORLD_SIZE, config_of, ratio_of, run_ranks

from hpcddp.run_dir import RunDir
from hpcddp.stop_flag import StopFlag
from hpcddp.train.loop import train_step
from hpcddp.train.process_group import open_ranks
from hpcddp.train.resume import Found
from hpcddp.train.setup import build_session, build_undisturbed
from hpcddp.train.task import build_task


class Silent:
    """Ranks as far as the vote needs them, without a word to anybody."""

    def start_max(self, tensor):
        return self

    def wait(self):
        pass


def parsed(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=200)
    return parser.parse_args(words)


def measure(pipe, options, layout, run_dir):
    """In a child, on one core: (wall, CPU) seconds of pairs (silent, voting); and of the calls."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[layout.local_rank]})
    torch.set_num_threads(1)
    ranks = open_ranks(layout, torch.device("cpu"), 60)
    task = build_task(config_of(options), layout)
    process = build_undisturbed(layout, torch.device("cpu"), ranks, RunDir(run_dir))
    session, vote, flag = build_session(task, process, Found(None)), process.vote, StopFlag()
    called_s = {"open": [], "close": []}

    def step(ranks_of_vote):
        vote._ranks, vote._flag = ranks_of_vote, flag
        begin, cpu_begin = time.perf_counter(), time.process_time()
        train_step(session)
        closing = time.perf_counter()
        vote.close()
        end = time.perf_counter()
        if ranks_of_vote is ranks:
            called_s["close"].append(end - closing)
        return end - begin, time.process_time() - cpu_begin

    plain_open = vote.open

    def timed_open(*arguments):
        begin = time.perf_counter()
        plain_open(*arguments)
        if vote._ranks is ranks:
            called_s["open"].append(time.perf_counter() - begin)

    session.vote.open = timed_open
    for kind in (ranks, Silent()) * 3:
        step(kind)
    pairs = []
    for number in range(options.pairs):
        kinds = (ranks, Silent()) if number % 2 else (Silent(), ranks)
        seconds = {kind is ranks: step(kind) for kind in kinds}
        pairs.append((seconds[False], seconds[True]))
    ranks.close()
    pipe.send((pairs, called_s))


def added(*of_ranks):
    return [sum(seconds) for seconds in zip(*of_ranks, strict=True)]


def summary(options, found):
    """Ratios of pairs, both processes taken together: they wait for each other."""
    of_both = zip(*(of_rank for of_rank, _ in found), strict=True)
    pairs = [[added(*kind) for kind in zip(*both, strict=True)] for both in of_both]
    step_s = statistics.median(silent[0] for silent, _ in pairs) / WORLD_SIZE
    calls = {name: [s for _, called in found for s in called[name]] for name in ("open", "close")}
    return {
        "model": options.model,
        "micro_batch": options.micro_batch,
        "world_size": WORLD_SIZE,
        "pairs": options.pairs,
        "step_s": round(step_s, 4),
        "voting_over_silent": {
            name: ratio_of([voting[place] / silent[place] for silent, voting in pairs])
            for place, name in enumerate(("wall", "cpu"))
        },
        "call_share_of_step": {
            name: {
                "median": round(statistics.median(seconds) / step_s, 5),
                "mean": round(statistics.mean(seconds) / step_s, 5),
            }
            for name, seconds in calls.items()
        },
        "load_average": os.getloadavg()[0],
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    chosen = parsed(sys.argv[1:])
    print(json.dumps(summary(chosen, run_ranks(measure, chosen)), indent=2))
