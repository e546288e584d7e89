"""All ranks stop after the same step, whoever was signalled and whenever."""

import importlib
import os
import random
import signal
import threading
import time
from functools import partial

import pytest
from train_ranks import (
    DEADLINE_S,
    before_call,
    events_of,
    free_ports,
    kinds_of,
    layouts,
    small_config,
    start,
    train_here,
    train_on,
    train_signalled,
    train_until,
)
from waiting import wait_until

from hpcddp.checkpoint_dir import NOT_WRITTEN, CheckpointError
from hpcddp.errors import HpcddpError
from hpcddp.stop_flag import StopFlag
from hpcddp.train import start as stages
from hpcddp.train.start import leave_if_told

ENDLESS = ("train.max_steps=100000", "train.micro_batch=2")


def signal_rank(rank, where, config, layout, run_dir, signum=signal.SIGTERM, module="loop"):
    """In a child: train, and signal one rank when it is about to call `where` of the module."""
    is_it = layout.global_rank == rank
    options = {"is_due": lambda *_: is_it, "signum": signum, "where": where, "module": module}
    return train_signalled(config, layout, run_dir, **options)


in_first_step = partial(signal_rank, 1, "train_step", signum=signal.SIGUSR2)
before_meeting = partial(signal_rank, 0, "open_ranks")
before_data = partial(signal_rank, 1, "build_task", module="start")
before_claiming = partial(signal_rank, 0, "take_over", module="start")
before_building = partial(signal_rank, 1, "build_session", module="start")
in_evaluation = partial(signal_rank, 1, "evaluate")


def test_one_signalled_rank_stops_all_after_that_very_step(tmp_path):
    assert train_on(3, tmp_path, small_config(*ENDLESS), in_first_step) == [75, 75, 75]
    assert kinds_of(tmp_path) == ["started", "signal", "checkpoint", "stopped"]
    signalled, saved, stopped = events_of(tmp_path)[-3:]
    assert signalled["signal"] == "SIGUSR2"
    assert signalled["step"] == saved["step"] == stopped["step"] == 1


@pytest.mark.parametrize("moment", [before_meeting, before_data, before_claiming])
def test_a_signal_in_a_stage_of_the_start_ends_it_after_that_stage(moment, tmp_path):
    assert train_on(2, tmp_path, small_config(*ENDLESS), moment) == [75, 75]
    assert kinds_of(tmp_path) == ["stopped"]
    assert events_of(tmp_path)[-1].get("step") is None


def test_a_signal_while_the_model_is_built_ends_with_75_and_no_step(tmp_path):
    assert train_on(2, tmp_path, small_config(*ENDLESS), before_building) == [75, 75]
    assert kinds_of(tmp_path) == ["started", "signal", "stopped"]
    assert events_of(tmp_path)[-1]["step"] == 0


def part(owner, name, delay_s, config, layout, run_dir):
    """In a child: rank 1 leaves where it comes to `name`, and rank 0, which has come there too, is
    told to stop that much later: by who is told itself, or by a launcher that ends the others.
    """
    stages._ENDED_WITHIN_S = DEADLINE_S

    def leave_or_be_told(*_):
        if not layout.is_main:
            os._exit(75)
        threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGTERM)).start()
        time.sleep(0.2)  # until rank 1 has left

    before_call(importlib.import_module(owner), name, leave_or_be_told)
    return train_here(config, layout, run_dir)


@pytest.mark.parametrize("delay_s", [0, 2])
@pytest.mark.parametrize(
    "place",
    [
        ("torch.distributed", "init_process_group"),
        ("torch.distributed", "new_group"),
        ("hpcddp.train.start", "build_task"),
        ("hpcddp.train.start", "build_session"),
    ],
)
def test_who_is_told_when_another_has_left_in_the_start_stops_too(place, delay_s, tmp_path):
    """Slurm gives 30 s (KillWait), whatever the deadline for the meeting is."""
    config = small_config(f"train.rendezvous_timeout_s={10 * DEADLINE_S}")
    calls = [(config, layout, tmp_path) for layout in layouts(2)]
    started = start(partial(part, *place, delay_s), calls)
    for process in started.processes:
        process.join(DEADLINE_S)
    assert [process.exitcode for process in started.processes] == [75, 75]


@pytest.mark.parametrize(
    "error", [RuntimeError("expected scalar type"), MemoryError(), HpcddpError("no such file")]
)
def test_what_goes_wrong_in_the_start_itself_is_an_error_even_for_who_is_told(error, monkeypatch):
    monkeypatch.setattr("hpcddp.train.start.leave", lambda code: pytest.fail(f"left with {code}"))
    stop_flag = StopFlag()
    stop_flag.hear(signal.SIGTERM)
    with pytest.raises(type(error)), leave_if_told(stop_flag, None, None):
        raise error


