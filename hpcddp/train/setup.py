"""Builds what the loop works with, in the order that exact resumption needs. Knows no step."""

import logging
from dataclasses import dataclass
from typing import Any

import torch

from hpcddp.config.batch import MicroBatch, busy_devices, check_processes
from hpcddp.config.identity import identity_of
from hpcddp.config.layout import ProcessLayout
from hpcddp.config.schema import RunConfig
from hpcddp.data.datasets import Batch
from hpcddp.data.stream import eval_batches, train_batches
from hpcddp.run_dir import RunDir
from hpcddp.stop_flag import StopFlag
from hpcddp.train.cadence import build_cadence
from hpcddp.train.checkpoint import Retention
from hpcddp.train.clock import clock_of
from hpcddp.train.ema import WeightAverage
from hpcddp.train.evaluate import EvalTask, most_batches
from hpcddp.train.feed import Feed, ToDevice, build_to_device
from hpcddp.train.fingerprint import fingerprint_of
from hpcddp.train.forward import Forward, build_scaler
from hpcddp.train.journal import Journal
from hpcddp.train.models import build_model, check_model, count_parameters, refused_images
from hpcddp.train.nonfinite import LossWatch, StepSkipper
from hpcddp.train.optim import build_optimizer
from hpcddp.train.ownership import Ownership
from hpcddp.train.process_group import Ranks
from hpcddp.train.replicas import build_replicas, devices_per_process, label_of
from hpcddp.train.resume import Found, ResumePoint, restore
from hpcddp.train.saving import Saver
from hpcddp.train.schedule import describe
from hpcddp.train.state import TrainState
from hpcddp.train.step_timer import NoTimer, StepTimer, Timer
from hpcddp.train.stop import StopVote
from hpcddp.train.task import Task, settings_of
from hpcddp.train.traffic import Traffic
from hpcddp.train.warm_up import warm_up
from hpcddp.train.watchdog import Watchdog

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Process:
    """What a process has once it has met the others."""

    device: torch.device
    ranks: Ranks
    vote: StopVote
    watchdog: Watchdog
    run_dir: RunDir
    owner: Ownership


@dataclass(frozen=True, slots=True)
class Session:
    """All a step needs. Only what `state` holds and the feed's position change while training."""

    task: Task
    device: torch.device
    ranks: Ranks
    forward: Forward
    state: TrainState
    feed: Feed
    eval_task: EvalTask
    vote: StopVote
    watchdog: Watchdog
    journal: Journal
    saver: Saver
    watch: LossWatch
    skipper: StepSkipper | None  # only for train.on_nonfinite=skip
    timer: Timer
    traffic: Traffic


def check_early(config: RunConfig, layout: ProcessLayout) -> None:
    """Raise ConfigError for what can be found wrong without other processes and without data."""
    check_model(config.train.model)
    check_processes(config.train.replicas, layout.world_size)


def build_undisturbed(
    layout: ProcessLayout, device: torch.device, ranks: Ranks, run_dir: RunDir
) -> Process:
    """A process that no signal stops and nobody watches, in a folder that it has not claimed."""
    vote, watchdog = StopVote(ranks, StopFlag()), Watchdog(layout, run_dir, 0)
    return Process(device, ranks, vote, watchdog, run_dir, Ownership(run_dir, layout))


def build_session(task: Task, process: Process, found: Found) -> Session:
    """Model, optimizer and data, at the step where `found` left off. Collective."""
    train, device, ranks = task.config.train, process.device, process.ranks
    state = build_state(task, device)
    journal = Journal(process.run_dir, task.layout)
    journal.started(**_facts(task, device, state))
    _log.info("%s", describe(task.schedule, task.config.optim, task.plan.global_batch))
    timer = StepTimer(clock_of(device)) if train.time_steps else NoTimer()
    replicas = build_replicas(state.model, task.config, task.layout, timer)
    forward = Forward(replicas, device, train.precision, train.label_smoothing)
    to_device = build_to_device(
        task.train_set, device, is_channels_last(train.channels_last, device)
    )
    _warn_of_idle_devices(task, replicas.num_devices)
    _warm_up(task, forward, to_device)
    process.watchdog.beat()
    restore(found, state, ranks)
    skips = train.on_nonfinite == "skip"
    if found.point is not None:
        journal.resumed(found.point)
    return Session(
        task=task,
        device=device,
        ranks=ranks,
        forward=forward,
        state=state,
        feed=_build_feed(task, to_device, state.step, timer),
        eval_task=_build_eval_task(task, to_device, forward),
        vote=process.vote,
        watchdog=process.watchdog,
        journal=journal,
        saver=_build_saver(task, process, journal, state.step, found.point),
        watch=LossWatch(device),
        skipper=StepSkipper(state.model, state.optimizer, ranks) if skips else None,
        timer=timer,
        traffic=replicas.traffic(task.plan),
    )


