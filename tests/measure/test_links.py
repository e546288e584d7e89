"""What processes find out about each other, with threads in the place of processes."""

import os
import queue
import threading
import time
from types import SimpleNamespace

import pytest

from hpcddp.measure import links as module
from hpcddp.measure.links import Leader, clock_offsets, pair_speeds, visible_after

LEADERS = [Leader(f"n{rank}", rank) for rank in range(4)]


class Post:
    """What all threads share: letters between any two, and a table to gather around."""

    def __init__(self, world_size):
        self.letters = {(a, b): queue.Queue() for a in range(world_size) for b in range(world_size)}
        self.barrier = threading.Barrier(world_size, timeout=100)
        self.table = [None] * world_size


class FakeLinks:
    """The calls of Links, for one thread."""

    def __init__(self, post, global_rank):
        self.post, self.global_rank = post, global_rank

    def gather(self, value):
        self.post.table[self.global_rank] = value
        self.post.barrier.wait()
        values = list(self.post.table)
        self.post.barrier.wait()
        return values

    def wait_for_all(self):
        self.post.barrier.wait()

    def send(self, number, to):
        self.post.letters[self.global_rank, to].put(number)

    def receive(self, sender):
        return self.post.letters[sender, self.global_rank].get(timeout=100)


def on_all(world_size, work):
    """What `work(links)` gives on each of so many threads."""
    post, given = Post(world_size), [None] * world_size

    def run(global_rank):
        given[global_rank] = work(FakeLinks(post, global_rank))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive()
    return given


def test_clocks_ahead_and_behind_are_told_by_the_first_node(monkeypatch):
    ahead = threading.local()
    real = time.time
    monkeypatch.setattr(module.time, "time", lambda: real() + getattr(ahead, "by_s", 0.0))

    def work(links):
        ahead.by_s = {1: 3.0, 2: -7.0}.get(links.global_rank, 0.0)
        return clock_offsets(links, LEADERS[:3])

    offsets, *others = on_all(3, work)
    assert others == [{}, {}]
    for host, expected in (("n1", 3.0), ("n2", -7.0)):
        offset_s, trip_s = offsets[host]
        assert offset_s == pytest.approx(expected, abs=trip_s / 2 + 0.001)


def test_a_node_with_a_folder_of_its_own_never_sees_the_file(tmp_path):
    folders = [tmp_path / name for name in ("shared", "own", "shared")]
    for folder in folders:
        folder.mkdir(exist_ok=True)

    def work(links):
        return visible_after(links, LEADERS[:3], folders[links.global_rank], patience_s=0.5)

    for seen in on_all(3, work):
        assert (seen["writer"], seen["error"]) == ("n2", "")
        assert seen["after_s"]["n0"] is not None  # it looks once at least
        assert seen["after_s"]["n1"] is None
    assert not list(tmp_path.glob("*/.doctor-*"))


def test_where_nothing_can_be_written_nobody_waits(tmp_path):
    # Who waited would do so for longer than `on_all` does.
    [first, _] = on_all(2, lambda links: visible_after(links, LEADERS[:2], tmp_path / "none", 999))
    assert first["error"] == "No such file or directory"
    assert first["after_s"] == {}


def test_a_folder_that_is_closed_to_a_node_ends_nothing(tmp_path, monkeypatch):
    def refuse(path, **more):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "stat", refuse)
    for seen in on_all(2, lambda links: visible_after(links, LEADERS[:2], tmp_path, 20)):
        assert seen["after_s"]["n0"] is not None


def test_a_pair_that_was_slow_beside_the_others_meets_once_more_and_the_better_result_counts(
    monkeypatch,
):
    told = {(0, 1): [1.0, 9.0], (2, 3): [1.0, 1.5]}
    met = []

    def exchange(links, there, device, *, decides):
        if not decides:
            return 0.0
        pair = (links.global_rank, there)
        met.append(pair)
        return told[pair].pop(0) if pair in told else 10.0

    monkeypatch.setattr(module, "_exchange", exchange)
    results = on_all(4, lambda links: pair_speeds(links, LEADERS, device=None))
    assert all(result == results[0] for result in results)
    speeds = {(a, b): speed for a, b, speed in results[0]}
    assert speeds.pop(("n0", "n1")) == 9.0
    assert speeds.pop(("n2", "n3")) == 1.5
    assert set(speeds.values()) == {10.0}
    assert len(met) == 6 + 2


@pytest.mark.parametrize(("num_nodes", "talks"), [(64, 6), (65, 14)])
def test_sixty_four_nodes_talk_a_few_times_and_no_node_waits_for_ever(
    num_nodes, talks, monkeypatch
):
    leaders = [Leader(f"n{rank}", rank) for rank in range(num_nodes)]
    gathered = []

    def exchange(links, there, device, *, decides):
        """As two processes do, each waits for the other's word."""
        links.send(1.0, there)
        links.receive(there)
        return 10.0

    monkeypatch.setattr(module, "_exchange", exchange)

    def work(links):
        if links.global_rank == 0:
            gather = links.gather
            links.gather = lambda value: gathered.append(value) or gather(value)
        return pair_speeds(links, leaders, device=None)

    results = on_all(num_nodes, work)
    assert len(gathered) == talks
    assert all(result == results[0] for result in results)
    assert {host for a, b, _ in results[0] for host in (a, b)} == {each.host for each in leaders}


@pytest.mark.parametrize(("kind", "words"), [("cpu", 1), ("cuda", 0)])
def test_processes_tell_each_other_of_what_has_arrived_only_where_sending_does_not(
    kind, words, monkeypatch
):
    told = []
    payload = SimpleNamespace(device=SimpleNamespace(type=kind))
    monkeypatch.setattr(module.torch, "empty_like", lambda tensor: tensor)
    monkeypatch.setattr(module.torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(module.dist, "P2POp", lambda *words: words)
    monkeypatch.setattr(module.dist, "batch_isend_irecv", lambda ways: [])
    links = SimpleNamespace(
        global_rank=0, send=lambda number, to: told.append(to), receive=lambda sender: 1.0
    )
    module._swap(links, 1, payload)
    assert len(told) == words