def train_beside_a_library_that_takes_signals(config, layout, run_dir):
    """In a child: stop by a signal in step 2, after the handlers were replaced at the meeting."""
    from hpcddp.train import loop

    original = loop.open_ranks

    def meet_and_take(*arguments):
        ranks = original(*arguments)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return ranks

    loop.open_ranks = meet_and_take
    return train_until(2, config, layout, run_dir)


def test_handlers_that_a_library_replaced_at_the_meeting_are_taken_back(tmp_path):
    config = small_config("train.max_steps=3")
    assert train_on(1, tmp_path, config, train_beside_a_library_that_takes_signals) == [75]


def train_on_a_full_disk(config, layout, run_dir):
    """In a child: stop by a signal in step 2, when nothing can be written."""
    from hpcddp.train import saving

    def full(*_, **__):
        raise CheckpointError("No space left on device", NOT_WRITTEN)

    saving._RETRY_AFTER_S, saving.save_snapshot = 0.0, full
    return train_until(2, config, layout, run_dir)


def test_a_stop_whose_state_cannot_be_saved_is_no_failure_and_says_so(tmp_path):
    assert train_on(2, tmp_path, small_config(*ENDLESS), train_on_a_full_disk) == [75, 75]
    assert kinds_of(tmp_path) == ["started", "signal", "checkpoint_failed", "stopped"]
    failed, stopped = events_of(tmp_path)[-2:]
    assert "No space left" in failed["error"]
    assert (stopped["step"], stopped["saved"]) == (2, False)


def test_an_evaluation_is_cut_short_and_made_up_for(tmp_path):
    config = small_config("train.max_steps=1", "data.synthetic_samples=600")
    assert train_on(2, tmp_path, config, in_evaluation) == [75, 75]
    # The last step's checkpoint is written beside the evaluation.
    assert sorted(kinds_of(tmp_path)) == ["checkpoint", "signal", "started", "stopped"]
    assert train_on(2, tmp_path, config) == [0, 0]
    assert kinds_of(tmp_path)[4:] == ["started", "resumed", "finished"]


def train_slowly(config, layout, run_dir):
    """In a child: train with steps that last longer on one rank, and say when they began."""
    from hpcddp.train import loop

    def say_and_wait(session):
        (run_dir / f"step-{session.state.step}").touch()
        time.sleep(0.2 * layout.global_rank)

    before_call(loop, "train_step", say_and_wait)
    return train_here(config, layout, run_dir)


@pytest.mark.parametrize("victims", [(0,), (1,), (0, 1, 0, 1)])
def test_signals_from_outside_stop_everybody_once(victims, tmp_path):
    calls = [(small_config(*ENDLESS), layout, tmp_path) for layout in layouts(2)]
    started = start(train_slowly, calls)
    wait_until((tmp_path / "step-3").exists, DEADLINE_S)
    for victim in victims:  # a second signal changes nothing
        os.kill(started.processes[victim].pid, signal.SIGTERM)
    assert started.results() == [75, 75]
    assert kinds_of(tmp_path).count("checkpoint") == 1


def plan_of(this_round, world_size):
    """Which rank is signalled in which step of a round, and whether before it votes; for all."""
    chance = random.Random(this_round)
    return chance.randrange(world_size), chance.randint(1, 2), chance.random() < 0.5


def vote_many_times(layout, rounds):
    """In a child: steps as the loop makes them until the ranks stop; after how many, per round."""
    import torch

    from hpcddp.stop_flag import StopFlag, StopNotice
    from hpcddp.train.process_group import open_ranks
    from hpcddp.train.stop import StopVote

    ranks = open_ranks(layout, torch.device("cpu"), 60)
    chance, stops = random.Random(-layout.global_rank), []

    def dawdle():
        time.sleep(chance.choice([0.0, 0.0, 0.0, 0.002]) * chance.random())

    for this_round in range(rounds):
        flag, step, stopped = StopFlag(), 0, False
        vote = StopVote(ranks, flag)
        victim, signalled, is_before = plan_of(this_round, layout.world_size)
        notice = StopNotice(signal.SIGTERM, 0.0)
        while not stopped:
            step += 1
            is_hit = step == signalled and layout.global_rank == victim
            dawdle()
            ranks.sum_across(torch.zeros(8))  # what else is going on between the same processes
            flag.notice = notice if is_hit and is_before else flag.notice
            vote.open()
            flag.notice = notice if is_hit else flag.notice
            dawdle()
            stopped = vote.close()
        stops.append(step)
    ranks.close()
    return stops


def test_thousand_stops_with_random_delays_agree_and_never_lock_up():
    plans = [plan_of(this_round, 3) for this_round in range(1000)]
    # Who is signalled after it has voted stops everybody one step later.
    expected = [step if is_before else step + 1 for _, step, is_before in plans]
    calls = [(layout, 1000) for layout in layouts(3, ports=free_ports(1))]
    for stops in start(vote_many_times, calls).results():
        assert stops == expected
