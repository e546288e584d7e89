"""The test cluster comes up fast, disturbs nothing, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def network_namespaces_of(cluster) -> set[int]:
    holders = [host["process"]["pid"] for host in cluster.record["hosts"].values()]
    return {os.stat(f"/proc/{pid}/ns/net").st_ino for pid in holders}


def pids_in(namespaces: set[int]) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "ns/net").stat().st_ino in namespaces:
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def dwellers(state_dir: Path) -> list[str]:
    """Return processes that see mounts of a cluster, on its record or not."""
    found = []
    for mounts in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            if f"{state_dir}/" in mounts.read_text():
                found.append(mounts.parent.name)
        except OSError:
            continue
    return found


def traces_of(state_dir: Path, link: str) -> list[str]:
    """Return what this machine still has of a cluster."""
    links = subprocess.run(["ip", "link", "show", link], capture_output=True, check=False)
    traces = {
        "link": links.returncode == 0,
        "processes or mounts": bool(dwellers(state_dir)),
        "state": state_dir.exists(),
    }
    return [name for name, is_there in traces.items() if is_there]


def test_a_cluster_is_up_soon_and_leaves_nothing(new_cluster):
    named_before = subprocess.check_output(["ip", "netns", "list"])
    started_at = time.monotonic()
    cluster = new_cluster("brief")
    assert time.monotonic() - started_at < 120  # 3 s on an idle machine
    states = cluster.run(["sinfo", "--noheader", "--Node", "--format=%T"]).stdout.split()
    assert set(states) == {"idle"}

    job = cluster.sbatch("#!/bin/bash\nsrun bash -c 'trap : TERM; while true; do sleep 1; done'")
    cluster.wait(job, "RUNNING")
    namespaces = network_namespaces_of(cluster)
    inhabitants = pids_in(namespaces)
    assert dwellers(cluster.state_dir)
    assert len(inhabitants) >= 5 + 6  # one holder each; munged, slurmctld, four slurmd

    cluster.stop()
    assert pids_in(namespaces) == set()
    assert traces_of(cluster.state_dir, cluster.record["link"]) == []
    assert subprocess.check_output(["ip", "netns", "list"]) == named_before
    cluster.stop()  # again: nothing to do, no error


def test_two_clusters_run_side_by_side(cluster, new_cluster):
    other = new_cluster("other", "--nodes=2", "--cpus=1", "--gpus=0")
    assert other.record["link"] != cluster.record["link"]
    assert not set(other.addresses.values()) & set(cluster.addresses.values())
    for each in (cluster, other):
        assert sorted(each.srun("-N2", "hostname")) == ["gpu-01", "gpu-02"]
    other.stop()
    assert len(cluster.srun("-N4", "hostname")) == 4


def wait_for(path, process):
    while not path.exists():
        assert process.poll() is None, "it has ended before"
        time.sleep(0.001)


def test_an_interrupted_start_leaves_nothing(testcluster_dir, short_tmp):
    state_dir = short_tmp / "c"
    command = [testcluster_dir / "up", "--dir", state_dir]
    starting = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for(state_dir / "munge", starting)
    link = json.loads((state_dir / "cluster.json").read_text())["link"]
    starting.terminate()
    assert starting.wait() == 2
    assert starting.stderr.read() == "up: stopped by SIGTERM\n"
    assert traces_of(state_dir, link) == []


@pytest.mark.parametrize("delay_s", [0, 0.03, 0.06, 0.1, 0.2, 0.4])
def test_a_killed_start_is_removed_by_down(testcluster_dir, short_tmp, delay_s):
    state_dir = short_tmp / "c"
    starting = subprocess.Popen([testcluster_dir / "up", "--dir", state_dir])
    wait_for(state_dir / "cluster.json", starting)
    time.sleep(delay_s)
    starting.kill()
    starting.wait()
    record = (state_dir / "cluster.json").read_text()
    subprocess.run([testcluster_dir / "down", "--dir", state_dir], check=True)
    assert traces_of(state_dir, json.loads(record)["link"] if record else "tc-none") == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--nodes=0"], "--nodes 0: need 1 to 249"),
        (["--cpus=0"], "--cpus 0: need at least 1"),
        (["--rate=fast"], "--rate fast: need a number with kbit, mbit or gbit, e.g. 1gbit"),
        (["--dir", "/etc"], "/etc is not empty, and `down` would delete it"),
        (["--dir", f"/tmp/{'x' * 80}"], "too long for the Unix sockets below it"),
    ],
)
def test_bad_options_are_refused(testcluster_dir, tmp_path, arguments, complaint):
    command = [testcluster_dir / "up", "--dir", tmp_path / "c", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert not (tmp_path / "c").exists()


def test_a_second_start_in_the_same_place_is_refused_and_harms_nothing(cluster, testcluster_dir):
    command = [testcluster_dir / "up", "--dir", cluster.state_dir]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "holds a test cluster already" in done.stderr
    assert cluster.srun("-N1", "hostname") == ["gpu-01"]


def test_the_machines_own_slurm_configuration_is_not_touched(testcluster_dir, short_tmp):
    own = short_tmp / "etc-slurm"
    own.mkdir()
    (own / "slurm.conf").write_text("ClusterName=production\nSlurmctldHost=mgmt01\n")
    # In a mount namespace of its own the machine has a configured Slurm, whether or not it has.
    script = f"""
        set -e
        export PATH={testcluster_dir}:$PATH SLURM_CONF={short_tmp}/c/etc/slurm.conf
        mount --bind {own} /etc/slurm
        up --dir {short_tmp}/c >&2
        srun -N2 grep ^ClusterName /etc/slurm/slurm.conf
        cat /etc/slurm/slurm.conf
        down --dir {short_tmp}/c >&2
    """
    command = ["unshare", "--mount", "--propagation", "private", "bash", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    inside, outside = done.stdout.splitlines()[:2], done.stdout.splitlines()[2:]
    assert inside == ["ClusterName=testcluster"] * 2
    assert outside == ["ClusterName=production", "SlurmctldHost=mgmt01"]
    assert [path.name for path in own.iterdir()] == ["slurm.conf"]


# In namespaces of its own the machine has Munge and a Slurm controller, whether or not it has.
HOST = """
    set -e
    export PATH={tools}:$PATH SLURM_CONF={place}/c/etc/slurm.conf
    trap 'down --dir {place}/c >&2; kill $(jobs -p)' EXIT
    ip link set lo up
    mount -t tmpfs none /run
    mkdir -m 755 /run/munge
    head -c 128 /dev/urandom >{place}/key
    chmod 600 {place}/key
    munged --foreground --force --key-file={place}/key --pid-file={place}/pid \\
        --seed-file={place}/seed >{place}/munged.log 2>&1 &
    {python} -c '
