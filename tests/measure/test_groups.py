"""Groups of real processes: they take steps when told, wait otherwise, and end together."""

import os
import signal
import time

import psutil
import pytest
import torch

from hpcddp.cluster.layout import layout_from_environ
from hpcddp.config.load import Layer, command_line_layer, resolve
from hpcddp.measure import groups
from hpcddp.measure.cells import MODES, Cell, Wanted, config_of
from hpcddp.measure.groups import Group, GroupFailed, member_environment
from hpcddp.phases import PHASES

BASE = {
    "train": {"model": "shufflenet_v2_x0_5", "global_batch": 4, "max_steps": 1, "device": "cpu"},
    "data": {"name": "synthetic", "synthetic_samples": 16, "image_size": 32},
}
WANTED = Wanted(MODES, (1, 2))


def config(cell, *overrides):
    run = resolve([Layer("test", BASE), command_line_layer(overrides)]).config
    return config_of(cell, WANTED, run)


def start(cell, folder, *overrides, **environ):
    cpu = min(os.sched_getaffinity(0))
    own = [[cpu]] * cell.processes
    return Group(cell, config(cell, *overrides), own, folder, os.environ | environ)


TORCHRUN = {
    **dict.fromkeys(["WORLD_SIZE", "LOCAL_WORLD_SIZE"], "1"),
    **dict.fromkeys(["RANK", "LOCAL_RANK", "GROUP_RANK", "TORCHELASTIC_RESTART_COUNT"], "0"),
    "TORCHELASTIC_RUN_ID": "x",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def test_below_torchrun_a_group_is_as_large_as_its_cell(tmp_path):
    with start(Cell("ddp", 2), tmp_path / "group", **TORCHRUN) as group:
        group.wait_until_ready()
        assert all(
            block.buckets for block in group.take(1, discard=1)
        )  # one by itself reduces nothing


def test_a_member_has_its_own_place_and_port_and_its_parents_devices():
    parent = TORCHRUN | {"HPCDDP_MASTER_PORT": "4444", "SLURM_PROCID": "3", "HPCDDP_ATTEMPT": "1"}
    devices = {"CUDA_VISIBLE_DEVICES": "5,6", "HPCDDP_DEVICE": "cuda", "GPU_DEVICE_ORDINAL": "1"}
    of = [member_environment(parent | devices, name, 2, 1) for name in ("a", "b")]
    layouts = [layout_from_environ(environ) for environ in of]
    assert {(one.world_size, one.global_rank) for one in layouts} == {(2, 1)}
    assert layouts[0].master_port != layouts[1].master_port
    assert devices.items() <= of[0].items()
    assert not {"SLURM_PROCID", "MASTER_PORT"} & set(of[0])


def test_a_process_that_takes_its_group_for_smaller_does_not_measure(tmp_path, monkeypatch):
    alone = member_environment({}, "group", 1, 0)
    monkeypatch.setattr(groups, "member_environment", lambda *place: alone)
    said = "is one of 2 and was taken for one of 1"
    with start(Cell("ddp", 2), tmp_path / "group") as group, pytest.raises(GroupFailed, match=said):
        group.wait_until_ready()


def test_processes_take_the_steps_they_are_told_and_rest_in_between(tmp_path):
    with start(Cell("ddp", 2), tmp_path / "group") as group:
        group.wait_until_ready()
        first = group.take(2, discard=1)
        assert [(len(block.step_s), block.discarded) for block in first] == [(2, 1)] * 2
        processes = [psutil.Process(process.pid) for process in group._processes]
        assert [process.cpu_affinity() for process in processes] == [
            [min(os.sched_getaffinity(0))]
        ] * 2
        spent = [cpu_of_rest(processes) for _ in range(5)]  # what ends a step may last
        assert min(spent) < 0.05
        # the gradients of the model, once per step; nothing without exchange
        parameters = 1_366_792 - 1000 * 1025 + 10 * 1025  # 10 classes in the place of 1000
        alone = group.take(1, discard=2, sync=False)
        again = group.take(1, discard=1)
        assert {block.comm_bytes for block in (*first, *again)} == {4 * parameters}
        assert {block.comm_bytes for block in alone} == {0}
        assert all(block.buckets for block in (*first, *again))
        assert not any(block.buckets for block in alone)
        for block in first:
            for step_s, phases in zip(block.step_s, block.phases, strict=True):
                assert sum(phases[name] for name in PHASES) == pytest.approx(step_s, rel=1e-6)
    assert not any(process.is_running() for process in processes)


def cpu_of_rest(processes):
    """The processor time that the busiest of them takes in a while, in seconds."""
    before = [sum(process.cpu_times()[:2]) for process in processes]
    time.sleep(0.5)
    after = [sum(process.cpu_times()[:2]) for process in processes]
    return max(end - begin for begin, end in zip(before, after, strict=True))


def test_one_process_drives_all_devices_of_dp(tmp_path):
    with start(Cell("dp", 2), tmp_path / "group") as group:
        group.wait_until_ready()
        [block] = group.take(1, discard=1)
    assert len(block.step_s) == 1
    assert block.cpu_s > 0


def test_a_process_that_fails_says_why(tmp_path):
    group = start(Cell("single", 1), tmp_path / "group", "data.name=cifar10")
    with group, pytest.raises(GroupFailed, match=r"^single x 1: .*data\.root") as caught:
        group.wait_until_ready()
    assert (caught.value.code, "\n" in caught.value.message) == ("missing_data", False)  # no trace


def test_a_process_that_is_killed_ends_the_wait_for_all(tmp_path):
    with start(Cell("ddp", 2), tmp_path / "group") as group:
        group.wait_until_ready()
        os.kill(group._processes[1].pid, signal.SIGKILL)
        said = r"ddp x 2: process [01] of 2 (was killed|failed)"  # sooner than it is given up
        with pytest.raises(GroupFailed, match=said) as caught:
            group.take(1, discard=1)
        assert caught.value.code == "group_failed"


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGKILL, "takes more memory"),
        (signal.SIGTERM, "by SIGTERM"),
        (signal.SIGRTMIN + 1, f"by signal {signal.SIGRTMIN + 1}"),
    ],
)
def test_the_signal_that_ended_a_process_is_named(tmp_path, number, said):
    with start(Cell("single", 1), tmp_path / "group") as group:
        group.wait_until_ready()
        os.kill(group._processes[0].pid, number)
        with pytest.raises(GroupFailed, match=said):
            group.take(1, discard=0)


def test_a_process_that_does_not_answer_is_given_up(tmp_path):
    with start(Cell("ddp", 2), tmp_path / "group", "train.hang_timeout_s=1") as group:
        group.wait_until_ready()
        os.kill(group._processes[0].pid, signal.SIGSTOP)
        with pytest.raises(GroupFailed, match="has not answered for 3 s"):
            group.take(2, discard=1)  # the time-out is that of a step


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs a GPU")
def test_on_a_gpu_memory_and_time_are_those_of_the_device(tmp_path):
    with start(Cell("single", 1), tmp_path / "group", "train.device=cuda") as group:
        group.wait_until_ready()
        [block] = group.take(3, discard=1)
    assert len(block.memory_bytes) == 1
    assert block.memory_bytes[0] > 4 * 352_042  # the parameters, and more
    assert min(block.step_s) > 0
    assert sum(phase["forward_s"] for phase in block.phases) > 0