def build_state(task: Task, device: torch.device) -> TrainState:
    """Model, optimizer and average as the seed alone makes them, on the device."""
    train = task.config.train
    model = build_model(train.model, task.train_set.num_classes, train.model_options, train.seed)
    channels_last = is_channels_last(train.channels_last, device)
    memory_format = torch.channels_last if channels_last else torch.preserve_format
    model.to(device, memory_format=memory_format)
    optimizer = build_optimizer(model, task.config.optim)
    ema = WeightAverage(model, train.ema_decay) if train.ema_decay else None
    return TrainState(model, optimizer, build_scaler(train.precision, device), ema=ema)


def _warn_of_idle_devices(task: Task, num_devices: int) -> None:
    images = task.plan.micro_batch
    idle = num_devices - busy_devices(images, num_devices)
    if idle:
        _log.warning(
            "%d of %d devices get no images: DataParallel cuts %d of them into equal chunks",
            *(idle, num_devices, images),
        )


def is_channels_last(wish: bool | None, device: torch.device) -> bool:
    """By default where it is the fast layout: cuDNN's tensor cores want it, CPUs differ."""
    return device.type == "cuda" if wish is None else wish


def _warm_up(task: Task, forward: Forward, to_device: ToDevice) -> None:
    """Every later micro-batch has the same shape, so what does not fit shows here.

    Raises ConfigError. Collective.
    """
    try:
        warm_up(forward, *to_device(_made_up_batch(task)))
    except Exception as error:
        name, images = task.config.train.model, task.plan.micro_batch
        refused = refused_images(name, images, task.config.data.image_size, error)
        if refused is None:
            raise
        raise refused from error


def _made_up_batch(task: Task) -> Batch:
    """Noise in the shape of a micro-batch; nothing global is drawn from."""
    size, count = task.config.data.image_size, task.plan.micro_batch
    noise = torch.Generator().manual_seed(0)
    images_nchw = torch.randint(256, (count, 3, size, size), generator=noise, dtype=torch.uint8)
    return images_nchw, torch.arange(count) % task.train_set.num_classes


def _build_feed(task: Task, to_device: ToDevice, start_step: int, timer: Timer) -> Feed:
    batches = train_batches(
        task.train_set,
        task.plan,
        global_rank=task.layout.global_rank,
        seed=task.config.train.seed,
        start_step=start_step,
        augment=task.config.data.augment,
        workers=task.config.data.workers,
        pin_memory=to_device.device.type == "cuda",
    )
    return Feed(batches, to_device, timer)


def _build_eval_task(task: Task, to_device: ToDevice, forward: Forward) -> EvalTask:
    plan = task.plan
    batches = eval_batches(
        task.test_set,
        global_rank=task.layout.global_rank,
        world_size=plan.world_size,
        micro_batch=plan.micro_batch,
        workers=task.config.data.workers,
        pin_memory=to_device.device.type == "cuda",
    )
    batches_at_most = most_batches(len(task.test_set), plan.world_size, plan.micro_batch)
    return EvalTask(batches, batches_at_most, to_device, forward.logits)


def _build_saver(
    task: Task, process: Process, journal: Journal, start_step: int, point: ResumePoint | None
) -> Saver:
    kept, run_dir, device = task.config.checkpoint, process.run_dir, process.device
    devices = devices_per_process(task.config, device)
    first = (point.first if point else None) or MicroBatch(task.plan.micro_batch, devices)
    return Saver(
        folder=run_dir.checkpoints,
        extra={
            **identity_of(task.config, run_dir.name),
            "fingerprint": fingerprint_of(device, task.layout, process.ranks, devices),
            "settings": settings_of(task),
            "micro_batch": first.images,
            "micro_batch_devices": first.devices,
        },
        retention=Retention(kept.keep_last, kept.keep_every_steps),
        cadence=build_cadence(kept, start_step),
        ranks=process.ranks,
        journal=journal,
        is_main=task.layout.is_main,
        saved_step=start_step,
        owner=process.owner,
        keep_best=kept.keep_best,
        is_told=process.vote.is_told,
    )


def _facts(task: Task, device: torch.device, state: TrainState) -> dict[str, Any]:
    """What the start of the log and the `started` event say."""
    plan, train = task.plan, task.config.train
    return {
        "max_steps": task.total_steps,
        "model": train.model,
        "parameters": count_parameters(state.model),
        "device": device.type,
        "replicas": label_of(task.config, device) or train.replicas,
        "precision": train.precision,
        "train_images": len(task.train_set),
        "test_images": len(task.test_set),
        "global_batch": plan.global_batch,
        "micro_batch": plan.micro_batch,
        "accumulation_steps": plan.accumulation_steps,
        "peak_lr": task.schedule.peak,
        **({} if state.ema is None else {"ema_decay": state.ema.decay}),
    }
