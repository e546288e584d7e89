"""Processes of one job find each other, whatever else sits on their ports."""

import contextlib
import dataclasses
import os
import socket
import threading
import time

import pytest
import torch
from torch.distributed import HashStore, TCPStore
from train_ranks import before_call, free_ports, layouts, start

from hpcddp.errors import HpcddpError
from hpcddp.train import agent_store, rendezvous
from hpcddp.train.process_group import open_ranks


def meet_and_add(layout, timeout_s=120):
    """In a child: meet, add up the ranks, part."""
    ranks = open_ranks(layout, torch.device("cpu"), timeout_s)
    total = torch.tensor(float(layout.global_rank))
    ranks.sum_across(total)
    ranks.close()
    return float(total)


def meet_later(layout, delay_s):
    time.sleep(delay_s)
    return meet_and_add(layout)


def reason_not_to_meet(layout, timeout_s):
    try:
        meet_and_add(layout, timeout_s)
    except HpcddpError as error:
        return error.code, error.message
    return None


@contextlib.contextmanager
def stranger(kind, address="127.0.0.1"):
    """Somebody else's program on a port: mute, talkative, or one that hangs up."""
    listener = socket.create_server((address, 0))
    connections = []

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connections.append(connection)
                if kind == "talkative":
                    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n" + b"x" * 2000)
                if kind == "hangs up":
                    connection.close()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()
        for connection in connections:
            connection.close()


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_meet_and_add_up(world_size):
    totals = start(meet_and_add, [(layout,) for layout in layouts(world_size)]).results()
    assert totals == [sum(range(world_size))] * world_size


def has_ipv6():
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


@pytest.mark.skipif(not has_ipv6(), reason="this host has no address of IPv6")
def test_ranks_meet_at_an_address_of_ipv6():
    calls = [(layout,) for layout in layouts(2, master_addr="::1")]
    assert start(meet_and_add, calls).results() == [1.0, 1.0]


@pytest.mark.parametrize("kind", ["mute", "talkative", "hangs up"])
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_stranger_on_the_first_port_costs_a_moment_only(kind, address):
    with stranger(kind, address) as taken:
        ports = (taken, *free_ports(1))
        calls = [(layout,) for layout in layouts(2, ports=ports)]
        assert start(meet_and_add, calls).results() == [1.0, 1.0]


def test_two_jobs_with_the_same_ports_do_not_mix():
    ports = free_ports(3)
    calls = [
        (layout, delay_s)
        for key in ("7.0", "8.0")
        for layout, delay_s in zip(layouts(3, ports=ports, job_key=key), (0, 0.2, 0.4), strict=True)
    ]
    assert start(meet_later, calls).results() == [3.0] * 6


def test_a_process_of_an_earlier_start_is_not_let_in():
    ports = free_ports(1)
    now = [(layout, 2.0) for layout in layouts(2, ports=ports, restart_count=1)]
    before = [(layout, 2.0) for layout in layouts(2, ports=ports, restart_count=0)]
    (main_code, main_said), (old_code, old_said) = start(
        reason_not_to_meet, [now[0], before[1]]
    ).results()
    assert main_code == old_code == "rendezvous"
    assert "Ranks 1 of 2 did not come" in main_said
    assert "rank 0" in old_said


def test_the_main_process_may_be_late():
    calls = zip(layouts(3), (1.0, 0.0, 0.5), strict=True)
    assert start(meet_later, list(calls)).results() == [3.0] * 3


def test_who_waits_in_vain_says_where_and_why():
    with stranger("mute") as taken:
        port = free_ports(1)[0]
        [_, lonely] = layouts(2, ports=(taken, port))
        [(code, said)] = start(reason_not_to_meet, [(lonely, 3.0)]).results()
    assert code == "rendezvous"
    for part in ("Rank 1", "127.0.0.1", f"{taken} (no answer)", f"{port} (Connection refused)"):
        assert part in said
    assert "train.rendezvous_timeout_s" in said
    assert f"{socket.gethostname()} sends to 127.0.0.1 from 127.0.0.1 on lo" in said


def join_late(layout, function, timeout_s):
    """In a child: rank 1 comes, but not to `function` of torch; why rank 0 does not go on."""
    from hpcddp.train import process_group

    if not layout.is_main:
        before_call(process_group.dist, function, lambda *_: time.sleep(600))
    process_group.meet = lambda layout, _: rendezvous.meet(layout, 120)
    return reason_not_to_meet(layout, timeout_s)


@pytest.mark.parametrize("function", ["init_process_group", "new_group"])
def test_every_way_to_connect_ends_at_the_same_deadline(function):
    answers = start(join_late, [(layout, function, 3.0) for layout in layouts(2)]).results()
    (code, said), (other_code, _) = answers
    assert code == other_code == "rendezvous"
    assert "Rank 0 of 2 was not connected with all others within 3 s" in said
    assert "HPCDDP_INTERFACE" in said


