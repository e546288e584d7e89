"""How long training stands still for a checkpoint: beside training, and with a plain torch.save.

    python benchmarks/checkpoint_stall.py --folder FOLDER [--rounds 10]

ResNet-50 with momentum. Each round does both, in turn, on the same state: `torch.save` and fsync of
one file; then the copy of `Saver.save`, while whose write real training steps go on. Prints one
JSON document; `slowdown` compares those steps with the same number of steps without a write.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torchvision

from hpcddp.config.layout import ProcessLayout
from hpcddp.run_dir import RunDir
from hpcddp.train.cadence import Cadence
from hpcddp.train.checkpoint import Retention
from hpcddp.train.journal import Journal
from hpcddp.train.process_group import LoneProcess
from hpcddp.train.saving import Saver
from hpcddp.train.state import TrainState


def build_state(device):
    model = torchvision.models.resnet50().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, fused=True)
    return TrainState(model, optimizer, torch.amp.GradScaler(device.type, enabled=False))


def step(state, images_nchw):
    state.model(images_nchw).sum().backward()
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    state.step += 1


def settle(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(action, device):
    settle(device)
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def save_plainly(state, path):
    with path.open("wb") as file:
        torch.save(state.to_dict(), file)
        file.flush()
        os.fsync(file.fileno())


def measure(folder, rounds, images, device):
    state = build_state(device)
    images_nchw = torch.rand(images, 3, 64, 64, device=device)
    step(state, images_nchw)
    journal = Journal(RunDir(folder), ProcessLayout())
    cadence = Cadence(1, 1.0, 1.0, step=0)
    saver = Saver(
        folder / "checkpoints", {}, Retention(1), cadence, LoneProcess(), journal, True, 0
    )
    found = {"synchronous_s": [], "stall_s": [], "write_s": [], "slowdown": []}

    def some_steps(count):
        for _ in range(count):
            step(state, images_nchw)
        settle(device)

    some_steps(5)
    for _ in range(rounds + 1):
        found["synchronous_s"].append(
            seconds_of(lambda: save_plainly(state, folder / "plain.pt"), device)
        )
        found["stall_s"].append(seconds_of(lambda: saver.save(state), device))
        begin, count = time.perf_counter(), 0
        while saver._writer._thread.is_alive():
            some_steps(1)
            count += 1
        beside_s = time.perf_counter() - begin
        found["write_s"].append(beside_s)
        found["slowdown"].append(beside_s / seconds_of(lambda n=count: some_steps(n), device))
    return {name: values[1:] for name, values in found.items()}  # the first fills new buffers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="on the file system to measure")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--images", type=int, default=4, help="per step, 64 x 64")
    typed = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory(dir=typed.folder) as folder:
        found = measure(Path(folder), typed.rounds, typed.images, device)
    medians = {name: round(statistics.median(values), 4) for name, values in found.items()}
    medians["stall_share"] = round(medians["stall_s"] / medians["synchronous_s"], 4)
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, {device}, torch {torch.__version__}"
    rounded = {name: [round(value, 4) for value in values] for name, values in found.items()}
    print(json.dumps({"machine": machine, "median": medians, "all": rounded}, indent=1))


if __name__ == "__main__":
    main()
