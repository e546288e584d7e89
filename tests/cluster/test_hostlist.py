"""Host lists and task counts: every case of the tables, round trips, and never another error."""

import random
import time
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcddp.cluster.hostlist import (
    compress_hostlist,
    expand_counts,
    expand_hostlist,
    is_address,
    with_suffix,
)
from hpcddp.errors import HpcddpError

FOLDER = Path(__file__).parents[1] / "cases"
HOSTS = yaml.safe_load((FOLDER / "hostlists.yaml").read_text(encoding="utf-8"))
COUNTS = yaml.safe_load((FOLDER / "task_counts.yaml").read_text(encoding="utf-8"))


def table(cases):
    return [pytest.param(case, id=str(name)) for name, case in cases.items()]


@pytest.mark.parametrize("case", table(HOSTS["expands"]))
def test_a_list_expands_to_its_hosts(case):
    hosts = expand_hostlist(case["text"])
    if case.get("any_order"):
        assert hosts[0] == case["hosts"][0]
        assert sorted(hosts) == sorted(case["hosts"])
    else:
        assert list(hosts) == case["hosts"]


@pytest.mark.parametrize("case", table(HOSTS["refused"]))
def test_a_list_that_is_none_is_refused_by_name(case):
    with pytest.raises(HpcddpError) as caught:
        expand_hostlist(case["text"], "SLURM_STEP_NODELIST")
    assert caught.value.code == case["error"]
    assert "SLURM_STEP_NODELIST" in caught.value.message
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("case", table(HOSTS["suffixes"]))
def test_a_suffix_goes_behind_the_first_label(case):
    assert with_suffix(case["host"], case["suffix"]) == case["result"]


@pytest.mark.parametrize("case", table(COUNTS["expands"]))
def test_counts_expand_to_one_per_node(case):
    assert list(expand_counts(case["text"])) == case["counts"]


@pytest.mark.parametrize("case", table(COUNTS["refused"]))
def test_counts_that_are_none_are_refused_by_name(case):
    with pytest.raises(HpcddpError) as caught:
        expand_counts(case["text"], "SLURM_TASKS_PER_NODE")
    assert caught.value.code == case["error"]
    assert "SLURM_TASKS_PER_NODE" in caught.value.message


# A compressor of the tests' own, in Slurm's manner: runs of numbers with one prefix and width.


def compress(numbers_by_prefix, shuffle):
    """A host list for {(prefix, width): numbers}, its items in an order of `shuffle`'s choice."""
    items = []
    for (prefix, width), numbers in numbers_by_prefix.items():
        ranges = [bracket(run, width) for run in runs(sorted(numbers))]
        shuffle.shuffle(ranges)
        items.append(f"{prefix}[{','.join(ranges)}]")
    shuffle.shuffle(items)
    return ",".join(items)


def runs(numbers):
    run = [numbers[0]]
    for before, number in pairwise(numbers):
        if number != before + 1:
            yield run
            run = []
        run.append(number)
    yield run


def bracket(run, width):
    low, high = (f"{number:0{width}d}" for number in (run[0], run[-1]))
    return low if len(run) == 1 else f"{low}-{high}"


PREFIXES = st.from_regex(r"[a-z]([a-z0-9-]{0,6}[a-z-])?", fullmatch=True)
NUMBERS = st.tuples(st.integers(1, 5), st.sets(st.integers(0, 3000), min_size=1))
GROUPS = st.dictionaries(PREFIXES, NUMBERS, min_size=1, max_size=4)
calm = settings(deadline=None)  # another process on the machine is no bug


@calm
@given(groups=GROUPS, seed=st.integers(0, 1000))
def test_what_was_compressed_expands_to_the_same_hosts(groups, seed):
    by_prefix = {(prefix, width): numbers for prefix, (width, numbers) in groups.items()}
    hosts = {f"{p}{i:0{w}d}" for (p, w), numbers in by_prefix.items() for i in numbers}
    expanded = expand_hostlist(compress(by_prefix, random.Random(seed)))
    assert set(expanded) == hosts
    assert len(expanded) == len(hosts)