def under_torchrun(layout, **fields):
    """The layout of a process that finds its store by its variables."""
    return dataclasses.replace(layout, launcher="torchrun", **fields)


def variables_of(layout):
    """What torchrun's agent, which keeps the store, tells its workers."""
    place = {"MASTER_ADDR": layout.master_addr, "MASTER_PORT": str(layout.master_port)}
    return place | {"TORCHELASTIC_USE_AGENT_STORE": "True"}


@pytest.fixture
def agent():
    """A store like that of torchrun's agent, for the processes that know its port."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def when_met(layout, delay_s):
    """In a child: when this process came, and when it was told that all were there."""
    os.environ.update(variables_of(layout))
    time.sleep(delay_s)
    came, told = time.monotonic(), []
    open_ranks(layout, torch.device("cpu"), 120, lambda: told.append(time.monotonic())).close()
    return came, told


def check_meeting(places):
    """The second process comes late, and nobody is told before it has come."""
    calls = zip(places, (0, 1.0), strict=True)
    (_, first_told), (last_came, last_told) = start(when_met, list(calls)).results()
    assert len(first_told) == len(last_told) == 1
    assert min(first_told + last_told) > last_came


def test_nobody_is_told_that_all_are_there_before_the_last_one_has_come():
    check_meeting(layouts(2))


def test_workers_that_torchrun_has_started_anew_meet_anew_in_the_store_it_has_kept(agent):
    for elastic_restarts in range(2):
        places = layouts(2, ports=(agent.port,))
        check_meeting([under_torchrun(each, elastic_restarts=elastic_restarts) for each in places])


def why_not_met_in_store(monkeypatch, layout):
    """What a process says that gives up after a second."""
    for name, value in variables_of(layout).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(HpcddpError) as caught:
        open_ranks(layout, torch.device("cpu"), 1.0)
    assert caught.value.code == "rendezvous"
    return caught.value.message


def test_who_waits_in_vain_at_the_store_of_torchrun_says_how_many_have_come(monkeypatch, agent):
    layout = under_torchrun(layouts(3, ports=(agent.port,))[1])
    said = why_not_met_in_store(monkeypatch, layout)
    assert f"Only 1 of 3 processes came to the store of torchrun at 127.0.0.1:{agent.port}" in said
    assert "while rank 1 waited for 1 s" in said


def test_who_does_not_reach_the_store_of_torchrun_says_where_it_is(monkeypatch):
    layout = under_torchrun(layouts(2)[1])
    said = why_not_met_in_store(monkeypatch, layout)
    place = f"127.0.0.1:{layout.master_port}"
    refused = "Connection refused. Likely causes"
    assert f"Rank 1 of 2 could not reach the store of torchrun at {place}: {refused}" in said


class Clock:
    """Stands for `time`."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_who_has_reached_the_store_of_torchrun_late_waits_only_for_what_is_left(monkeypatch):
    clock = Clock()

    def reach(*place, timeout):
        clock.sleep(20)
        yield HashStore(), 0, 2

    monkeypatch.setattr(agent_store, "time", clock)
    monkeypatch.setattr(agent_store, "rendezvous", reach)
    with pytest.raises(HpcddpError, match="Only 1 of 2"):
        agent_store.meet_in_store(under_torchrun(layouts(2)[0]), 30.0)
    assert 29 < clock.now < 31


def reason_not_to_meet_but_one(layout, timeout_s):
    """In a child: the time of the main process is up as soon as one other has come."""
    clock, answer = Clock(), rendezvous._answer

    def answer_and_hurry(*arguments):
        global_rank = answer(*arguments)
        clock.now += timeout_s
        return global_rank

    if layout.is_main:
        rendezvous.time, rendezvous._answer = clock, answer_and_hurry
    return reason_not_to_meet(layout, timeout_s)


def test_the_main_process_names_who_is_missing():
    calls = [(layout, 120) for layout in layouts(4)]
    [main, other] = start(reason_not_to_meet_but_one, [calls[0], calls[2]]).results()
    assert main == other
    assert main[0] == "rendezvous"
    assert "Ranks 1, 3 of 4 did not come" in main[1]


def test_no_free_port_at_all_is_said_at_once():
    with stranger("mute", "0.0.0.0") as first, stranger("mute", "0.0.0.0") as second:
        main = layouts(2, ports=(first, second))[0]
        begin = time.monotonic()
        with pytest.raises(HpcddpError, match=f"{first} .*in use.*{second} .*in use") as caught:
            rendezvous.meet(main, 200.0)
    assert caught.value.code == "rendezvous"
    assert time.monotonic() - begin < 100
