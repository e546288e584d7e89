"""What the training loop costs over a bare DDP loop: images/s of ours / images/s of the bare one.

    python benchmarks/loop_overhead.py                       # two processes, one core each
    python benchmarks/loop_overhead.py --model resnet18 --micro-batch 8 --rounds 40

Both loops run in the same processes on the same cores, in turns of a few steps, so that whatever
else the machine does meets both; half of the turns are of processes that built the bare loop first.
The bare loop is what one would write in a minute: DDP with its defaults, SGD with the same fused
kernel, the same images, ready in memory as normalised floats. It has no loader, no augmentation, no
schedule, no stop vote, no record and no evaluation. Ours is `hpcddp.train.loop.step_and_report`
with its defaults and a record every ten steps. What a job sets for its whole process (memory that
is freed stays, operators are deterministic) the bare loop gets too.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import platform
import random
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))

from hpcddp.config.layout import ProcessLayout
from hpcddp.config.load import Layer, resolve
from hpcddp.run_dir import RunDir
from hpcddp.train.device import open_device
from hpcddp.train.loop import step_and_report
from hpcddp.train.metrics import StepClock
from hpcddp.train.models import build_model
from hpcddp.train.process_group import open_ranks
from hpcddp.train.resume import Found
from hpcddp.train.setup import build_session, build_undisturbed
from hpcddp.train.task import build_task

WORLD_SIZE = 2


def parsed(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument(
        "--rounds", type=int, default=30, help="turns of each loop (here: in each order)"
    )
    parser.add_argument("--steps", type=int, default=5, help="steps in a turn")
    return parser.parse_args(words)


def config_of(options):
    train = {
        "model": options.model,
        "global_batch": options.micro_batch * WORLD_SIZE,
        "max_steps": 1_000_000,
        "eval_every_epochs": None,
        "device": "cpu",
    }
    data = {"name": "synthetic", "image_size": options.image_size}
    return resolve([Layer("benchmark", {"train": train, "data": data})]).config


def build_ours(options, layout, ranks, run_dir, batches):
    """One step of our loop, as a function; eight of its batches go to the other loop."""
    task = build_task(config_of(options), layout)
    process = build_undisturbed(layout, torch.device("cpu"), ranks, RunDir(run_dir))
    session = build_session(task, process, Found(None))
    clock = StepClock()
    batches += [session.feed.next() for _ in range(8)]
    return lambda: step_and_report(session, clock)


def build_bare(options, batches):
    """One step of the bare loop over these batches, as a function; they may come later."""
    model = DistributedDataParallel(build_model(options.model, 10, {}, seed=0))
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True
    )
    numbers = itertools.count()

    def step():
        images_nchw, labels_n = batches[next(numbers) % len(batches)]
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(images_nchw), labels_n).backward()
        optimizer.step()

    return step


def seconds_of(step, count):
    """Wall seconds, and CPU seconds of all threads of this process, which others do not disturb."""
    torch.distributed.barrier()
    begin, cpu_begin = time.perf_counter(), time.process_time()
    for _ in range(count):
        step()
    torch.distributed.barrier()
    return time.perf_counter() - begin, time.process_time() - cpu_begin


def measure(pipe, options, layout, run_dir):
    """In a child, on one core: (wall, CPU) seconds of each turn, as pairs (bare, ours)."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[layout.local_rank]})
    torch.set_num_threads(1)
    device = open_device(config_of(options).train, layout)
    ranks = open_ranks(layout, device, 60)
    batches = []
    builders = {
        "bare": lambda: build_bare(options, batches),
        "ours": lambda: build_ours(options, layout, ranks, run_dir, batches),
    }
    built = {name: builders[name]() for name in options.order}
    bare, ours = built["bare"], built["ours"]
    for step in (bare, ours):
        seconds_of(step, 3)  # DDP regroups after its first step, caches fill
    pairs = []
    for turn in range(options.rounds):
        first, second = (bare, ours) if turn % 2 else (ours, bare)
        seconds = {step: seconds_of(step, options.steps) for step in (first, second)}
        pairs.append((seconds[bare], seconds[ours]))
    ranks.close()
    pipe.send(pairs)


def run_ranks(measure, options):
    """Call `measure(pipe, options, layout, folder)` in a process for each rank; what each sent."""
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    context, pipes, processes = multiprocessing.get_context("spawn"), [], []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(WORLD_SIZE):
            layout = ProcessLayout(
                global_rank=rank,
                world_size=WORLD_SIZE,
                local_rank=rank,
                local_world_size=WORLD_SIZE,
                master_port=port,
                launcher="local",
            )
            ours, theirs = context.Pipe()
            call = (theirs, options, layout, Path(folder))
            processes.append(context.Process(target=measure, args=call))
            processes[-1].start()
            pipes.append(ours)
        found = [pipe.recv() for pipe in pipes]
        for process in processes:
            process.join()
    return found


def measure_in_both_orders(options):
    """Pairs of turns by the loop that was built first, which has other memory."""
    found = {}
    for order in (("bare", "ours"), ("ours", "bare")):
        options.order = order
        found[order[0]] = run_ranks(measure, options)[0]
    return found


def summary(options, pairs_by_first):
    """Throughputs, and the ratio of wall and of CPU time with 95 % bootstrap intervals."""
    pairs = [pair for found in pairs_by_first.values() for pair in found]
    images = options.micro_batch * WORLD_SIZE * options.steps
    return {
        "model": options.model,
        "micro_batch": options.micro_batch,
        "world_size": WORLD_SIZE,
        "turns": len(pairs),
        "steps_per_turn": options.steps,
        "bare_images_per_s": round(statistics.median(images / bare[0] for bare, _ in pairs), 2),
        "ours_images_per_s": round(statistics.median(images / ours[0] for _, ours in pairs), 2),
        "wall": ratio_of([bare[0] / ours[0] for bare, ours in pairs]),
        "cpu": ratio_of([bare[1] / ours[1] for bare, ours in pairs]),
        "wall_ratio_by_first_built": {
            first: ratio_of([bare[0] / ours[0] for bare, ours in found])["ratio"]
            for first, found in pairs_by_first.items()
        },
        "load_average": os.getloadavg()[0],
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def ratio_of(ratios):
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return {
        "ratio": round(statistics.median(ratios), 4),
        "interval_95": [round(medians[50], 4), round(medians[1949], 4)],
        "quartiles": [round(quartile, 4) for quartile in statistics.quantiles(ratios, n=4)[::2]],
    }


if __name__ == "__main__":
    chosen = parsed(sys.argv[1:])
    print(json.dumps(summary(chosen, measure_in_both_orders(chosen)), indent=2))