@calm
@given(
    first=st.lists(st.integers(0, 60), unique=True, min_size=1, max_size=6),
    second=st.lists(st.integers(0, 60), unique=True, min_size=1, max_size=6),
)
def test_two_groups_expand_with_the_last_one_fastest(first, second):
    text = f"r[{','.join(map(str, first))}]n[{','.join(map(str, second))}]"
    assert list(expand_hostlist(text)) == [f"r{i}n{j}" for i in first for j in second]


@calm
@given(st.lists(st.integers(1, 200), min_size=1, max_size=30))
def test_compressed_counts_expand_to_the_same_counts(counts):
    text = ",".join(f"{count}(x1)" if count % 2 else str(count) for count in counts)
    assert list(expand_counts(text)) == counts


NAMES = st.from_regex(r"(gpu-?|n|login|r1n)[0-9]{0,3}", fullmatch=True)


@settings(deadline=None)
@given(st.sets(NAMES, min_size=1, max_size=40))
def test_the_short_form_of_any_names_means_the_same_names(hosts):
    expanded = expand_hostlist(compress_hostlist(hosts))
    assert sorted(expanded) == sorted(hosts)


def test_the_short_form_is_short():
    hosts = [f"gpu-{n:03d}" for n in (*range(1, 100), 104)] + ["n9", "n10", "n11", "login"]
    assert compress_hostlist(hosts) == "gpu-[001-099,104],n[9-11],login"


NEARLY_LISTS = st.text(alphabet="an0159[]-,.() x\n", max_size=40)


@calm
@given(st.one_of(NEARLY_LISTS, st.text(max_size=40)))
def test_any_text_gives_hosts_or_the_one_error(text):
    for expand in (expand_hostlist, expand_counts):
        hosts, code = outcome(expand, text)
        assert code in (None, "bad_hostlist", "inconsistent", "bad_value")
        assert code or (hosts and all(hosts))


def outcome(expand, text):
    """The result and no code, or no result and the code of the error."""
    try:
        return expand(text), None
    except HpcddpError as error:
        return (), error.code


@calm
@given(st.from_regex(r"[a-z]{1,3}(\[[0-9]{1,3}(-[0-9]{1,3})?\][a-z]?){0,3}", fullmatch=True))
def test_hosts_are_never_repeated_and_hold_no_brackets(text):
    hosts, _ = outcome(expand_hostlist, text)
    assert len(set(hosts)) == len(hosts)
    assert not set("".join(hosts)) & set("[],")


LARGE = {
    "one range": "n[1-10000]",
    "two groups": "rack[000-099]node[00-99]",
    "every other": f"n[{','.join(str(number) for number in range(1, 20_000, 2))}]",
    "no common prefix": ",".join(f"host{number:05d}x" for number in range(10_000)),
    "many groups": ",".join(f"r{rack}-[01-50]" for rack in range(200)),
}


@pytest.mark.parametrize("text", LARGE.values(), ids=LARGE)
def test_ten_thousand_nodes_take_less_than_twenty_milliseconds(text):
    best_s = min(seconds_of(expand_hostlist, text) for _ in range(7))
    assert len(expand_hostlist(text)) == 10_000
    assert best_s < 0.020


def seconds_of(function, argument):
    start = time.process_time()
    function(argument)
    return time.process_time() - start


def test_a_long_hopeless_list_is_refused_as_fast():
    assert seconds_of(refused, "[" * 100_000) < 1
    assert seconds_of(refused, "n[1-2],!" * 10_000) < 1
    assert seconds_of(refused, "a" * 100_000 + "[") < 1


def refused(text):
    with pytest.raises(HpcddpError):
        expand_hostlist(text)


def test_addresses_are_told_from_names():
    assert [is_address(host) for host in ("10.0.0.1", "fd00::1", "n1", "10.0.0")] == [1, 1, 0, 0]
