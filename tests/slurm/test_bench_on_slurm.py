"""`bench allreduce` between nodes whose links have a known speed, against the kernel's counters."""

import json
import sys

import pytest
from hpcddp_user import Hpcddp

GBIT_PER_S = 0.125  # 10^9 bytes per second


@pytest.fixture(scope="module")
def shaped(new_cluster):
    """Two nodes with 1 Gbit/s each way."""
    cluster = new_cluster("shaped", "--nodes", "2", "--rate", "1gbit")
    yield cluster
    cluster.stop()


def sent_bytes(cluster, node):
    """Bytes that the node's programs have put on its link: all but the packets' headers."""
    names = [f"/sys/class/net/eth0/statistics/tx_{what}" for what in ("bytes", "packets")]
    done = cluster.node_exec(node, ["cat", *names])
    assert done.returncode == 0, done.stderr
    num_bytes, num_packets = map(int, done.stdout.split())
    return num_bytes - 66 * num_packets  # Ethernet 14, IP 20, TCP with its timestamps 32


def measure(cluster, runs):
    """One report, after a look whether the links carried what it says."""
    before = {node: sent_bytes(cluster, node) for node in cluster.nodes}
    words = ["--cluster", "testcluster", "--nodes", "2", "--sizes", "1KiB..32MiB", "--json"]
    done = Hpcddp(cluster, runs)("bench", "allreduce", *words)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    reduced = sum(row["bytes"] * (row["n"] + row["discarded"]) for row in report["rows"])
    for node in cluster.nodes:  # 2(n-1)/n is 1 between two
        assert sent_bytes(cluster, node) - before[node] == pytest.approx(reduced, rel=0.01)
    return report


def test_it_finds_the_speed_of_the_link_and_sends_what_theory_says(shaped, tmp_path):
    """Other work on the machine makes a link seem slower, never faster: one of three will do."""
    found = []
    for trial in range(3):
        report = measure(shaped, tmp_path / f"runs-{trial}")
        speeds = report["rows"][-1]["busbw_gb_per_s"], report["fit"]["bus_gb_per_s"]
        assert speeds[0] < 1.1 * GBIT_PER_S
        found.append(speeds)
        if speeds == (pytest.approx(GBIT_PER_S, rel=0.1), pytest.approx(GBIT_PER_S, rel=0.1)):
            return
    pytest.fail(f"largest size and line, GB/s: {found}")


def test_in_an_allocation_it_measures_among_all_processes_of_its_nodes(cluster):
    words = "bench allreduce --sizes 1KiB..4KiB --seconds-per-size 0.01 --json"
    line = f"srun {sys.executable} -m hpcddp {words}"
    options = ("-N2", "--ntasks-per-node=2", "--export=ALL,OMP_NUM_THREADS=1")
    job_id = cluster.sbatch(f"#!/bin/bash\n{line} 2>/dev/null\n", *options)
    cluster.wait(job_id, {"COMPLETED", "FAILED"}, timeout=300)
    report = json.loads(cluster.output(job_id))
    assert (report["world_size"], report["nodes"], len(report["hosts"])) == (4, 2, 2)
    assert [row["bytes"] for row in report["rows"]] == [1024, 2048, 4096]
    for row in report["rows"]:  # of what each process sends, 1 of 3 parts must leave the node
        assert row["node_gb_per_s"] / 2 == pytest.approx(row["busbw_gb_per_s"] / 3)
