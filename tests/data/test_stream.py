"""The stream of batches: the same bytes for any number of workers, from any starting point."""

import gc
import hashlib
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import yaml
from ended import has_ended
from waiting import wait_until

from hpcddp.config.batch import BatchPlan
from hpcddp.config.schema import DataConfig
from hpcddp.data.datasets import build_dataset
from hpcddp.data.sampler import step_samples
from hpcddp.data.stream import eval_batches, train_batches
from hpcddp.errors import HpcddpError

ROOT = Path(__file__).parents[2]
IMPORTS = f"{ROOT}:{ROOT / 'tests'}"  # what programs of the tests below import
CASES = yaml.safe_load((ROOT / "tests" / "cases" / "samples.yaml").read_text(encoding="utf-8"))
DATA = DataConfig(name="synthetic", synthetic_samples=50, image_size=8)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Indices:
    """A data set whose only label is the index itself, and whose pixel is the epoch."""

    def __init__(self, num_samples):
        self.num_samples = num_samples

    def __len__(self):
        return self.num_samples

    def fetch(self, samples, augment=None):
        rows = np.asarray(samples)
        return torch.from_numpy(rows[:, :1].astype(np.uint8)), torch.from_numpy(rows[:, 1].copy())


def digest(batches, count):
    summary = hashlib.sha256()
    for images, labels in itertools.islice(batches, count):
        assert images.dtype == torch.uint8
        assert labels.dtype == torch.int64
        summary.update(images.numpy().tobytes() + labels.numpy().tobytes())
    return summary.hexdigest()


@pytest.fixture(autouse=True, scope="module")
def own_fork_server():
    """There is one per process, and the first to start it decides what its children hear, and so
    does the one that starts the tracker of their semaphores.
    """
    gc.collect()
    forkserver._forkserver._stop()
    resource_tracker._resource_tracker._stop()
    yield
    forkserver._forkserver._stop()


@pytest.fixture(autouse=True)
def no_worker_survives_its_test():
    yield
    gc.collect()  # an exception may still hold the loader
    wait_until(lambda: not loader_workers())


def stream(plan=None, *, dataset=None, global_rank=0, seed=3, **options):
    plan = plan or BatchPlan(24, 4, 3, 2)
    dataset = dataset or build_dataset(DATA, "train")
    return train_batches(dataset, plan, global_rank=global_rank, seed=seed, **options)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("augment", ["none", "crop_flip"])
def test_every_byte_is_the_same_with_no_one_and_three_workers(augment):
    digests = {digest(stream(workers=w, augment=augment), 40) for w in (0, 1, 3)}
    assert len(digests) == 1
    assert digests != {digest(stream(augment=augment, seed=4), 40)}


@pytest.mark.parametrize("workers", [0, 2])
def test_starting_at_a_step_is_the_stream_from_there_on(workers):
    whole = list(itertools.islice(stream(augment="shift"), 36))
    for start_step in (0, 4, 9):
        tail = stream(augment="shift", workers=workers, start_step=start_step)
        for got, expected in zip(tail, whole[start_step * 3 :], strict=False):
            assert torch.equal(got[0], expected[0])
            assert torch.equal(got[1], expected[1])


def test_three_restarts_within_one_epoch_see_each_sample_once():
    plan, seen = BatchPlan(10, 5, 1, 2), []
    for first, count in ((0, 2), (2, 1), (3, 4), (7, 3)):
        for rank in range(2):
            tail = stream(plan, dataset=Indices(100), global_rank=rank, start_step=first)
            seen += [int(i) for _, labels in itertools.islice(tail, count) for i in labels]
    assert sorted(seen) == list(range(100))


@pytest.mark.parametrize(
    "plan", [BatchPlan(24, 4, 3, 2), BatchPlan(24, 24, 1, 1), BatchPlan(24, 2, 4, 3)]
)
def test_all_processes_together_see_the_samples_of_each_step(plan):
    streams = [
        stream(plan, dataset=Indices(50), global_rank=rank, start_step=5)
        for rank in range(plan.world_size)
    ]
    for step in range(5, 12):
        labels = [next(one)[1] for _ in range(plan.accumulation_steps) for one in streams]
        assert torch.cat(labels).tolist() == step_samples(3, step, 24, 50)[1].tolist()


def test_the_stream_neither_reads_nor_moves_the_global_generators():
    torch.manual_seed(1)
    np.random.seed(1)
    before = digest(stream(workers=1, augment="crop_flip"), 6)
    states = torch.get_rng_state(), np.random.get_state()[1]
    torch.manual_seed(2)
    np.random.seed(2)
    moved = torch.get_rng_state()
    assert digest(stream(workers=1, augment="crop_flip"), 6) == before
    assert torch.equal(torch.get_rng_state(), moved)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), states[0])


# ---------------------------------------------------------------- evaluation


