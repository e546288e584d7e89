import ctypes
import os
import subprocess
import sys

import pytest
import torch

from hpcddp.config.layout import ProcessLayout
from hpcddp.errors import HpcddpError
from hpcddp.train import device as device_module
from hpcddp.train.device import choose_device


@pytest.fixture
def visible(monkeypatch):
    """Pretend that torch sees so many devices; the one made current is remembered."""
    current = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)

    def pretend(count):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        return current

    return pretend


@pytest.mark.parametrize(
    ("wish", "device_index", "count", "expected"),
    [
        ("cpu", 0, 4, "cpu"),
        ("auto", 0, 0, "cpu"),
        ("auto", None, 4, "cpu"),
        ("auto", 3, 4, "cuda:3"),
        ("cuda", 0, 1, "cuda:0"),
    ],
)
def test_the_device_is_what_the_layout_says(visible, wish, device_index, count, expected):
    current = visible(count)
    layout = ProcessLayout(device_index=device_index)
    assert choose_device(wish, layout) == torch.device(expected)
    assert current == ([torch.device(expected)] if expected != "cpu" else [])


@pytest.mark.parametrize(
    ("cuda", "said"), [(None, "nstall a torch for its GPUs"), ("13.0", "whether nvidia-smi works")]
)
@pytest.mark.parametrize("granted", [{}, {"device_index": "CUDA_VISIBLE_DEVICES"}])
def test_without_a_device_it_says_what_this_torch_needs(visible, monkeypatch, cuda, said, granted):
    visible(0)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with pytest.raises(HpcddpError) as caught:
        choose_device("cuda", ProcessLayout(device_index=0, sources=granted))
    assert said in caught.value.message
    assert ("Ask for GPUs" in caught.value.message) is not bool(granted)


def test_a_granted_gpu_that_torch_cannot_use_is_not_replaced_by_the_cpu(visible):
    visible(0)
    sources = {"device_index": "CUDA_VISIBLE_DEVICES"}
    layout = ProcessLayout(device_index=0, sources=sources)
    with pytest.raises(HpcddpError, match=r"was given a GPU.*train\.device=cpu") as caught:
        choose_device("auto", layout)
    assert caught.value.code == "no_gpu"
    assert "--gpus-per-node" not in caught.value.message  # the job has them
    assert choose_device("cpu", layout) == torch.device("cpu")


def test_asking_for_a_gpu_where_there_is_none_says_what_to_do(visible):
    visible(0)
    with pytest.raises(HpcddpError, match=r"sees no CUDA device.*train\.device=cpu") as caught:
        choose_device("cuda", ProcessLayout())
    assert caught.value.code == "no_gpu"


def test_more_processes_than_gpus_is_said(visible):
    visible(2)
    with pytest.raises(HpcddpError, match="CUDA device 3, but only 2 are visible") as caught:
        choose_device("auto", ProcessLayout(device_index=3))
    assert caught.value.code == "gpu_mismatch"


def test_determinism_is_switched_on_without_its_costly_half(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    before = torch.are_deterministic_algorithms_enabled()
    try:
        device_module.make_deterministic()
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory
    finally:
        torch.use_deterministic_algorithms(before)
        torch.utils.deterministic.fill_uninitialized_memory = True


FAULTS = """
import ctypes, resource, sys
libc = ctypes.CDLL(None)
libc.prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: a page is one of 4 KiB
import torch
from hpcddp.train.device import keep_freed_memory

def blocks():
    return [torch.ones(1 << 18) for _ in range(40)]  # of 1 MiB each

# What glibc starts with, held fast: else it raises both by itself, and what is left at the end of
# the heap decides about the rest.
libc.mallopt(-1, 128 << 10)  # M_TRIM_THRESHOLD
libc.mallopt(-3, 128 << 10)  # M_MMAP_THRESHOLD
if "keep" in sys.argv:
    keep_freed_memory()
kept = blocks()
del kept
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    kept = blocks()
    del kept
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*words, **environ):
    """Page faults of allocating 200 MiB in five turns, each freed before the next."""
    command = [sys.executable, "-c", FAULTS, *words]
    own = {name: value for name, value in os.environ.items() if "MALLOC" not in name.upper()}
    done = subprocess.run(command, env=own | environ, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="no glibc here")
def test_memory_that_is_freed_stays_unless_the_user_says_otherwise():
    pages = 200 * 256
    assert faults() > pages / 2
    assert faults("keep") < pages / 20
    assert faults("keep", MALLOC_MMAP_THRESHOLD_="131072") > pages / 2
    assert faults("keep", MALLOC_TRIM_THRESHOLD_="131072") > pages / 2
