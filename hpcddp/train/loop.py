"""The training loop: train() -> train_step() -> replicas. Knows torch; knows no scheduler.

Shapes: n images of one micro-batch, c = 3 channels, h = w = image_size.
"""

import logging
import math
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch.nn.utils import clip_grad_norm_

from hpcddp.checkpoint_dir import NOT_WRITTEN, CheckpointError
from hpcddp.checkpoint_kept import Best
from hpcddp.config.layout import EXIT_AGAIN, EXIT_DONE, ProcessLayout
from hpcddp.config.schema import RunConfig
from hpcddp.run_dir import RunDir
from hpcddp.stop_flag import StopFlag
from hpcddp.train.device import open_device
from hpcddp.train.evaluate import Evaluation, evaluate
from hpcddp.train.journal import Journal
from hpcddp.train.metrics import StepClock
from hpcddp.train.optim import set_lr
from hpcddp.train.ownership import Ownership
from hpcddp.train.process_group import mean_across_ranks, open_ranks
from hpcddp.train.randomness import seed_step
from hpcddp.train.replicas import label_of
from hpcddp.train.schedule import lr_at
from hpcddp.train.setup import Process, Session, check_early
from hpcddp.train.start import ToldToStop, leave_if_told, open_session
from hpcddp.train.stop import StopVote
from hpcddp.train.watchdog import COLLECTIVE_TIMEOUT_S, Watchdog, record_collectives

_log = logging.getLogger(__name__)


def train(
    config: RunConfig,
    layout: ProcessLayout,
    run_dir: RunDir,
    stop_flag: StopFlag,
    owner: Ownership | None = None,
    once_met: Callable[[], None] = lambda: None,
) -> int:
    """Do this process's part of the run; 0 when it is finished, 75 when it stopped early.

    Goes on from the newest checkpoint in the run directory. `owner` is what the main process may
    have claimed the run with already; `once_met` is called when all processes are there. Raises
    HpcddpError for what the user can put right. After any exception leave the process without
    cleaning up: that could wait for another one that is gone. Collective.
    """
    logging.getLogger(__package__).setLevel(logging.INFO if layout.is_main else logging.WARNING)
    check_early(config, layout)
    device = open_device(config.train, layout)
    record_collectives(config.train.hang_timeout_s)
    with leave_if_told(stop_flag, run_dir, layout):
        timeout_s = config.train.rendezvous_timeout_s
        ranks = open_ranks(layout, device, timeout_s, once_met, stop_flag, COLLECTIVE_TIMEOUT_S)
    stop_flag.rearm()  # NCCL, for one, has been seen to replace handlers
    vote, owner = StopVote(ranks, stop_flag), owner or Ownership(run_dir, layout)
    watchdog = Watchdog(layout, run_dir, config.train.hang_timeout_s)
    watchdog.start()
    process = Process(device, ranks, vote, watchdog, run_dir, owner)
    code = _train_with(process, config, layout, stop_flag)
    watchdog.beat()
    if layout.is_main:
        owner.release()
    ranks.close()
    watchdog.stop()
    return code


def _train_with(
    process: Process, config: RunConfig, layout: ProcessLayout, stop_flag: StopFlag
) -> int:
    """Open the session and run its steps; the exit code. Collective."""
    try:
        with leave_if_told(stop_flag, process.run_dir, layout):
            session = open_session(config, layout, process)
        stop_flag.rearm()  # the first collectives, of the warm-up, are over
        return EXIT_DONE if session is None else run_steps(session)
    except ToldToStop:
        Journal(process.run_dir, layout).stopped_unstarted(process.vote.signum)
        return EXIT_AGAIN


def run_steps(session: Session) -> int:
    """Step, evaluate and save until the end of training or until a signal. Collective."""
    task, state, clock = session.task, session.state, StepClock()
    evaluation: Evaluation | None = None
    stopped = session.vote.ask()  # a signal may have come before the first step
    start_step = state.step
    session.watchdog.beat()
    session.watchdog.is_stepping = True
    while not stopped:
        if task.evaluates_at(state.step):
            evaluation = _evaluate(session)
            stopped = evaluation is None
        if stopped or state.step >= task.total_steps:
            break
        stopped = step_and_report(session, clock)
        if state.step == start_step + 1:
            session.journal.stepped_first(state.step)
        session.saver.check_owner()
        if not stopped:  # the last step's is written while the model is evaluated
            saver = session.saver
            (saver.save if state.step == task.total_steps else saver.save_if_due)(state)
    session.watchdog.beat()
    session.watchdog.is_stepping = False
    return _leave(session, evaluation)


