"""What a step consists of adds up, on a clock that the test moves and on the real one."""

import pytest
import torch
from torch import nn
from train_ranks import events_of, small_config, train_on

from hpcddp.phases import COMM_PARTS, PHASES
from hpcddp.run_dir import RunDir, read_json_lines
from hpcddp.train.buckets import BucketMarks
from hpcddp.train.clock import clock_of
from hpcddp.train.step_timer import NoTimer, StepTimer


class HandClock:
    """Stands still until the test moves it."""

    lanes = 1

    def __init__(self):
        self.at = 0.0
        self.waited_for = []

    def now(self):
        return self.at

    def wait_for(self, moment):
        self.waited_for.append(moment)

    def has_come(self, moment):
        return True

    def seconds(self, begin, end):
        return end - begin

    def forget(self, moments):
        pass


@pytest.fixture
def clock():
    return HandClock()


def spend(clock, context, seconds):
    with context:
        clock.at += seconds


def one_step(timer, clock, passes=1):
    with timer.step():
        for _ in range(passes):
            spend(clock, timer.data_wait(), 1)
            spend(clock, timer.host_to_device(), 2)
            spend(clock, timer.forward(), 4)
            clock.at += 0.5
            spend(clock, timer.backward(), 8)
        spend(clock, timer.optimizer(), 16)
        clock.at += 32


@pytest.mark.parametrize("passes", [1, 3])
def test_each_moment_of_a_step_belongs_to_one_phase(clock, passes):
    timer = StepTimer(clock)
    one_step(timer, clock, passes)
    [times] = timer.take()
    assert times.phases == {
        "data_wait_s": 1 * passes,
        "host_to_device_s": 2 * passes,
        "forward_s": 4 * passes,
        "backward_s": 8 * passes,
        "exposed_comm_s": 0,
        "optimizer_s": 16,
        "other_s": 32 + 0.5 * passes,
        "comm_s": 0,
    }
    assert times.step_s == sum(times.phases[name] for name in PHASES)
    assert (times.backward_s, times.buckets) == (None, [])


def test_parts_inside_forward_and_backward_are_taken_out_of_them(clock):
    timer = StepTimer(clock)
    with timer.step():
        with timer.forward():
            spend(clock, timer.part("broadcast_s"), 1)
            clock.at += 2
            spend(clock, timer.part("gather_s"), 4)
        with timer.backward():
            clock.at += 8
            spend(clock, timer.part("reduce_s"), 16)
            clock.at += 32
    [times] = timer.take()
    phases = times.phases
    assert (phases["forward_s"], phases["backward_s"]) == (2, 40)
    assert times.backward_s is None  # what follows the last part is not the whole pass
    assert phases["comm_s"] == phases["exposed_comm_s"] == 21
    assert [phases[f"{part}_s"] for part in ("broadcast", "gather", "reduce")] == [1, 4, 16]
    assert times.step_s == sum(phases[name] for name in PHASES)


def test_what_is_no_part_of_a_step_is_not_counted(clock):
    timer = StepTimer(clock)
    spend(clock, timer.forward(), 100)  # warm-up
    one_step(timer, clock)
    spend(clock, timer.forward(), 100)
    clock.at += 100  # evaluation
    one_step(timer, clock)
    with pytest.raises(ValueError, match="broken"), timer.step(), timer.forward():
        raise ValueError("broken")
    assert [times.step_s for times in timer.take()] == [63.5, 63.5]
    assert timer.take() == []


def test_the_device_is_waited_for_only_when_times_are_asked_for(clock):
    timer = StepTimer(clock)
    for _ in range(2):
        one_step(timer, clock)
    assert clock.waited_for == []
    timer.take()
    assert clock.waited_for == [2 * 63.5]


def test_a_record_has_the_means_which_still_add_up(clock):
    timer = StepTimer(clock)
    one_step(timer, clock, 1)
    one_step(timer, clock, 3)
    record = timer.report(planned_bytes=77)
    assert record["comm_bytes_per_step"] == 77
    assert record["phases"]["forward_s"] == 8
    assert sum(record["phases"][name] for name in PHASES) == (63.5 + 94.5) / 2
    assert timer.report(77)["phases"] == {}


def test_without_the_timer_a_record_has_the_planned_bytes_alone():
    timer = NoTimer()
    with timer.step(), timer.forward(), timer.part("reduce_s"):
        pass
    assert timer.report(77) == {"comm_bytes_per_step": 77}


def test_without_the_timer_ddp_is_left_as_it_is():
    """A hook is a pass over all gradients; `object()` would not take one."""
    NoTimer().note_buckets(object())


