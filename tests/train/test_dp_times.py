"""What DataParallel does between its replicas is timed and counted, on threads and on GPUs."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torchvision
from test_step_timer import HandClock
from torch import nn

from hpcddp.config.batch import BatchPlan
from hpcddp.phases import COMM_PARTS
from hpcddp.train import data_parallel
from hpcddp.train.clock import clock_of
from hpcddp.train.data_parallel import ThreadedDataParallel
from hpcddp.train.gpu_data_parallel import TimedDataParallel
from hpcddp.train.step_timer import NoTimer, StepTimer
from hpcddp.train.traffic import Traffic, dp_traffic

PLAN = BatchPlan(global_batch=24, micro_batch=12, accumulation_steps=2, world_size=1)


def model():
    """53 parameters of 4 bytes, of which 18 + 10 are weights; 7 numbers of buffers."""
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 4))


@pytest.fixture
def clock():
    return HandClock()


def slowed(clock, function, seconds):
    """`function`, after which `clock` shows that it took so long."""

    def slow(*arguments, **options):
        result = function(*arguments, **options)
        clock.at += seconds
        return result

    return slow


def one_step(timer, parallel, batch):
    with timer.step():
        with timer.forward():
            logits = parallel(batch)
        with timer.backward():
            logits.sum().backward()
    [times] = timer.take()
    return times


def test_threads_spend_their_time_in_four_parts(clock, monkeypatch):
    for name, seconds in (("scatter", 1), ("_broadcast", 2), ("_in_threads", 64)):
        monkeypatch.setattr(
            data_parallel, name, slowed(clock, getattr(data_parallel, name), seconds)
        )
    one_gradient = slowed(clock, data_parallel._add_up, 8)
    monkeypatch.setattr(data_parallel, "_add_up", one_gradient)
    timer = StepTimer(clock)
    parallel = ThreadedDataParallel(model(), 3, timer)
    phases = one_step(timer, parallel, torch.randn(12, 2)).phases
    assert [phases[part] for part in COMM_PARTS] == [2, 1, 0, 6 * 8]
    assert (phases["forward_s"], phases["backward_s"]) == (64, 64)
    assert phases["comm_s"] == phases["exposed_comm_s"] == 2 + 1 + 6 * 8


def test_outputs_are_gathered_in_a_part_of_their_own(clock, monkeypatch):
    monkeypatch.setattr(data_parallel.torch, "cat", slowed(clock, torch.cat, 4))
    timer = StepTimer(clock)
    times = one_step(timer, ThreadedDataParallel(model(), 3, timer), torch.randn(12, 2))
    assert times.phases["gather_s"] == times.step_s == 4


class Copies(torch.autograd.Function):
    """Stands for torch's broadcast between GPUs: two copies; their gradients are added up."""

    clock = None

    @staticmethod
    def forward(ctx, *tensors):
        return tuple(tensor.clone() for tensor in (*tensors, *tensors))

    @staticmethod
    def backward(ctx, *gradients):
        Copies.clock.at += 8
        half = len(gradients) // 2
        pairs = zip(gradients[:half], gradients[half:], strict=True)
        return tuple(one + other for one, other in pairs)


def in_threads(replicas, inputs):
    """As torch's: they are told whether there is autocast, and not to what."""
    enabled = torch.is_autocast_enabled("cpu")

    def run(replica, one):
        with torch.autocast("cpu", enabled=enabled):
            return replica(*one)

    with ThreadPoolExecutor(len(replicas)) as threads:
        return [*threads.map(run, replicas, inputs)]


@pytest.fixture
def on_fake_gpus(clock, monkeypatch):
    """A TimedDataParallel that takes the CPU for two GPUs, and its timer."""
    pieces = sys.modules["torch.nn.parallel.data_parallel"]  # a function has the same name
    Copies.clock = clock

    def applied(devices, *tensors):
        clock.at += 1
        return Copies.apply(*tensors)

    def broadcast_buffers(tensors, devices):
        return [[tensor.clone() for tensor in tensors] for _ in devices]

    def scattered(inputs, kwargs, devices, dim):
        clock.at += 2
        return [(chunk,) for chunk in inputs[0].chunk(len(devices))], [{} for _ in devices]

    def gathered(outputs, device, dim):
        clock.at += 4
        return torch.cat(outputs)

    def run_all(replicas, inputs, kwargs, devices):
        clock.at += 64
        return in_threads(replicas, inputs)

    monkeypatch.setattr(torch.nn.parallel._functions.Broadcast, "apply", applied)
    monkeypatch.setattr(torch.nn.parallel.comm, "broadcast_coalesced", broadcast_buffers)
    monkeypatch.setattr(pieces, "scatter_kwargs", scattered)
    monkeypatch.setattr(pieces, "gather", gathered)
    monkeypatch.setattr(pieces, "parallel_apply", run_all)
    timer = StepTimer(clock)

    def build(made):
        parallel = TimedDataParallel(made, [0, 1], torch.device("cpu"), timer)
        parallel.device_ids, parallel.output_device, parallel.dim = [0, 1], 0, 0
        parallel.src_device_obj = torch.device("cpu")
        return parallel

    return build, timer


