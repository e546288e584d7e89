"""What a node is taken for: its GPUs and whether they reach each other."""

import os
from types import SimpleNamespace

import pytest
import torch

from hpcddp.config.load import Layer, resolve
from hpcddp.measure import cpus
from hpcddp.measure.cells import MODES, Wanted
from hpcddp.measure.node_comparison import _have_peers, compare_on, this_node

CONFIG = resolve([Layer("test", {"train": {"max_steps": 1}})]).config


@pytest.mark.parametrize(
    ("count", "strangers", "expected"),
    [
        (1, set(), None),
        (2, set(), True),
        (4, set(), True),
        (4, {(3, 1)}, False),  # one direction suffices
        (2, {(0, 2), (2, 0)}, True),  # the third is not compared
    ],
)
def test_gpus_are_peers_where_each_reaches_each(monkeypatch, count, strangers, expected):
    monkeypatch.setattr(
        torch.cuda, "can_device_access_peer", lambda one, other: (one, other) not in strangers
    )
    assert _have_peers(count) is expected


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    """Return a function that pretends CUDA has GPUs with these properties."""
    near = tmp_path / "0001:ab:00.0"
    near.write_text("4-7\n")
    monkeypatch.setattr(cpus, "_NEAR", f"{tmp_path}/{{}}")

    def pretend(*properties):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(properties))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda n: properties[n])

    return pretend


def test_a_gpu_is_named_by_its_uuid_and_known_by_its_place(gpus):
    """Its number is CUDA's own: NVML counts in another order, and GPUs of other jobs."""
    known = SimpleNamespace(uuid="b", pci_domain_id=1, pci_bus_id=0xAB, pci_device_id=0)
    gpus(known, SimpleNamespace(uuid="a", pci_domain_id=0, pci_bus_id=1, pci_device_id=0))
    for environ in ({}, {"CUDA_VISIBLE_DEVICES": "0,1"}):
        node = this_node(CONFIG, environ)
        assert node.gpus == ("GPU-b", "GPU-a")
        assert node.near == (frozenset({4, 5, 6, 7}), None)


def test_what_torch_does_not_say_of_a_gpu_stays_as_it_was_named(gpus):
    gpus(SimpleNamespace())
    node = this_node(CONFIG, {"CUDA_VISIBLE_DEVICES": "3"})
    assert (node.gpus, node.near) == (("3",), (None,))
    gpus(SimpleNamespace(uuid="b"))
    assert this_node(CONFIG, {"CUDA_VISIBLE_DEVICES": "MIG-x"}).gpus == ("MIG-x",)
    assert this_node(CONFIG, {"HPCDDP_DEVICE": "cpu"}).gpus == ()


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs a GPU")
def test_on_gpus_all_modes_are_compared_with_their_memory():
    devices = tuple(sorted({1, min(2, torch.cuda.device_count())}))
    small = {
        "train": {"model": "shufflenet_v2_x0_5", "global_batch": 4, "max_steps": 1},
        "data": {"name": "synthetic", "synthetic_samples": 16, "image_size": 32},
    }
    config = resolve([Layer("test", small)]).config
    wanted, kept = Wanted(MODES, devices, rounds=2, steps=1), []
    node = this_node(config, os.environ)
    document = compare_on(node, config, wanted, os.environ, kept.append)
    assert [(row["mode"], row["devices"]) for row in document["rows"]] == [
        (cell.mode, cell.devices) for cell in wanted.cells
    ]
    assert (document["backend"], document["label_of_dp"]) == ("nccl", "torch.nn.DataParallel")
    for row in document["rows"]:
        assert len(row["memory_bytes_per_device"]) == row["devices"]
        assert min(row["memory_bytes_per_device"]) > 4 * 352_042  # the parameters, and more
        assert row["n"] > 2  # a visit lasts longer than the one step that was asked for
    assert len(kept) == 1


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs a GPU")
def test_a_real_gpu_has_a_uuid_that_nvml_knows():
    pynvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    pynvml.nvmlInit()
    for name in this_node(CONFIG, {}).gpus:
        pynvml.nvmlDeviceGetHandleByUUID(name)
