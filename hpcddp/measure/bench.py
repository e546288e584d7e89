"""A training session that takes steps when it is told to, and times them. Knows no other session.

The session is the one that `hpcddp run` trains with; only saving, evaluating and reporting are
left out.
"""

import contextlib
import dataclasses
import math
import time
from dataclasses import dataclass, field

import psutil
import torch

from hpcddp.config.batch import plan_batches
from hpcddp.config.layout import ProcessLayout
from hpcddp.config.schema import RunConfig
from hpcddp.data.workers import PREFETCHED_PER_WORKER
from hpcddp.measure.blocks import Block
from hpcddp.run_dir import RunDir
from hpcddp.train.loop import step_and_report
from hpcddp.train.metrics import StepClock
from hpcddp.train.process_group import Ranks
from hpcddp.train.replicas import devices_per_process
from hpcddp.train.resume import Found
from hpcddp.train.setup import Session, build_session, build_undisturbed
from hpcddp.train.step_timer import StepTimer
from hpcddp.train.task import build_task


@dataclass(slots=True)
class Bench:
    """Takes steps of `session`; of a group of processes all must be told the same."""

    session: Session
    timer: StepTimer
    devices: tuple[torch.device, ...]
    _clock: StepClock = field(default_factory=StepClock)
    _process: psutil.Process = field(default_factory=psutil.Process)

    def take(self, steps: int, *, discard: int, sync: bool = True) -> Block:
        """Take `discard` steps that do not count, then `steps` that do. Collective.

        Without `sync` no gradients are exchanged and the processes drift apart, which no
        measurement minds.
        """
        replicas = self.session.forward.replicas
        with contextlib.nullcontext() if sync else replicas.skip_sync():
            for _ in range(discard):
                self._step()
            self.timer.take()
            self.timer.take_replica_cpu()
            self._reset_peaks()
            cpu, threads = time.process_time(), self._threads()
            for _ in range(steps):
                self._step()
            times = self.timer.take()  # waits for the device
            cpu_s, now = time.process_time() - cpu, self._threads()
        typical = sorted(times, key=lambda step: step.step_s)[steps // 2]
        lasting = [now[thread] - begin for thread, begin in threads.items() if thread in now]
        return Block(
            step_s=[step.step_s for step in times],
            discarded=discard,
            cpu_s=cpu_s,
            thread_cpu_s=sorted([*lasting, *self.timer.take_replica_cpu()], reverse=True),
            resident_bytes=self._process.memory_info().rss,
            memory_bytes=self._take_peaks(),
            phases=[step.phases for step in times],
            comm_bytes=typical.comm_bytes or self.session.traffic.comm_bytes if sync else 0,
            buckets=[dataclasses.asdict(bucket) for bucket in typical.buckets],
            backward_s=typical.backward_s,
        )

    def _step(self) -> None:
        step_and_report(self.session, self._clock)

    def _threads(self) -> dict[int, float]:
        return {each.id: each.user_time + each.system_time for each in self._process.threads()}

    def _reset_peaks(self) -> None:
        for device in self._gpus:
            torch.cuda.reset_peak_memory_stats(device)

    def _take_peaks(self) -> tuple[int, ...] | None:
        """The peaks, and all that no tensor uses back: other groups share the devices."""
        peaks = tuple(torch.cuda.max_memory_allocated(device) for device in self._gpus)
        if self._gpus:
            torch.cuda.empty_cache()
        return peaks or None

    @property
    def _gpus(self) -> list[torch.device]:
        return [device for device in self.devices if device.type == "cuda"]


def build_bench(
    config: RunConfig, layout: ProcessLayout, run_dir: RunDir, device: torch.device, ranks: Ranks
) -> Bench:
    """A session at step 0, with DDP's buckets in their final order. Collective.

    `run_dir` takes what a session writes at its start: give it one that nobody looks at.
    """
    task = build_task(config, layout)
    process = build_undisturbed(layout, device, ranks, run_dir)
    session = build_session(task, process, Found(None))
    assert isinstance(session.timer, StepTimer), "cells.measured() sets train.time_steps"
    return Bench(session, session.timer, _devices(config, device))


def unsettled_steps(config: RunConfig, world_size: int) -> int:
    """How many steps after a pause say little of a longer run, and are to be discarded.

    The loader went on in the pause: what it has put by hides for a while how long it takes.
    """
    train = config.train
    plan = plan_batches(
        global_batch=train.global_batch, micro_batch=train.micro_batch, world_size=world_size
    )
    return 1 + math.ceil(PREFETCHED_PER_WORKER * config.data.workers / plan.accumulation_steps)


def _devices(config: RunConfig, device: torch.device) -> tuple[torch.device, ...]:
    """What this process drives: its device, and with DataParallel those after it."""
    if device.type != "cuda":
        return (device,)
    count, first = devices_per_process(config, device), device.index
    return tuple(torch.device("cuda", first + n) for n in range(count))