@pytest.mark.parametrize("mode", ["single", "dp", "ddp"])
def test_records_of_a_run_say_what_its_steps_consisted_of(mode, tmp_path):
    words = ("train.time_steps=true", "train.max_steps=8", "log.every_steps=2")
    words = (*words, f"train.replicas={mode}")
    assert set(train_on(1 + (mode == "ddp"), tmp_path, small_config(*words))) == {0}
    records = [one for one in read_json_lines(RunDir(tmp_path).metrics) if "loss" in one]
    # 352,042 parameters; two replicas of dp send them one way and their gradients the other.
    moved = {"single": 0, "ddp": 1_408_168, "dp": 2 * 1_408_168}
    assert {record["comm_bytes_per_step"] for record in records} == {moved[mode]}
    label = "DataParallel algorithm on CPU threads" if mode == "dp" else None
    [started] = [event for event in events_of(tmp_path) if event["event"] == "started"]
    assert started["replicas"] == (label or mode)
    # Two clocks are read one after the other, and between them other work may hold the process up.
    assert any(adds_up(record) for record in records), records
    for record in records:
        assert record.get("label") == label
        phases = record["phases"]
        assert (phases["comm_s"] > 0) == (mode != "single")
        parts = {"single": set(), "dp": set(COMM_PARTS), "ddp": {"broadcast_s"}}
        assert set(COMM_PARTS) & set(phases) == parts[mode]
        assert 0 <= phases["exposed_comm_s"] <= phases["comm_s"] + 2e-6
        assert min(phases["forward_s"], phases["backward_s"], phases["optimizer_s"]) > 0


def adds_up(record):
    """True where the phases last as long as the step, and the wait for data as long as the loader
    says.
    """
    phases = record["phases"]
    spent = sum(phases[name] for name in PHASES)
    near = pytest.approx(record["data_wait_s"], rel=0.5, abs=1e-3)
    return spent == pytest.approx(record["step_s"], rel=0.1) and phases["data_wait_s"] == near


class FakeEvent:
    """As torch.cuda.Event, on a device whose time the test sets."""

    device_ms = 0.0
    behind = 0.0  # the device's time, of the host's
    made = 0

    def __init__(self, enable_timing):
        assert enable_timing
        FakeEvent.made += 1
        self.log = []

    def record(self, stream):
        self.at_ms = FakeEvent.device_ms
        self.log.append(("record", stream))

    def synchronize(self):
        self.log.append("synchronize")
        FakeEvent.behind = 0.0

    def query(self):
        return self.at_ms <= FakeEvent.device_ms - FakeEvent.behind

    def elapsed_time(self, end):
        assert self.query()
        assert end.query()
        return end.at_ms - self.at_ms


def test_on_a_gpu_moments_are_events_in_the_current_stream(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    clock = clock_of(torch.device("cuda", 1))
    timer = StepTimer(clock)
    with timer.step():
        FakeEvent.device_ms += 500
        with timer.forward():
            FakeEvent.device_ms += 250
    marks = [moment for _, moment in timer._unread[0].phases]
    assert all(moment.log == [("record", "stream of cuda:1")] for moment in marks)
    [times] = timer.take()
    assert (times.step_s, times.phases["forward_s"], times.phases["other_s"]) == (0.75, 0.25, 0.5)
    assert [moment.log[1:] for moment in marks] == [[]] * (len(marks) - 1) + [["synchronize"]]


@pytest.mark.parametrize("late_steps", [0, 70])
def test_events_are_used_anew_long_before_a_record_is_due(monkeypatch, late_steps):
    """As many as the steps that the device has not done, and some more; none for each step."""
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "stream")
    monkeypatch.setattr(FakeEvent, "made", 0)
    monkeypatch.setattr(FakeEvent, "behind", 10.0 * late_steps)
    timer = StepTimer(clock_of(torch.device("cuda", 0)))
    for number in range(1000):
        with timer.step(), timer.forward():
            FakeEvent.device_ms += 10 + number % 2
    per_step = 4  # begin and end of the step and of its forward
    assert FakeEvent.made <= per_step * (max(50, late_steps) + 2)
    times = timer.take()
    assert [one.step_s for one in times] == pytest.approx([0.010, 0.011] * 500)


def test_events_of_buckets_are_used_anew_too():
    clock, forgotten = HandClock(), []
    clock.forget = forgotten.extend
    timer = StepTimer(clock)
    with timer.step(), timer.backward():
        clock.at += 3
        timer._note_bucket(BucketMarks(0, 8, ready=2, end=3))
    [times] = timer.take()
    assert forgotten == [0, 0, 3, 3, 2, 3]
    assert [bucket.end_s for bucket in times.buckets] == [3]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_a_phase_lasts_as_long_as_its_kernels_and_not_as_its_calls():
    device = torch.device("cuda", 0)
    timer = StepTimer(clock_of(device))
    layer = nn.Linear(8192, 8192, device=device)
    batch = torch.randn(8192, 8192, device=device)
    for _ in range(3):
        with timer.step():
            with timer.forward():
                loss = layer(batch).sum()
            with timer.backward():
                loss.backward()
            with timer.optimizer():
                layer.zero_grad()
    times = timer.take()[-1]
    assert times.step_s == pytest.approx(sum(times.phases[name] for name in PHASES))
    assert times.phases["forward_s"] + times.phases["backward_s"] > 0.9 * times.step_s
    assert times.phases["backward_s"] > times.phases["forward_s"]
