"""What `train.time_steps` costs: steps with the timer over steps without, in turns.

    python benchmarks/step_timer_cost.py [--model resnet50] [--micro-batch 16] [--rounds 30]

Two processes with gloo, one core each; two sessions in each of them, alike but for the timer, take
turns of a few steps, and which comes first changes from turn to turn. Prints one JSON document: the
ratios of wall time and of CPU time of all threads with bootstrap intervals (above 1: the timer
costs something), and the parts of the cost that can be counted, as shares of a step's CPU time: the
timer's own calls, working out a step's times, and the pass over the gradients that DDP's own path
combines with a copy and a communication hook cannot.
"""

import dataclasses
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from loop_overhead import WORLD_SIZE, config_of, parsed, ratio_of, run_ranks, seconds_of

from hpcddp.run_dir import RunDir
from hpcddp.train.clock import HostClock
from hpcddp.train.loop import step_and_report
from hpcddp.train.metrics import StepClock
from hpcddp.train.process_group import open_ranks
from hpcddp.train.resume import Found
from hpcddp.train.setup import build_session, build_undisturbed
from hpcddp.train.step_timer import StepTimer
from hpcddp.train.task import build_task

CPU = torch.device("cpu")
REPEATED = 20_000


def session_of(options, layout, ranks, run_dir, *, timed):
    base = config_of(options)
    config = dataclasses.replace(base, train=dataclasses.replace(base.train, time_steps=timed))
    process = build_undisturbed(layout, CPU, ranks, RunDir(run_dir))
    return build_session(build_task(config, layout), process, Found(None))


def stepping(session):
    clock = StepClock()
    return lambda: step_and_report(session, clock)


def counted(session):
    """CPU seconds per step of the timer's calls, of `take`, and of scaling the gradients alone.

    The calls are repeated beside training: one takes less than the clock can tell.
    """
    timer = StepTimer(HostClock())
    begin = time.thread_time()
    for _ in range(REPEATED):
        with timer.forward():
            pass
    call_s = (time.thread_time() - begin) / (2 * REPEATED)  # a mark at its begin and its end
    session.timer.take()
    step_and_report(session, StepClock())
    [marks] = session.timer._done
    calls_s = call_s * (len(marks.phases) + 2 * len(marks.buckets))
    begin = time.thread_time()
    session.timer.take()
    take_s = time.thread_time() - begin
    gradients = [torch.ones(one.numel()) for one in session.state.model.parameters()]
    begin = time.thread_time()
    for gradient in gradients:
        gradient.mul_(0.5)
    return {"calls": calls_s, "take": take_s, "scaling": time.thread_time() - begin}


def measure(pipe, options, layout, run_dir):
    """In a child, on one core: (wall, CPU) seconds of each turn, as pairs (without, with)."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[layout.local_rank]})
    torch.set_num_threads(1)
    ranks = open_ranks(layout, CPU, 60)
    sessions = [session_of(options, layout, ranks, run_dir, timed=timed) for timed in (False, True)]
    without, timed = map(stepping, sessions)
    for step in (without, timed):
        seconds_of(step, 3)
    pairs = []
    for turn in range(options.rounds):
        order = (without, timed) if turn % 2 else (timed, without)
        seconds = {step: seconds_of(step, options.steps) for step in order}
        pairs.append((seconds[without], seconds[timed]))
    parts = counted(sessions[1])
    ranks.close()
    pipe.send((pairs, parts))


def summary(options, found):
    """Ratios of pairs, both processes taken together: they wait for each other."""
    both = [*zip(*(pairs for pairs, _ in found), strict=True)]
    added = [
        [[sum(values) for values in zip(*kind, strict=True)] for kind in zip(*pair, strict=True)]
        for pair in both
    ]
    count = WORLD_SIZE * options.steps
    step_s, cpu_s = (statistics.median(plain[i] for plain, _ in added) / count for i in (0, 1))
    shares = {
        name: round(max(parts[name] for _, parts in found) / cpu_s, 6) for name in found[0][1]
    }
    return {
        "model": options.model,
        "micro_batch": options.micro_batch,
        "image_size": options.image_size,
        "world_size": WORLD_SIZE,
        "turns": len(added),
        "steps_per_turn": options.steps,
        "step_s": round(step_s, 4),
        "timed_over_plain": {
            name: ratio_of([timed[place] / plain[place] for plain, timed in added])
            for place, name in enumerate(("wall", "cpu"))
        },
        "share_of_cpu_time": shares,
        "load_average": os.getloadavg()[0],
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


if __name__ == "__main__":
    chosen = parsed(sys.argv[1:])
    print(json.dumps(summary(chosen, run_ranks(measure, chosen)), indent=2))
