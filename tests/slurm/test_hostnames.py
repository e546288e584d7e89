"""Our host list expansion against Slurm's own: the table that it is tested by, and random lists."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml

from hpcddp.cluster.hostlist import expand_hostlist

TABLE = yaml.safe_load(
    (Path(__file__).parents[1] / "cases" / "hostlists.yaml").read_text(encoding="utf-8")
)


def slurm_expands(cluster, lists: list[str], show: str = "hostnames") -> list[list[str]]:
    """Return what `scontrol show hostnames` makes of each list, with one shell for all."""
    loop = f'for each; do scontrol show {show} "$each" 2>/dev/null; echo --; done'
    done = cluster.run(["bash", "-c", loop, "bash", *lists])
    return [block.splitlines() for block in done.stdout.split("--\n")[:-1]]


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


@pytest.mark.parametrize("case", TABLE["expands"].values(), ids=TABLE["expands"])
def test_slurm_names_the_hosts_of_the_table(cluster, case):
    assert slurm_expands(cluster, [case["text"]]) == [case.get("slurm", case["hosts"])]


@pytest.mark.parametrize("case", TABLE["refused"].values(), ids=TABLE["refused"])
def test_slurm_says_nothing_or_what_the_table_says_of_a_list_that_is_none(cluster, case):
    done = cluster.run(["scontrol", "show", "hostnames", case["text"]])
    assert (done.stdout.splitlines(), done.returncode) == (case.get("slurm", []), 0)


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