import socket
with socket.create_server(("", 6817)) as server:
    print("listens", flush=True)
    while True:
        with server.accept()[0] as peer:
            peer.sendall(b"host\\n")
' >{place}/listener &
    until [ -S /run/munge/munge.socket.2 ] && grep -q listens {place}/listener; do sleep 0.1; done
    for number in 1 2 3; do munge -n >{place}/credential-$number; done
    still_there() {{  # no daemon takes a credential twice, and no other one knows its key
        unmunge <{place}/credential-$1 | grep -q "STATUS: *Success"
        read -r said </dev/tcp/127.0.0.1/6817
        echo "$said $(jobs -rp | wc -l)"
    }}
    still_there 1
    up --dir {place}/c >&2
    srun -N2 true
    still_there 2
    down --dir {place}/c >&2
    still_there 3
"""


def test_the_munge_and_the_slurm_controller_of_the_machine_go_on(testcluster_dir, short_tmp):
    script = HOST.format(place=short_tmp, python=sys.executable, tools=testcluster_dir)
    command = ["unshare", "--mount", "--net", "--propagation", "private", "bash", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["host 2"] * 3


def test_a_killed_node_daemon_is_started_again_from_the_record(new_cluster):
    cluster = new_cluster("restart", "--nodes=2")
    daemon = cluster.record["daemons"]["slurmd-gpu-02"]
    os.kill(daemon["process"]["pid"], signal.SIGKILL)
    subprocess.Popen(daemon["command"], stderr=subprocess.DEVNULL, start_new_session=True)
    assert cluster.srun("-w", "gpu-02", "hostname") == ["gpu-02"]
    cluster.stop()


@pytest.mark.parametrize(
    ("required", "outcome", "exit_code"), [("", "1 skipped", 0), ("1", "1 error", 1)]
)
def test_without_namespaces_tests_skip_unless_slurm_is_required(
    testcluster_dir, required, outcome, exit_code
):
    no_rights = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    pytest_here = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*no_rights, *pytest_here, Path(__file__).with_name("test_cluster.py"), "-k", "decoy"],
        env=os.environ | {"HPCDDP_REQUIRE_SLURM": required, "HPCDDP_TESTCLUSTER_DIR": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == exit_code, done.stdout
    assert outcome in done.stdout
    assert "Operation not permitted" in done.stdout
