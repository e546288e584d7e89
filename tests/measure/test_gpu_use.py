"""How busy GPUs are, against a stand-in for NVML."""

import sys
import time
from types import SimpleNamespace

import pytest

from hpcddp.measure.gpu_use import GpuUse


class NVMLError(Exception):
    pass


def nvml(use, *, init=lambda: None):
    """A module with as many devices as `use` has entries, which maps UUID to per cent."""
    handles = list(use)

    def by_index(index):
        if index >= len(handles):
            raise NVMLError
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
    with GpuUse(entries).watch() as use:
        time.sleep(0.35)
        assert use == []  # not before the end
    assert use == pytest.approx([0.25, 1.0])


def refuses():
    raise NVMLError


@pytest.mark.parametrize(
    "module",
    [None, nvml({"GPU-a": 1}, init=refuses), nvml({})],
    ids=["not installed", "no driver", "no such device"],
)
def test_without_nvml_there_is_nothing_to_say(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "pynvml", module)
    with GpuUse(["0"]).watch() as use:
        time.sleep(0.15)
    assert use == []


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
    with GpuUse(["0"]).watch() as use:
        time.sleep(0.35)
    assert use == [0.5]