def test_torchs_own_tells_the_same_four_parts(on_fake_gpus):
    build, timer = on_fake_gpus
    made = model()
    times = one_step(timer, build(made), torch.randn(12, 2))
    assert [times.phases[part] for part in COMM_PARTS] == [1, 2, 4, 8]
    assert times.phases["forward_s"] == 64
    assert times.step_s == 64 + 15
    assert all(parameter.grad is not None for parameter in made.parameters())


def test_a_model_that_is_frozen_altogether_reduces_nothing(on_fake_gpus):
    build, timer = on_fake_gpus
    parallel = build(model().requires_grad_(False))
    with timer.step(), timer.forward():
        parallel(torch.randn(12, 2))
    [times] = timer.take()
    assert "reduce_s" not in times.phases


@pytest.mark.parametrize("wanted", [torch.float16, torch.bfloat16, None])
def test_replicas_compute_in_the_number_format_of_who_calls_them(on_fake_gpus, wanted):
    """A new thread of torch's own knows only its default: fp16 on GPUs, bf16 on CPUs."""
    build, _ = on_fake_gpus
    parallel = build(nn.Linear(2, 3))
    with torch.autocast("cpu", dtype=wanted, enabled=wanted is not None):
        assert parallel(torch.randn(12, 2)).dtype == (wanted or torch.float32)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("wanted", [torch.float16, torch.bfloat16])
def test_replicas_on_gpus_compute_in_the_number_format_of_who_calls_them(wanted):
    device = torch.device("cuda", 0)
    parallel = TimedDataParallel(nn.Linear(2, 3).to(device), [0, 1], device, NoTimer())
    with torch.autocast("cuda", dtype=wanted):
        assert parallel(torch.randn(12, 2, device=device)).dtype == wanted


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_on_gpus_each_part_takes_its_time():
    device = torch.device("cuda", 0)
    timer = StepTimer(clock_of(device))
    made = nn.Sequential(nn.Linear(4096, 4096), nn.Linear(4096, 10)).to(device)
    parallel = TimedDataParallel(made, [0, 1], device, timer)
    for _ in range(2):
        times = one_step(timer, parallel, torch.randn(512, 4096, device=device))
    assert all(times.phases[part] > 0 for part in COMM_PARTS)
    assert times.phases["backward_s"] > 0


@pytest.mark.parametrize(("replicas", "copies"), [(1, 0), (2, 1), (3, 2), (5, 3), (6, 5)])
def test_the_planned_bytes_are_those_that_were_copied_and_added(monkeypatch, replicas, copies):
    """Five replicas get 3, 3, 3, 3 of twelve images, so one of them has no part in it."""
    moved = {"parameters": 0, "buffers": 0, "gradients": 0}
    broadcast, add_up = data_parallel._broadcast, data_parallel._add_up

    def counted_broadcast(module, targets):
        moved["parameters"] += len(targets) * sum(p.nbytes for p in module.parameters())
        moved["buffers"] += len(targets) * sum(b.nbytes for b in module.buffers())
        broadcast(module, targets)

    def counted_add_up(gradients):
        moved["gradients"] += sum(gradient.nbytes for gradient in gradients[1:])
        return add_up(gradients)

    monkeypatch.setattr(data_parallel, "_broadcast", counted_broadcast)
    monkeypatch.setattr(data_parallel, "_add_up", counted_add_up)
    made = model()
    parallel = ThreadedDataParallel(made, replicas, StepTimer(HandClock()))
    for _ in range(PLAN.accumulation_steps):
        parallel(torch.randn(12, 2)).sum().backward()
    planned = dp_traffic(made, PLAN, replicas)
    assert planned.comm_bytes == moved["parameters"] + moved["gradients"]
    assert planned.buffer_bytes == moved["buffers"]
    assert planned == Traffic(*[2 * copies * n for n in (2 * 31 * 4, 6 * 4 + 8)])


def test_eight_gpus_move_1430_megabytes_for_a_step_of_resnet50():
    """The parameters to seven others and their gradients back: 2(n-1) times the model's size."""
    with torch.device("meta"):
        resnet50 = torchvision.models.resnet50()
    plan = BatchPlan(global_batch=256, micro_batch=256, accumulation_steps=1, world_size=1)
    assert dp_traffic(resnet50, plan, 8).comm_bytes == 2 * 7 * 102_228_128


def test_the_cpu_time_of_each_replica_is_told_once():
    timer = StepTimer(HandClock())
    parallel = ThreadedDataParallel(model(), 3, timer)
    before = time.process_time()
    for _ in range(20):
        parallel(torch.randn(12, 2)).sum().backward()
    of_all = time.process_time() - before
    spent = timer.take_replica_cpu()
    assert len(spent) == 3
    assert all(seconds > 0 for seconds in spent)
    assert sum(spent) <= of_all
    assert timer.take_replica_cpu() == []
    parallel.eval()(torch.randn(1, 2))  # for one replica there is no second chunk
    assert len(timer.take_replica_cpu()) == 1
