"""`doctor --nodes N` on real nodes: healthy ones, a slow one, a folder that is not shared."""

import json
import sys

import pytest


def doctor(hpcddp, *words):
    """Exit code and report of `doctor --json`."""
    done = hpcddp("doctor", "--cluster", "testcluster", "--json", *words, timeout=300)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def failed(report):
    return [check for check in report["checks"] if check["status"] == "fail"]


@pytest.mark.parametrize("nodes", [2, 4])
def test_healthy_nodes_pass(hpcddp, cluster, nodes):
    code, report = doctor(hpcddp, "--nodes", str(nodes), "resources.cpus_per_process=1")
    assert (code, failed(report)) == (0, [])
    good = [check for check in report["checks"] if check["status"] == "ok"]
    hosts = set(cluster.nodes[:nodes])
    for name in ("names of all nodes", "interface", "cores", "cores of a loader worker"):
        assert {check["host"] for check in good if check["name"] == name} == hosts, name
    names = {check["name"] for check in good}
    assert names >= {"slurm", "clocks", "all-reduce exact", "versions"}
    # What the kind of file system left open, the nodes have proven.
    shared = [check for check in report["checks"] if check["name"] == "run directory shared"]
    assert [check["status"] for check in shared] == ["ok", "ok"]
    assert len(report["pairs"]) == nodes * (nodes - 1) // 2


@pytest.fixture
def slow_node(cluster):
    """The third node, which sends with 100 Mbit/s only."""
    node = cluster.nodes[2]
    shape = "root tbf rate 100mbit burst 64kb latency 50ms"
    done = cluster.node_exec(node, ["tc", "qdisc", "add", "dev", "eth0", *shape.split()])
    assert done.returncode == 0, done.stderr
    yield node
    done = cluster.node_exec(node, ["tc", "qdisc", "del", "dev", "eth0", "root"])
    assert done.returncode == 0, done.stderr


def test_a_node_with_a_slow_link_is_named(hpcddp, slow_node):
    code, report = doctor(hpcddp, "--nodes", "4")
    assert code == 1
    [slow] = failed(report)
    assert (slow["name"], slow["host"]) == ("pairs of nodes", slow_node)
    assert "slow node" in slow["found"]
    assert slow_node in slow["fix"]


@pytest.fixture
def unshared(cluster, tmp_path):
    """A folder of which the second node sees a file system of its own."""
    folder, node = tmp_path / "unshared", cluster.nodes[1]
    folder.mkdir()
    done = cluster.node_exec(node, ["mount", "-t", "tmpfs", "tmpfs", str(folder)])
    assert done.returncode == 0, done.stderr
    yield folder
    done = cluster.node_exec(node, ["umount", str(folder)])
    assert done.returncode == 0, done.stderr


def test_a_job_whose_runs_are_not_shared_fails_with_that_reason(hpcddp, unshared):
    hpcddp.env["HPCDDP_RUNS_DIR"] = str(unshared)
    code, report = doctor(hpcddp, "--nodes", "2", "train.rendezvous_timeout_s=15")
    assert code == 1
    assert [check["name"] for check in failed(report)] == ["run directory shared"]
    assert str(unshared) in failed(report)[0]["found"]


def test_ones_own_step_shows_an_unshared_folder_and_too_few_cores(hpcddp, cluster, unshared):
    environ = {**hpcddp.env, "HPCDDP_RUNS_DIR": str(unshared)}
    step = ["srun", "--nodes=2", "--ntasks=2", "--cpus-per-task=2", "taskset", "--cpu-list", "0"]
    command = [*step, sys.executable, "-m", "hpcddp", "doctor", "--json"]
    done = cluster.run(command, env=environ, cwd=hpcddp.work_dir, timeout=300)
    assert done.returncode == 1, done.stderr
    found = {(check["name"], check["host"]): check for check in failed(json.loads(done.stdout))}
    first, second = cluster.nodes[:2]
    assert set(found) == {("run directory shared", first), ("cores", first), ("cores", second)}
    assert f"a file of {second}" in found["run directory shared", first]["found"]
    assert "1 of the 2 cores" in found["cores", second]["found"]
