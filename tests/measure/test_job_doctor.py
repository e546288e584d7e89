"""How the processes of a doctor's job share their work."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from hpcddp.config.layout import ProcessLayout
from hpcddp.config.schema import RunConfig
from hpcddp.errors import HpcddpError
from hpcddp.measure import job_doctor


def test_only_the_first_process_of_a_node_reads_the_facts_of_the_node(monkeypatch):
    monkeypatch.setattr(job_doctor, "read_node_facts", lambda *words, **more: {"read": True})
    first = ProcessLayout(world_size=2, local_world_size=2)
    second = dataclasses.replace(first, global_rank=1, local_rank=1)
    assert job_doctor._node_facts(first, {}, RunConfig()) == {"read": True}
    assert job_doctor._node_facts(second, {}, RunConfig()) is None


def test_only_the_main_process_judges_and_the_others_have_its_verdict(monkeypatch, tmp_path):
    ranks = SimpleNamespace(decide=lambda on_main: True, close=lambda: None)
    links = SimpleNamespace(gather=lambda value: [value])
    for name, value in (("open_ranks", ranks), ("Links", links), ("_all_reduce", (None, {})),
                        ("visible_after", {}), ("clock_offsets", {})):  # fmt: skip
        monkeypatch.setattr(job_doctor, name, lambda *words, value=value: value)
    monkeypatch.setattr(job_doctor, "examine_hosts", pytest.fail)
    layout = ProcessLayout(global_rank=1, world_size=2, hosts=("a", "b"), launcher="local")
    assert job_doctor.examine(layout, {}, tmp_path, RunConfig(), None) == ({}, True)


def test_a_process_that_has_no_device_says_which_gpu_is_lost(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    layout = ProcessLayout(hosts=("gpu-07",), launcher="slurm")
    with pytest.raises(HpcddpError) as told:
        job_doctor._device("cuda", layout, {"lost_gpus": ["GPU 3: GPU is lost"]})
    assert told.value.message.startswith("GPU 3: GPU is lost")
    assert "exclude=gpu-07" in told.value.message
    assert told.value.code == "no_gpu"


@pytest.mark.parametrize(
    ("hip", "seen", "because"), [(None, 1, ""), ("7.0", None, "RCCL reaches GPUs that a process")]
)
def test_how_many_gpus_a_process_sees_says_nothing_of_rccl(monkeypatch, hip, seen, because):
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27))
    properties = SimpleNamespace(uuid="aa")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(job_doctor, "_cores_of_a_worker", lambda: None)
    facts = job_doctor._torch_facts(torch.device("cuda", 0), {"versions": {}})
    assert facts["gpus_seen"] == seen
    assert facts["not_seen_because"][:32] == because
    cpu = job_doctor._torch_facts(torch.device("cpu"), {"versions": {}})
    assert (cpu["gpus_seen"], cpu["not_seen_because"]) == (None, "this process uses no GPU")