def step_and_report(session: Session, clock: StepClock) -> bool:
    """One step; True if all ranks are to stop after it. Collective."""
    begin = time.perf_counter()
    with session.timer.step():
        loss = train_step(session)
        is_logged = session.task.logs_at(session.state.step)
        if is_logged:  # the only time the host waits for the device
            mean_loss = mean_across_ranks(session.ranks, loss, session.task.plan.world_size)
        stopped = session.vote.close()
    if session.vote.saw_nonfinite or (is_logged and _is_fatal(session, mean_loss)):
        layout = session.task.layout
        error = session.watch.error(session.ranks, layout.global_rank, layout.world_size)
        session.saver.drain()  # an earlier state may still be on its way to the disk
        raise error
    clock.add(time.perf_counter() - begin, session.feed.take_waited_s())
    if is_logged:
        _report_step(session, mean_loss, clock)
    return stopped


def _is_fatal(session: Session, mean_loss: float) -> bool:
    return session.skipper is None and not math.isfinite(mean_loss)


def train_step(session: Session) -> torch.Tensor:
    """One optimizer update; the mean loss over this process's images, on the device. Collective.

    Leaves the vote about stopping open.
    """
    task, state, timer = session.task, session.state, session.timer
    passes = task.plan.accumulation_steps
    loss_sum = torch.zeros((), device=session.device)
    seed_step(task.config.train.seed, state.step, task.layout.global_rank)
    if session.skipper is not None:
        session.skipper.begin()
    for micro_step in range(passes):
        images_nchw, labels_n = session.feed.next()
        session.watchdog.beat()
        is_last = micro_step == passes - 1
        # DDP decides in forward whether backward will reduce, so forward sits inside too.
        with nullcontext() if is_last else session.forward.replicas.skip_sync():
            with timer.forward():
                loss = session.forward.loss(images_nchw, labels_n) / passes
            session.watchdog.beat()  # a process that waits for another's gradients is past this
            with timer.backward():
                state.scaler.scale(loss).backward()
        loss_sum += loss.detach()
    session.watch.note(loss_sum, state.step + 1)
    saw_nonfinite = session.skipper is None and session.watch.has_heard
    # So late that it counts this step's signals; the update hides its time.
    session.vote.open(saw_nonfinite)
    if session.skipper is not None:
        session.skipper.judge(loss_sum)
    set_lr(state.optimizer, lr_at(state.step, task.schedule))
    with timer.optimizer():
        _update_weights(session)
    state.step += 1
    state.samples_seen += task.plan.global_batch
    if state.ema is not None:
        state.ema.update(state.step)
    return loss_sum


def _update_weights(session: Session) -> None:
    state, max_norm = session.state, session.task.config.train.max_grad_norm
    if max_norm is not None:
        state.scaler.unscale_(state.optimizer)
        clip_grad_norm_(state.model.parameters(), max_norm)
    state.scaler.step(state.optimizer)
    state.scaler.update()
    state.optimizer.zero_grad(set_to_none=True)


def _report_step(session: Session, loss: float, clock: StepClock) -> None:
    task, step = session.task, session.state.step
    session.journal.stepped(
        step,
        task.total_steps,
        epoch=round(task.epoch_at(step), 6),
        loss=loss,
        lr=lr_at(step - 1, task.schedule),
        **clock.take_rates(task.plan, session.forward.replicas.num_devices),
        **session.timer.report(session.traffic.comm_bytes),
        buffer_bytes_per_step=session.traffic.buffer_bytes,
        label=label_of(task.config, session.device),
        **({} if session.skipper is None else {"skipped_steps": session.skipper.count}),
    )


def _evaluate(session: Session) -> Evaluation | None:
    """Evaluate and report; None if a signal came meanwhile. Collective."""
    begin, step = time.perf_counter(), session.state.step

    def asked_to_stop() -> bool:
        session.watchdog.beat()
        return session.vote.ask()

    model, weights = session.state.evaluated
    evaluation = evaluate(model, session.eval_task, session.ranks, asked_to_stop)
    if evaluation is not None:
        session.journal.evaluated(
            step,
            weights,
            epoch=round(session.task.epoch_at(step), 6),
            accuracy=evaluation.accuracy,
            eval_loss=evaluation.loss,
            samples=evaluation.samples,
            seconds=round(time.perf_counter() - begin, 3),
        )
        best = Best(step, evaluation.accuracy, evaluation.loss, weights)
        session.saver.save_if_best(session.state, best)
    return evaluation


def _leave(session: Session, final: Evaluation | None) -> int:
    """Save, say how it ended, and return the exit code. Collective."""
    state, journal, vote = session.state, session.journal, session.vote
    if vote.signum:
        journal.signalled(vote.signum, state.step)
    if vote.signum or final is None:
        journal.stopped(state.step, is_saved=_save_or_say(session))
        return EXIT_AGAIN
    session.saver.save_last(state)
    journal.finished(state.step, final.accuracy, final.loss)
    return EXIT_DONE


def _save_or_say(session: Session) -> bool:
    """Save; or say that it could not be done, and let the next start go on from an older state.

    Who has to leave anyway loses less so than as a failure. Collective.
    """
    try:
        session.saver.save_last(session.state)
    except CheckpointError as error:
        if error.code != NOT_WRITTEN:
            raise
        session.journal.not_saved(session.state.step, error.message)
        return False
    return True