@pytest.mark.parametrize("case", CASES["evaluation"], ids=lambda case: case["id"])
@pytest.mark.parametrize("micro_batch", [3, 64])
def test_evaluation_counts_each_sample_once(case, micro_batch):
    seen = [
        labels
        for rank in range(case["world_size"])
        for _, labels in eval_batches(
            Indices(case["num_samples"]),
            global_rank=rank,
            world_size=case["world_size"],
            micro_batch=micro_batch,
        )
    ]
    assert max(map(len, seen)) <= micro_batch
    counts = np.bincount(torch.cat(seen).numpy(), minlength=case["num_samples"])
    assert (counts == 1).all()
    assert counts.sum() == case["num_samples"] < case["torch"]["total"]


def test_processes_share_the_evaluation_evenly():
    sizes = [
        sum(
            len(labels)
            for _, labels in eval_batches(
                Indices(103), global_rank=rank, world_size=8, micro_batch=5
            )
        )
        for rank in range(8)
    ]
    assert max(sizes) - min(sizes) <= 1


def test_evaluation_can_be_repeated_with_the_same_workers():
    batches = eval_batches(Indices(20), global_rank=0, world_size=1, micro_batch=8, workers=2)
    first = [labels.tolist() for _, labels in batches]
    workers = loader_workers()
    second = [labels.tolist() for _, labels in batches]
    assert first == second == [list(range(8)), list(range(8, 16)), list(range(16, 20))]
    assert len(workers) == 2
    assert loader_workers() == workers


# ---------------------------------------------------------------- workers as processes


def is_loader(child):
    with suppress(psutil.Error):
        return "from multiprocessing." in " ".join(child.cmdline())
    return False


def loader_processes():
    """The fork server, its tracker and the workers; nothing else that this process has started."""
    return list(filter(is_loader, psutil.Process().children(recursive=True)))


def loader_workers():
    return {child.pid for child in loader_processes() if child.name() == "pt_data_worker"}


def test_workers_do_not_hear_stop_signals_from_their_first_moment_on():
    expected = digest(stream(augment="crop_flip"), 60)
    done, shots = threading.Event(), set()

    def shoot():
        while not done.is_set():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                for child, number in itertools.product(loader_processes(), STOP_SIGNALS):
                    os.kill(child.pid, number)
                    shots.add(child.pid)
            time.sleep(0.002)

    def until_all_are_hit(batches):
        yield next(batches)
        wait_until(lambda: len(shots) >= 4)
        yield from batches

    shooter = threading.Thread(target=shoot)
    shooter.start()
    try:
        batches = until_all_are_hit(stream(augment="crop_flip", workers=2))
        assert digest(batches, 60) == expected
    finally:
        done.set()
        shooter.join()


class Broken(Indices):
    def fetch(self, samples, augment=None):
        raise HpcddpError("n01/2.JPEG cannot be decoded")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_while_reading_keeps_its_kind_and_words(workers):
    with pytest.raises(HpcddpError, match=r"n01/2\.JPEG cannot be decoded"):
        next(stream(dataset=Broken(5), workers=workers))


def test_workers_end_with_their_stream():
    batches = stream(workers=2)
    next(batches)
    wait_until(lambda: len(loader_workers()) == 2)  # the first batch may come before the second
    del batches
    wait_until(lambda: not loader_workers())


PROGRAM = """
    import builtins, os, signal, sys, psutil
    sys.path.insert(0, {tests!r})
    from test_stream import Broken, HpcddpError, stream

    if __name__ == "__main__":
        batches = stream(workers=2)
        next(batches)
        builtins.kept_for_ever = batches
        try:
            next(stream(dataset=Broken(5), workers=1))
        except HpcddpError as error:
            builtins.kept_too = error  # and with it, in its traceback, the loader
        print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
        {ending}
"""


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("sys.exit(75)", 75),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_however_a_process_ends_its_workers_end_too(tmp_path, ending, code):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(PROGRAM.format(tests=str(Path(__file__).parent), ending=ending))
    )
    ended = subprocess.run(
        [sys.executable, program],
        env=os.environ | {"PYTHONPATH": IMPORTS},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == code, ended.stderr
    children = [int(pid) for pid in ended.stdout.split()]
    assert len(children) >= 5
    wait_until(lambda: all(map(has_ended, children)))


def test_a_process_that_leaves_at_once_leaves_no_files_behind(tmp_path, short_tmp):
    program, temporary = tmp_path / "program.py", short_tmp
    ending = """from hpcddp.leave import leave
        assert any(name.startswith("pymp-") for name in os.listdir(os.environ["TMPDIR"]))
        leave(75)"""
    program.write_text(
        textwrap.dedent(PROGRAM.format(tests=str(Path(__file__).parent), ending=ending))
    )
    ended = subprocess.run(
        [sys.executable, program],
        env=os.environ | {"PYTHONPATH": IMPORTS, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 75, ended.stderr
    assert [*temporary.glob("pymp-*")] == []
