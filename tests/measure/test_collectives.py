"""Times of all-reduces: of the slowest process, by the definitions, and never of a wrong sum."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from hpcddp.errors import HpcddpError
from hpcddp.measure import collectives
from hpcddp.measure.collectives import AllReduceTime, bus_factor, measure_all_reduce
from hpcddp.train.process_group import LoneProcess


class TwoAlike(LoneProcess):
    """Pretends that process 1 holds what process 0 holds, plus one, as the check fills it."""

    def __init__(self, damage=0.0, other_s=0.0):
        self.calls, self.damage, self.other_s = [], damage, other_s

    def sum_across(self, tensor):
        self.calls.append(tensor.numel() * 4)
        if len(self.calls) == 1 or self.calls[-1] != self.calls[-2]:
            tensor.mul_(2).add_(1)
            tensor[-1] += self.damage

    def start_max(self, tensor):
        if tensor.numel() > 1:  # not the answer to "is it wrong?"
            tensor.clamp_(min=self.other_s)
        return super().start_max(tensor)


def measure(ranks, sizes, **options):
    place = {"global_rank": 0, "world_size": 2, "seconds_per_size": 1e-9}
    return list(measure_all_reduce(ranks, sizes, torch.device("cpu"), **place | options))


def test_the_slowest_process_counts_and_every_call_is_accounted_for():
    ranks = TwoAlike(other_s=1000.0)
    times = measure(ranks, [1024, 4096])
    assert [(each.bytes, each.seconds) for each in times] == [(1024, 1000.0), (4096, 1000.0)]
    for each in times:
        assert ranks.calls.count(each.bytes) == each.n + each.discarded
        assert each.n == 3


def test_a_fast_size_is_repeated_as_long_as_it_may():
    [measured] = measure(TwoAlike(other_s=1000.0), [1024], seconds_per_size=50_000)
    assert measured.n == 50


def test_quartiles_are_those_of_every_other_measurement(monkeypatch):
    monkeypatch.setattr(collectives, "_times", lambda *_: [4.0, 1.0, 3.0, 2.0])
    [measured] = measure(TwoAlike(), [1024])
    assert (measured.seconds, measured.quartiles_s) == (2.5, (1.75, 3.25))


@pytest.mark.parametrize(
    ("world_size", "nodes", "expected"),
    [(8, 1, None), (2, 2, None), (16, 2, 15), (16, 4, 5), (4, 2, 3)],
)
def test_per_process_a_node_sends_a_fraction_of_bus_bandwidth(world_size, nodes, expected):
    measured = AllReduceTime(1 << 20, 0.01, (0.01, 0.01), 3, 3)
    per_node = measured.node_gb_per_s(world_size, nodes)
    if expected is None:
        assert per_node is None
    else:  # busbw x (k-1)/(n-1)
        per_process = per_node / (world_size // nodes)
        assert measured.busbw_gb_per_s(world_size) / per_process == pytest.approx(expected)


def test_a_wrong_last_element_is_an_error():
    with pytest.raises(HpcddpError, match="4096 bytes gave a wrong sum in this process"):
        measure(TwoAlike(damage=1.0), [4096])


class Crowd(LoneProcess):
    """Adds up what each of very many processes fills in, as the first of them fills it in."""

    def __init__(self, world_size):
        self.world_size, self.largest = world_size, 0.0

    def sum_across(self, tensor):
        if self.largest:
            return
        values = (1 << 24) // (2 * self.world_size) + 1
        others = sum(rank % values for rank in range(self.world_size))
        whole = tensor.double() * self.world_size + others
        self.largest = float(whole.max())
        tensor.copy_(whole)


@pytest.mark.parametrize("world_size", [2, 5_500, 8_192, 100_000, 4_000_000])
def test_no_sum_is_too_large_for_a_float_to_hold(world_size):
    crowd = Crowd(world_size)
    measure(crowd, [4096], world_size=world_size)
    assert 0 < crowd.largest <= 1 << 24


@pytest.mark.parametrize(("world_size", "factor"), [(1, 0), (2, 1), (4, 1.5), (8, 1.75)])
def test_bus_bandwidth_is_what_each_process_sends_per_second(world_size, factor):
    assert bus_factor(world_size) == factor
    measured = AllReduceTime(10**9, 2.0, (2.0, 2.0), 3, 3)
    assert measured.algbw_gb_per_s == 0.5
    assert measured.busbw_gb_per_s(world_size) == 0.5 * factor


class Device:
    """A GPU whose clock moves when it works; the host reads an event only once it has come."""

    def __init__(self):
        self.at_ms, self.has_waited, self.durations_ms = 0.0, False, itertools.cycle([1, 2, 4])

    def sum_across(self, tensor):
        self.at_ms += next(self.durations_ms)

    def wait_for_all(self):
        self.at_ms += 1000  # a late process is no part of the first call

    def event(self, enable_timing):
        assert enable_timing
        return DeviceEvent(self)


class DeviceEvent:
    """As torch.cuda.Event."""

    def __init__(self, device):
        self.device = device

    def record(self):
        self.at_ms = self.device.at_ms

    def synchronize(self):
        self.device.has_waited = self.at_ms == self.device.at_ms

    def elapsed_time(self, end):
        assert self.device.has_waited
        return end.at_ms - self.at_ms


def test_on_a_gpu_each_call_is_timed_by_the_device(monkeypatch):
    device = Device()
    monkeypatch.setattr(torch.cuda, "Event", device.event)
    tensor = SimpleNamespace(device=SimpleNamespace(type="cuda"))
    assert collectives._times(device, tensor, 5) == [0.001, 0.002, 0.004, 0.001, 0.002]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_real_gpu_each_call_has_a_time_of_its_own():
    tensor = torch.empty(1 << 20, device="cuda")

    class Copies(LoneProcess):
        def sum_across(self, tensor):
            tensor.clone()

    times = collectives._times(Copies(), tensor, 5)
    assert (len(times), min(times) > 0) == (5, True)
