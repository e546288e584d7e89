"""Facts about GPUs, from a made-up library of NVIDIA's."""

import sys
from types import SimpleNamespace

from hpcddp.config.layout import ProcessLayout
from hpcddp.doctor.gpu_facts import read_gpus, with_own_gpus
from hpcddp.doctor.host_facts import read_node_facts


class FakeNvml(SimpleNamespace):
    """The calls of pynvml; `broken` ones say that they are not supported."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, NVML_ERROR_NO_PERMISSION = 1, 0, 4

    class NVMLError(Exception):
        value = 3

    def __getattr__(self, name):
        if name in ("nvmlInit", "nvmlShutdown"):
            return lambda: None
        answers = {
            "nvmlDeviceGetCount": 2, "nvmlSystemGetDriverVersion": b"570.1",
            "nvmlDeviceGetUUID": "GPU-1", "nvmlDeviceGetName": b"H100",
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=5),
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x41, "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetTemperature": 90,
            "nvmlDeviceGetCurrPcieLinkWidth": 8,
        }  # fmt: skip
        if name == "nvmlDeviceGetMaxPcieLinkWidth":
            return self._refuse
        return lambda *words: answers[name]

    def _refuse(self, *words):
        raise self.NVMLError("Not Supported")


def test_gpus_are_described_as_far_as_the_library_answers(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    facts = read_gpus()
    gpus = facts["gpus"]
    assert (len(gpus), facts["driver"], facts["no_gpu"]) == (2, "570.1", "")
    assert facts["lost_gpus"] == []
    assert gpus[0]["slowed_by"] == ["heat (hardware)"]  # 0x01, a GPU at rest, is no trouble
    assert (gpus[0]["name"], gpus[0]["pcie_width"], gpus[0]["max_pcie_width"]) == ("H100", 8, None)


def test_without_the_library_or_a_driver_it_says_which_is_missing(monkeypatch, tmp_path):
    nothing = tmp_path / "nothing"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_gpus(nothing, nothing)["no_gpu"] == "no NVIDIA GPU"
    assert "pip install nvidia-ml-py" in read_gpus(tmp_path, nothing)["no_gpu"]
    fake = FakeNvml(nvmlInit=FakeNvml()._refuse)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert read_gpus(amd=nothing)["no_gpu"] == "no NVIDIA GPU (Not Supported)"


def test_where_the_gpus_are_amds_it_says_that_they_are_not_read(monkeypatch, tmp_path):
    nothing, said = tmp_path / "nothing", "AMD GPUs are not read by doctor"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert said in read_gpus(nothing, amd=tmp_path)["no_gpu"]
    assert "pip install nvidia-ml-py" in read_gpus(tmp_path, amd=tmp_path)["no_gpu"]
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(nvmlInit=FakeNvml()._refuse))
    assert said in read_gpus(nothing, amd=tmp_path)["no_gpu"]
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    assert read_gpus(nothing, amd=tmp_path)["no_gpu"] == ""


def test_a_gpu_that_is_lost_is_told_and_one_that_is_closed_is_not(monkeypatch):
    fake = FakeNvml()

    class Closed(FakeNvml.NVMLError):
        value = 4

    def handle(number):
        if number:
            raise Closed("Insufficient Permissions") if number == 1 else fake.NVMLError("lost")
        return "handle"

    fake.nvmlDeviceGetCount, fake.nvmlDeviceGetHandleByIndex = lambda: 3, handle
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    facts = read_gpus()
    assert [gpu["uuid"] for gpu in facts["gpus"]] == ["GPU-1"]
    assert facts["lost_gpus"] == ["GPU 2: lost"]


def test_where_training_uses_the_cpu_nobody_asks_for_gpus(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    layout = ProcessLayout(hosts=("n",), launcher="local")
    facts = read_node_facts(layout, {}, None, uses_gpus=False)
    assert facts["gpus"] == []
    assert "train.device=cpu" in facts["no_gpu"]
    assert len(read_node_facts(layout, {}, None, uses_gpus=True)["gpus"]) == 2


def test_of_a_node_that_others_use_too_only_the_jobs_own_gpus_are_looked_at():
    gpus = [{"uuid": "GPU-aa"}, {"uuid": "GPU-bb"}, {"uuid": "GPU-cc"}]
    processes = [
        {"host": "n1", "device_uuid": "aa", "gpus": gpus, "no_gpu": ""},
        {"host": "n1", "device_uuid": "cc", "gpus": gpus, "no_gpu": ""},
        {"host": "n2", "device_uuid": None, "gpus": gpus, "no_gpu": ""},
        {"host": "n3", "device_uuid": None, "gpus": [], "no_gpu": "no GPU"},
    ]
    found = with_own_gpus(processes)
    assert [[gpu["uuid"] for gpu in facts["gpus"]] for facts in found] == [
        ["GPU-aa", "GPU-cc"], ["GPU-aa", "GPU-cc"], [], [],
    ]  # fmt: skip
    assert [facts["no_gpu"] for facts in found[:2]] == ["", ""]
    assert "uses no GPU" in found[2]["no_gpu"]
    assert found[3]["no_gpu"] == "no GPU"
