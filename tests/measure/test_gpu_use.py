"""How busy GPUs are, against a stand-in for NVML."""

import sys
import threading
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


class Visit:
    """Stands for the event that ends a visit, which lasts so many pretended seconds."""

    def __init__(self, lasts_s):
        self.now_s, self.lasts_s = 0.0, lasts_s

    def wait(self, pause_s):
        self.now_s += pause_s
        return self.now_s >= self.lasts_s

    def set(self):
        pass


@pytest.fixture
def visit(monkeypatch):
    """Return a function that says how long the next visit lasts."""

    def visit(lasts_s):
        next_one = Visit(lasts_s)
        own = SimpleNamespace(Event=lambda: next_one, Thread=threading.Thread)
        monkeypatch.setattr(gpu_use, "threading", own)
        return next_one

    return visit


@pytest.mark.parametrize("entries", [["1", "0"], ["GPU-b", "GPU-a"]])
def test_the_devices_that_are_visible_are_watched_in_their_order(monkeypatch, visit, entries):
    monkeypatch.setitem(sys.modules, "pynvml", nvml({"GPU-a": 100, "GPU-b": 25}))
    visit(5)
    with GpuUse(entries).watch() as use:
        assert use == []  # not before the end
    assert use == pytest.approx([0.25, 1.0])


def test_what_ran_before_is_not_taken_for_what_runs(monkeypatch, visit):
    """For a second NVML still says 100 %, of the group that was visited before."""
    now, module = visit(0.3), nvml({"GPU-a": 0})
    module.nvmlDeviceGetUtilizationRates = lambda handle: SimpleNamespace(
        gpu=100 if now.now_s < 1 else 40
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    gpus = GpuUse(["0"])
    with gpus.watch() as short:
        pass
    now = visit(1.6)
    with gpus.watch() as use:
        pass
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
def test_without_nvml_there_is_nothing_to_say_but_why(monkeypatch, visit, module, said):
    monkeypatch.setitem(sys.modules, "pynvml", module)
    visit(5)
    gpus = GpuUse(["0"])
    with gpus.watch() as use:
        pass
    assert use == []
    assert said in gpus.why_nothing


def test_a_reading_that_fails_is_left_out(monkeypatch, visit):
    module = nvml({"GPU-a": 50})
    answers = iter([NVMLError(), SimpleNamespace(gpu=50)])

    def rates(handle):
        answer = next(answers, SimpleNamespace(gpu=50))
        if isinstance(answer, Exception):
            raise answer
        return answer

    module.nvmlDeviceGetUtilizationRates = rates
    monkeypatch.setitem(sys.modules, "pynvml", module)
    visit(5)
    with GpuUse(["0"]).watch() as use:
        pass
    assert use == [0.5]
