"""DDP with its buckets watched: the same bits, and the bytes that were really reduced."""

import json
import os
import time
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from test_step import CPU, close_vote, session_of
from test_step_timer import HandClock
from torch import nn
from train_ranks import free_ports, layouts, start

from hpcddp.train.buckets import BucketMarks, BucketTimes, covered_s, exposed_s, times_of
from hpcddp.train.clock import clock_of
from hpcddp.train.loop import train_step
from hpcddp.train.process_group import open_ranks
from hpcddp.train.replicas import DdpReplicas
from hpcddp.train.step_timer import NoTimer, StepTimer

LATE_S = 0.3
RESNET50_BYTES = 102_228_128  # 25,557,032 parameters in fp32
# The first holds the classifier and is full at 1 MiB, the others at 25; in the order of backward.
RESNET50_BUCKETS = [8_196_000, 31_502_336, 26_255_360, 26_550_272, 9_724_160]
RESNET50_BUFFERS = {"Float": 53_120, "Long": 53}  # running means and variances; batches seen
REDUCE, BROADCAST = ("gloo:all_reduce", "0"), ("gloo:broadcast", "0")  # and DDP's group
ITEM_BYTES = {"Float": 4, "Long": 8}


def weights_after_three_steps(
    watched, passes, port, global_rank, world_size, cuda=False, late_rank=None
):
    """In a child: all weights in one row, and each step's times.

    `late_rank` comes late to every pass.
    """
    device = torch.device("cuda", global_rank) if cuda else CPU
    store = dist.TCPStore("127.0.0.1", port, world_size, global_rank == 0)
    backend = "nccl" if cuda else "gloo"
    dist.init_process_group(backend, store=store, rank=global_rank, world_size=world_size)
    torch.manual_seed(0)
    hidden = nn.Linear(8, 500_000 // 8)  # two buckets of 1 MiB and more
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), hidden, nn.Linear(500_000 // 8, 5))
    model.to(device)
    timer = StepTimer(clock_of(device)) if watched else NoTimer()
    replicas = DdpReplicas(model, timer, bucket_cap_mib=1, static_graph=True)
    assert bool(replicas._ddp._comm_hooks) == watched
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    torch.manual_seed(global_rank)
    replicas(torch.randn(4, 3).to(device)).sum().backward()
    model.zero_grad()
    for _ in range(3):
        with timer.step():
            for micro_step in range(passes):
                if global_rank == late_rank:
                    time.sleep(LATE_S)
                with nullcontext() if micro_step == passes - 1 else replicas.skip_sync():
                    with timer.forward():
                        loss = replicas(torch.randn(4, 3).to(device)).square().mean()
                    with timer.backward():
                        loss.backward()
            sgd.step()
            sgd.zero_grad()
    dist.barrier()
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    return weights.cpu().numpy().tobytes(), timer.take() if watched else None


@pytest.mark.parametrize(("world_size", "passes"), [(1, 1), (2, 1), (3, 1), (3, 2)])
def test_watching_the_buckets_changes_no_bit(world_size, passes):
    check_bits(world_size, passes)


def check_bits(world_size, passes, **options):
    """The same weights on all ranks, watched or not; the last step's times of those watched."""
    ends = []
    for watched in (False, True):
        [port] = free_ports(1)
        calls = [(watched, passes, port, rank, world_size) for rank in range(world_size)]
        ends.append(start(partial(weights_after_three_steps, **options), calls).results())
    stock, hooked = ends
    assert {weights for weights, _ in stock} == {weights for weights, _ in hooked}
    assert len({weights for weights, _ in stock}) == 1
    return [times[-1] for _, times in hooked]


@pytest.mark.parametrize("late_rank", [0, 1])
def test_who_waits_for_a_late_process_does_not_blame_the_model(late_rank):
    """Each step begins with a broadcast of buffers, in the middle of DDP's forward. Other work may
    hold up either process: one of three steps will do.
    """
    [port] = free_ports(1)
    calls = [(True, 1, port, rank, 2, False, late_rank) for rank in range(2)]
    times = [timed for _, timed in start(weights_after_three_steps, calls).results()]
    steps = [(one.phases, two.phases) for one, two in zip(*times, strict=True)]
    blame = [who_is_blamed(step[late_rank], step[1 - late_rank]) for step in steps]
    assert ("nobody", "communication") in blame, steps
    assert all(phases["comm_s"] >= phases["exposed_comm_s"] for step in steps for phases in step)


def who_is_blamed(late, waiting):
    """For the time for which one process came late: on that process, and on the one that waited."""
    some_s, parts = 0.5 * LATE_S, ("exposed_comm_s", "broadcast_s")
    is_sent = all(waiting[part] > some_s for part in parts) and waiting["forward_s"] < some_s
    return (
        "communication" if late["exposed_comm_s"] > some_s else "nobody",
        "communication" if is_sent else "model",
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_gpus_neither_and_each_bucket_has_its_place_in_the_step():
    for times in check_bits(min(torch.cuda.device_count(), 2), 2, cuda=True):
        assert len(times.buckets) >= 2
        for one in times.buckets:
            assert 0 <= one.ready_s <= one.start_s <= one.end_s
        ends_s = times.backward_s + times.phases["exposed_comm_s"]
        assert max(one.end_s for one in times.buckets) <= ends_s + 1e-5


def resnet50_steps(run_dir, layout):
    """In a child: what each of two steps sent, by torch's recorder and by the timer; torch's log.

    A step is two passes, of which the first only accumulates.
    """
    os.environ["TORCH_FR_BUFFER_SIZE"] = "1000"
    ranks = open_ranks(layout, CPU, 60)
    session = session_of(
        run_dir,
        "train.model=resnet50",
        "data.synthetic_classes=1000",
        "data.image_size=33",
        "train.global_batch=8",
        "train.micro_batch=2",
        "train.time_steps=true",
        layout=layout,
        ranks=ranks,
    )
    ddp = session.forward.replicas._ddp
    lanes = ddp.process_group._get_backend(CPU).options._threads
    assert lanes == clock_of(CPU).lanes
    ddp._set_ddp_runtime_logging_sample_rate(1)
    steps, logged = [], []
    for _ in range(6):  # in the first torch also sends the order of its buckets
        steps.append(sent_by_a_step(session))
        # With a static graph torch regroups them before the third pass of all, the first of a step.
        assert ddp._has_rebuilt_buckets
        logged.append(ddp._get_ddp_logging_data())  # of the step before
    times = session.timer.take()
    first, *later = ([bucket.bytes for bucket in one.buckets] for one in times)
    assert later == [first] * 5
    with session.forward.replicas.skip_sync():
        for _ in range(2):
            sent = sent_by_a_step(session)
    unsynced = sent, session.timer.take()
    ranks.close()
    return steps[1:], times[1:], logged[2:], session.traffic, unsynced


def sent_by_a_step(session):
    """What torch's flight recorder has noted of one."""
    before = len(collectives())
    with session.timer.step():
        train_step(session)
        close_vote(session)
    return [said(entry) for entry in collectives()[before:]]


def collectives():
    """What torch's flight recorder has noted of this process."""
    from torch._C import _distributed_c10d as c10d

    return json.loads(c10d._dump_fr_trace_json())["entries"]


def said(entry):
    """What, in which group, number format and how many numbers."""
    [[count]], [dtype] = entry["input_sizes"], entry["input_dtypes"]
    return entry["profiling_name"], entry["process_group"][0], dtype, count


@pytest.fixture(scope="module")
def resnet50(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("resnet50")
    return start(resnet50_steps, [(run_dir, layout) for layout in layouts(2)]).results()


def test_a_step_of_resnet50_reduces_the_bytes_that_it_says(resnet50):
    for steps, timed, logged, traffic, _ in resnet50:
        for sent, times in zip(steps, timed, strict=True):
            reduced = [count for what, group, _, count in sent if (what, group) == REDUCE]
            assert [4 * count for count in reduced] == [one.bytes for one in times.buckets]
            assert [one.bytes for one in times.buckets] == RESNET50_BUCKETS
            assert times.comm_bytes == traffic.comm_bytes == RESNET50_BYTES
            bucket_sizes = [int(word) for word in logged[-1]["rebuilt_bucket_sizes"].split(",")]
            assert bucket_sizes == [one.bytes for one in times.buckets]


def test_a_step_of_resnet50_broadcasts_its_buffers_once_in_two_messages(resnet50):
    for steps, _, _, traffic, _ in resnet50:
        for sent in steps:
            buffers = [one[2:] for one in sent if one[:2] == BROADCAST]
            assert dict(buffers) == RESNET50_BUFFERS
            assert len(buffers) == 2
            assert sum(ITEM_BYTES[d] * n for d, n in buffers) == traffic.buffer_bytes == 212_904


def test_passes_that_only_accumulate_move_nothing_but_buffers(resnet50):
    """Two passes each: the counts of one; the rest of what was sent is the vote's one word."""
    for steps, *_ in resnet50:
        for sent in steps:
            others = [one for one in sent if one[:2] not in (REDUCE, BROADCAST)]
            assert len(sent) == 5 + 2 + 1
            assert [(dtype, count) for *_, dtype, count in others] == [("Int", 2)]


def test_a_step_without_synchronisation_exchanges_only_its_vote(resnet50):
    """Buffers neither, but for the first such step: DDP sends them out after a synchronisation."""
    for *_, (sent, timed) in resnet50:
        assert [(dtype, count) for *_, dtype, count in sent] == [("Int", 2)]
        for times in timed:
            assert (times.buckets, times.comm_bytes) == ([], 0)
            assert times.phases["comm_s"] == times.phases.get("broadcast_s", 0)
        assert ["broadcast_s" in times.phases for times in timed] == [True, False]


def test_torchs_own_log_has_the_same_backward_communication_and_overlap(resnet50):
    """It counts from the first begin to the last end, of that what lies before the last gradient as
    overlap, and writes it down when the next begins. Both read the clock, and between the two other
    work may hold the process up: one of the steps will do.
    """
    for _, times, logged, *_ in resnet50:
        pairs = [*zip(map(spans_of, times), logged, strict=False)]
        assert len(pairs) == 4
        assert any(
            all(span_s == pytest.approx(log[name] / 1e9, rel=0.2) for name, span_s in spans.items())
            for spans, log in pairs
        ), pairs


def spans_of(times):
    """A step's times, by the names that torch's log has for them."""
    buckets = times.buckets
    return {
        "backward_comm_time": buckets[-1].end_s - buckets[0].start_s,
        "backward_compute_comm_overlap_time": buckets[-1].ready_s - buckets[0].start_s,
        "backward_compute_time": times.backward_s,
    }


def test_reductions_of_a_real_step_are_in_order_and_hidden_where_backward_goes_on(resnet50):
    for _, timed, *_ in resnet50:
        for times in timed:
            for one, after in zip(times.buckets, times.buckets[1:], strict=False):
                assert 0 < one.ready_s <= one.start_s <= one.end_s
                assert one.ready_s < after.ready_s
            assert [one.index for one in times.buckets] == [0, 1, 2, 3, 4]
            assert times.buckets[0].start_s < times.backward_s
            assert 0 < times.phases["exposed_comm_s"] < times.phases["comm_s"]
            ends_s = times.backward_s + times.phases["exposed_comm_s"]
            assert max(one.end_s for one in times.buckets) <= ends_s
            assert times.backward_s < times.phases["backward_s"]  # that of both passes


def bucket(start_s, end_s, ready_s=None):
    return BucketTimes(0, 1, start_s if ready_s is None else ready_s, start_s, end_s)


@pytest.mark.parametrize(
    ("lanes", "expected"),
    [(1, [(1, 4), (4, 6), (6, 7)]), (2, [(1, 4), (2, 6), (4, 7)]), (3, [(1, 4), (2, 6), (3, 7)])],
)
def test_a_reduction_begins_when_its_bucket_is_ready_and_the_backend_free(lanes, expected):
    clock = HandClock()
    clock.lanes = lanes
    marks = [BucketMarks(i, 8, 10 + at, 10 + end) for i, (at, end) in enumerate(READY_AND_END)]
    times = times_of(marks, 10, clock)
    assert [(one.start_s, one.end_s) for one in times] == expected
    assert [one.ready_s for one in times] == [1, 2, 3]


READY_AND_END = [(1, 4), (2, 6), (3, 7)]


@pytest.mark.parametrize(
    ("spans", "covered", "exposed"),
    [
        ([], 0, 0),
        ([(1, 3)], 2, 2),
        ([(1, 3), (2, 5)], 4, 3),  # they overlap
        ([(1, 3), (4, 5)], 3, 1),  # a pause in between
        ([(1, 9), (2, 5)], 8, 7),  # the first ends last
    ],
)
def test_time_is_counted_once_and_exposed_after_the_last_gradient(spans, covered, exposed):
    buckets = [bucket(*span) for span in spans]
    assert (covered_s(buckets), exposed_s(buckets)) == (covered, exposed)


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=6),
)
def test_what_is_exposed_is_part_of_what_is_covered(lanes, gaps):
    """Whatever the buckets, as far as they are reduced in order and without idle lanes."""
    clock, marks, ready, free = HandClock(), [], 0, [0] * lanes
    clock.lanes = lanes
    for index, (gap, lasts) in enumerate(gaps):
        ready += gap
        lane = free.index(min(free))
        free[lane] = max(ready, free[lane]) + lasts
        marks.append(BucketMarks(index, 1, ready, free[lane]))
    buckets = times_of(marks, 0, clock)
    assert 0 <= exposed_s(buckets) <= covered_s(buckets) <= max(one.end_s for one in buckets)
