"""`doctor --nodes N` on real nodes: healthy ones, and nodes to which much was done."""

import json
import sys
from pathlib import Path

import pytest

import hpcddp as package


def doctor(hpcddp, *words):
    """Exit code and report of `doctor --json`."""
    done = hpcddp("doctor", "--cluster", "testcluster", "--json", *words, timeout=300)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def failed(report):
    return [check for check in report["checks"] if check["status"] == "fail"]


def test_healthy_nodes_pass(hpcddp, cluster):
    code, report = doctor(hpcddp, "--nodes", "4", "resources.cpus_per_process=1")
    assert (code, failed(report)) == (0, [])
    good = [check for check in report["checks"] if check["status"] == "ok"]
    hosts = set(cluster.nodes[:4])
    of_each = ("names of all nodes", "way to rank 0", "interface", "cores")
    for name in (*of_each, "cores of a loader worker"):
        assert {check["host"] for check in good if check["name"] == name} == hosts, name
    names = {check["name"] for check in good}
    assert names >= {"slurm", "clocks", "all-reduce exact", "versions"}
    # What the kind of file system left open, the nodes have proven.
    shared = [check for check in report["checks"] if check["name"] == "run directory shared"]
    assert [check["status"] for check in shared] == ["ok", "ok"]
    assert len(report["pairs"]) == 4 * 3 // 2


@pytest.mark.parametrize("words", [[], ["--partition", "urgent"]])
def test_more_nodes_than_there_are_need_no_job(hpcddp, cluster, words):
    code, report = doctor(hpcddp, "--nodes", str(len(cluster.nodes) + 1), *words)
    [check] = failed(report)
    assert (code, check["name"], check["needed"]) == (1, "job", f"{len(cluster.nodes) + 1} nodes")
    assert f"has {len(cluster.nodes)} nodes" in check["found"]
    assert f"--nodes {len(cluster.nodes)}" in check["fix"]
    assert not hpcddp.runs.exists()


@pytest.fixture
def sick_nodes(cluster, on_node, tmp_path):
    """Four nodes. The second one knows other names than the rest, runs an older hpcddp and has no
    data; the third has a small /dev/shm and sends slowly to all; the second does to the fourth.
    """
    _, second, third, fourth = cluster.nodes[:4]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "image").touch()
    hosts = (cluster.state_dir / "etc" / "hosts").read_text()
    lines = [line for line in hosts.splitlines() if third not in line.split()]
    text = "\n".join(lines).replace(cluster.addresses[fourth], "127.0.1.1")
    (tmp_path / "hosts").write_text(f"{text}\n")
    old = Path(package.__file__).read_text().replace(package.__version__, "0.0.1")
    (tmp_path / "old.py").write_text(old)
    for own, place in (("hosts", "/etc/hosts"), ("old.py", package.__file__)):
        on_node(second, f"mount --bind {tmp_path}/{own} {place}", f"umount {place}")
    data = tmp_path / "data"
    on_node(second, f"mount -t tmpfs tmpfs {data}", f"umount {data}")
    on_node(third, "mount -t tmpfs -o size=64m tmpfs /dev/shm", "umount /dev/shm")
    slow, no_longer = "root tbf rate 100mbit burst 64kb latency 50ms", "tc qdisc del dev eth0 root"
    on_node(third, f"tc qdisc add dev eth0 {slow}", no_longer)
    on_node(second, "tc qdisc add dev eth0 root handle 1: htb", no_longer)
    for line in (
        "class add dev eth0 parent 1: classid 1:4 htb rate 100mbit burst 64kb quantum 60000",
        f"filter add dev eth0 parent 1: u32 match ip dst {cluster.addresses[fourth]} flowid 1:4",
    ):
        on_node(second, f"tc {line}", "true")
    return data


def test_one_look_finds_what_is_wrong_with_each_node(hpcddp, cluster, sick_nodes):
    hpcddp.env["OMP_NUM_THREADS"] = "5"
    code, report = doctor(hpcddp, "--nodes", "4", f"data.root={sick_nodes}")
    _, second, third, fourth = cluster.nodes[:4]
    found = {(check["name"], check["host"]): check["found"] for check in failed(report)}
    expected = {
        ("names of all nodes", second): f"no address for {third}; {fourth} means this host itself",
        ("versions", second): "hpcddp 0.0.1",
        ("data path", second): f"no file in {sick_nodes}",
        ("/dev/shm", third): "MiB free",
        ("pairs of nodes", third): "slow node",
        ("pairs of nodes", f"{second} - {fourth}"): "slow link",
    }
    assert code == 1
    assert set(found) == set(expected)
    for place, said in expected.items():
        assert said in found[place]
    warned = {check["host"] for check in report["checks"] if check["name"] == "threads"}
    assert warned == set(cluster.nodes[:4])


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
