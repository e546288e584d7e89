"""How busy GPUs are, against a stand-in for NVML."""

import sys
import time
from types import SimpleNamespace

import pytest

from hpcddp.measure import gpu_use
from hpcddp.measure.gpu_use import GpuUse


class NVMLError(Exception):
    pass


def nvml(use, *, init=lambda: None):
    """A module with as many devices as `use` has entries, which maps UUID to per cent."""
    handles = list(use)

    def by_index(index):
        if index >= len(handles):
            raise NVMLError("no such device")
        return handles[index]

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=init,
        nvmlDeviceGetHandleByIndex=by_index,
        nvmlDeviceGetHandleByUUID=lambda uuid: by_index(handles.index(uuid)),
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=use[handle]),
    )


@pytest.mark.parametrize("entries", [["1", "0"], ["GPU-b", "GPU-a"]])
def test_the_devices_that_are_visible_are_watched_in_their_order(monkeypatch, entries):
    monkeypatch.setitem(sys.modules, "pynvml", nvml({"GPU-a": 100, "GPU-b": 25}))
    monkeypatch.setattr(gpu_use, "_MEAN_OVER_S", 0.1)
    with GpuUse(entries).watch() as use:
        time.sleep(0.5)
        assert use == []  # not before the end
    assert use == pytest.approx([0.25, 1.0])


def test_what_ran_before_is_not_taken_for_what_runs(monkeypatch):
    """For a second NVML still says 100 %, of the group that was visited before."""
    begin, module = time.monotonic(), nvml({"GPU-a": 0})
    module.nvmlDeviceGetUtilizationRates = lambda handle: SimpleNamespace(
        gpu=100 if time.monotonic() - begin < 1 else 40
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    gpus = GpuUse(["0"])
    with gpus.watch() as short:
        time.sleep(0.3)
    begin = time.monotonic()
    with gpus.watch() as use:
        time.sleep(1.6)
    assert (short, use) == ([], [pytest.approx(0.4)])
    assert "no visit was longer than a second" in gpus.why_nothing


def refuses():
    raise NVMLError("no driver")


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (None, "pip install nvidia-ml-py"),
        (nvml({"GPU-a": 1}, init=refuses), "refuses to say it (no driver)"),
        (nvml({}), "refuses to say it (no such device)"),
    ],
    ids=["not installed", "no driver", "no such device"],
)
def test_without_nvml_there_is_nothing_to_say_but_why(monkeypatch, module, said):
    monkeypatch.setattr(gpu_use, "_MEAN_OVER_S", 0.1)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    gpus = GpuUse(["0"])
    with gpus.watch() as use:
        time.sleep(0.15)
    assert use == []
    assert said in gpus.why_nothing


def test_a_reading_that_fails_is_left_out(monkeypatch):
    module = nvml({"GPU-a": 50})
    answers = iter([NVMLError(), SimpleNamespace(gpu=50)])

    def rates(handle):
        answer = next(answers, SimpleNamespace(gpu=50))
        if isinstance(answer, Exception):
            raise answer
        return answer

    module.nvmlDeviceGetUtilizationRates = rates
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(gpu_use, "_MEAN_OVER_S", 0.1)
    with GpuUse(["0"]).watch() as use:
        time.sleep(0.5)
    assert use == [0.5]
