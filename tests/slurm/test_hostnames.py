"""Our host list expansion against Slurm's own, on lists written by hand and drawn at random."""

from __future__ import annotations

import random

import pytest

from hpcddp.cluster.hostlist import expand_hostlist
from hpcddp.errors import HpcddpError

VALID = [
    "n",
    "n7",
    "mont-blanc-x42",
    "10.0.0.[1-2]",
    "[1-3]",
    "alpha,beta,gamma",
    "desk[1,2]",
    "cn-7,gpu-a[001-003]",
    "a[001-003,7],b-[2-4]",
    "n[3,1-2]",
    "n[9-11],m[09-11],k[099-101]",
    "n[001-3]",
    "n[8-010]",
    "n[010-011,0012]",
    "n[1],n[2],n3",
    "n1,,n2",
    "n[1-2],",
    "a_b[1-2]",
    "node1.cluster.example,node2.cluster.example",
    "r[0-1]n[0-2]",
    "rack[00-01]node[1-2],x9",
    "a[1-2][3-4]",
    "[1-2]n[1-2]",
    "e[0000-0001]n[07-08]",
]
# Slurm 22.05 lists these neither by the first nor by the last group first.
THREE_GROUPS_AND_MORE = [
    "r[1-2]c[1-2]n[1-2]",
    "x[08-11]y[1,3]z[001-002]w[0-1]",
]

# What Slurm 22.05 prints for them; it ends with exit code 0 each time.
INVALID = {
    "n[5-3]": [],
    "n[]": [],
    "n[a-c]": [],
    "n[-1]": [],
    "n[1,]": [],
    "n[[1]]": [],
    "x[1-2]y": [],
    "b-[2-4]-ib0": [],
    "n[0-70000]": [],
    "": [],
    "n[1-2": ["n]"],
    "n[1-]": ["n1"],
    "n]1": ["n]1"],
}


def slurm_expands(cluster, lists: list[str], show: str = "hostnames") -> list[list[str]]:
    """Return what `scontrol show hostnames` makes of each list, with one shell for all."""
    loop = f'for each; do scontrol show {show} "$each" 2>/dev/null; echo --; done'
    done = cluster.run(["bash", "-c", loop, "bash", *lists])
    return [block.split() for block in done.stdout.split("--\n")[:-1]]


def random_group(draw: random.Random) -> str:
    """Return a bracket group of disjoint ranges in random order, with random zero padding."""
    bounds = sorted(draw.sample(range(1200), 2 * draw.randint(1, 3)))
    items = []
    for low, high in zip(bounds[::2], bounds[1::2], strict=True):
        width = draw.choice([1, 1, 2, 3, 4])
        high = min(high, low + draw.choice([0, 1, 2, 5, 12]))
        items.append(f"{low:0{width}d}-{high:0{width}d}" if high > low else f"{low:0{width}d}")
    draw.shuffle(items)
    return f"[{','.join(items)}]"


def random_list(draw: random.Random, most_groups: int) -> str:
    """Return a legal host list; a serial number in each prefix keeps its hosts apart."""
    items = []
    for serial in range(draw.randint(1, 4)):
        item = draw.choice(["n", "gpu-a", "mont-blanc-x42-", "n7.rack", "A_b"]) + "abcd"[serial]
        for separator in draw.choices(["", "n", "-", "-c", ".x"], k=draw.randint(0, most_groups)):
            item += separator + random_group(draw)
        items.append(item)
    return ",".join(items)


@pytest.mark.parametrize("text", VALID)
def test_hosts_are_those_that_slurm_names(cluster, text):
    (named,) = slurm_expands(cluster, [text])
    assert list(expand_hostlist(text)) == named


@pytest.mark.parametrize("text", THREE_GROUPS_AND_MORE)
def test_with_three_groups_the_hosts_and_the_first_are_those_of_slurm(cluster, text):
    (named,) = slurm_expands(cluster, [text])
    expanded = list(expand_hostlist(text))
    assert expanded[0] == named[0]
    assert sorted(expanded) == sorted(named)
    assert expanded != named


@pytest.mark.parametrize("text", INVALID)
def test_lists_that_slurm_cannot_expand_are_errors_here(cluster, text):
    with pytest.raises(HpcddpError) as caught:
        expand_hostlist(text)
    assert caught.value.code == "bad_hostlist"
    done = cluster.run(["scontrol", "show", "hostnames", text])
    assert (done.stdout.split(), done.returncode) == (INVALID[text], 0)


def test_a_host_named_twice_is_an_error_although_slurm_repeats_it(cluster):
    assert slurm_expands(cluster, ["n[1,1]"]) == [["n1", "n1"]]
    with pytest.raises(HpcddpError) as caught:
        expand_hostlist("n[1,1]")
    assert caught.value.code == "inconsistent"


def test_random_lists_give_the_hosts_of_slurm_in_its_order(cluster):
    draw = random.Random(20261129)
    lists = [random_list(draw, most_groups=2) for _ in range(300)]
    for text, named in zip(lists, slurm_expands(cluster, lists), strict=True):
        assert list(expand_hostlist(text)) == named, text


def test_random_lists_with_three_groups_give_the_hosts_of_slurm_in_any_order(cluster):
    draw = random.Random(3)
    lists = [random_list(draw, most_groups=3) for _ in range(100)]
    for text, named in zip(lists, slurm_expands(cluster, lists), strict=True):
        expanded = list(expand_hostlist(text))
        assert sorted(expanded) == sorted(named), text
        assert expanded[0] == named[0], text


def test_lists_that_slurm_itself_writes_are_read_back(cluster):
    draw = random.Random(7)
    racks = [[f"r{rack:02d}n{node}" for rack in range(4) for node in range(8)] for _ in range(40)]
    plain = [[f"gpu-{node:03d}" for node in range(90, 110)] + ["cn-7", "x9"] for _ in range(40)]
    chosen = [draw.sample(hosts, draw.randint(1, 12)) for hosts in racks + plain]
    written = slurm_expands(cluster, [",".join(hosts) for hosts in chosen], "hostlist")
    for hosts, (text,) in zip(chosen, written, strict=True):
        assert sorted(expand_hostlist(text)) == sorted(hosts), text
