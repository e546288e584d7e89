"""Ports: the same on every rank, different between jobs and starts, below the clients' range."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from hpcddp.cluster.job_names import job_key, restart_count
from hpcddp.cluster.ports import choose_ports, ephemeral_range, explicit_port
from hpcddp.errors import HpcddpError

TABLE = yaml.safe_load(
    (Path(__file__).parents[1] / "cases" / "ports.yaml").read_text(encoding="utf-8")
)


def ports_of(environ):
    return choose_ports(job_key(environ), restart_count(environ))


@pytest.mark.parametrize("jobs", TABLE["must_differ"].values(), ids=TABLE["must_differ"])
def test_these_jobs_get_different_ports(jobs):
    first = [ports_of(environ)[0] for environ in jobs]
    assert len(set(first)) == len(jobs)


IN_RANGE = TABLE["never_inside_client_range"]


@pytest.mark.parametrize("key", IN_RANGE.values(), ids=IN_RANGE)
def test_ports_are_distinct_and_below_what_linux_gives_to_clients(key):
    for restart in (0, 1, 17, 100_000):
        ports = choose_ports(key, restart, count=64)
        assert len(set(ports)) == 64
        assert all(20_000 <= port < 32_768 for port in ports)


@pytest.mark.parametrize("key", ["1.0", "38_1.0", "local-77", ""])
def test_no_start_of_a_job_tries_a_port_of_the_starts_before(key):
    tried = [port for restart in range(1000) for port in choose_ports(key, restart)]
    assert len(set(tried)) == len(tried)


def test_neighbouring_jobs_spread_over_the_whole_block():
    """As many clashes as chance gives, not more: 1000 jobs in 11,987 ports."""
    first = Counter(choose_ports(f"{job}.0", 0)[0] for job in range(1_000_000, 1_001_000))
    clashes = sum(count - 1 for count in first.values())
    assert clashes < 80  # 40 are expected
    assert max(first) - min(first) > 11_000


def test_jobs_that_clash_once_do_not_clash_all_the_way():
    keys = [f"{job}.0" for job in range(3000)]
    by_port = {}
    for key in keys:
        by_port.setdefault(choose_ports(key, 0)[0], []).append(key)
    pairs = [group[:2] for group in by_port.values() if len(group) > 1]
    assert pairs
    for one, other in pairs:
        assert choose_ports(one, 0)[1:] != choose_ports(other, 0)[1:]


def test_another_process_with_another_hash_seed_derives_the_same_ports():
    code = "from hpcddp.cluster.ports import choose_ports; print(choose_ports('38_1.0', 2))"
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert answers == {str(choose_ports("38_1.0", 2))}


@pytest.mark.parametrize("case", TABLE["explicit"].values(), ids=TABLE["explicit"])
def test_an_explicit_port_is_taken_or_refused(case):
    if "error" not in case:
        assert explicit_port(case["text"]) == case["port"]
        return
    with pytest.raises(HpcddpError) as caught:
        explicit_port(case["text"])
    assert caught.value.code == case["error"]
    assert case["text"] in caught.value.message


@pytest.mark.parametrize(
    ("text", "answer"),
    [("15000\t61000\n", (15_000, 61_000)), ("", (32_768, 60_999)), ("many few", (32_768, 60_999))],
)
def test_the_client_range_is_read_or_taken_to_be_the_default(tmp_path, text, answer):
    path = tmp_path / "ip_local_port_range"
    path.write_text(text)
    assert ephemeral_range(path) == answer
    assert ephemeral_range(tmp_path / "missing") == (32_768, 60_999)
