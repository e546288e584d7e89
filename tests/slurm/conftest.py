"""A real Slurm for the tests of this folder, and a user who types hpcddp's commands on it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hpcddp_user import Hpcddp

HERE = Path(__file__).parent
TESTCLUSTER = HERE.parents[1] / "slurm" / "testcluster"
UNWANTED_VARIABLES = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_")
FIELD = re.compile(r"(?:^|\s)([A-Z][\w/:]*)=(.*?)(?=\s+[A-Z][\w/:]*=|\s*$)", re.DOTALL)


class Cluster:
    """A running test cluster, seen by a user who types Slurm commands."""

    def __init__(self, record: dict, work_dir: Path):
        self.record = record
        self.state_dir = Path(record["state_dir"])
        self.conf = Path(record["conf"])
        self.nodes: list[str] = record["nodes"]
        self.addresses = {name: host["address"] for name, host in record["hosts"].items()}
        self.work_dir = work_dir
        foreign = {key for key in os.environ if key.startswith(UNWANTED_VARIABLES)}
        kept = {key: value for key, value in os.environ.items() if key not in foreign}
        self.env = kept | {"SLURM_CONF": str(self.conf)}

    def run(self, command: list, **options) -> subprocess.CompletedProcess:
        """Run a command as a user of this cluster would; options are those of subprocess.run."""
        defaults = {"env": self.env, "capture_output": True, "text": True, "timeout": 240}
        return subprocess.run(list(map(str, command)), **defaults | {"check": False} | options)

    def srun(self, *arguments: str) -> list[str]:
        """Run one step, which must succeed; return the lines that it printed."""
        done = self.run(["srun", *arguments])
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def sbatch(self, script: str | Path, *arguments: str) -> str:
        """Submit a file, or a text with a first line like `#!/bin/bash`; return the job's id."""
        command = ["sbatch", "--parsable", *arguments]
        given = {"input": script} if isinstance(script, str) else {}
        command += [] if given else [script]
        done = self.run(command, cwd=self.work_dir, **given)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def show(self, job_id: str) -> dict[str, str]:
        """Return the fields of `scontrol show job`; of an array, those of its first record."""
        return self.show_all(job_id)[0]

    def show_all(self, job_id: str) -> list[dict[str, str]]:
        """Return the fields of every record that `scontrol show job` prints."""
        done = self.run(["scontrol", "show", "job", job_id])
        assert done.returncode == 0, done.stderr
        return [dict(FIELD.findall(record)) for record in done.stdout.strip().split("\n\n")]

    def wait(self, job_id: str, states: str | Iterable[str], timeout: float = 120) -> str:
        """Wait until a job, with an array all its elements, is in one of `states`; return which."""
        wanted = {states} if isinstance(states, str) else set(states)

        def problem() -> str:
            seen = [(record["JobState"], record["Reason"]) for record in self.show_all(job_id)]
            return "" if wanted.issuperset(state for state, _ in seen) else f"job {job_id}: {seen}"

        self.wait_until(problem, timeout)
        return self.show(job_id)["JobState"]

    def wait_for_restart(self, job_id: str, timeout: float = 120) -> None:
        """Wait until Slurm has requeued a job, which may run again, and be over, by then."""

        def problem() -> str:
            record = self.show(job_id)
            return "" if int(record["Restarts"]) else f"not requeued: {record['JobState']}"

        self.wait_until(problem, timeout)

    def wait_for_output(self, job_id: str, text: str, count: int, timeout: float = 120) -> None:
        """Wait until a job has written `text` so many times."""

        def problem() -> str:
            seen = self.output(job_id)
            return "" if seen.count(text) >= count else f"not {count} times {text!r} in {seen!r}"

        self.wait_until(problem, timeout)

    @staticmethod
    def wait_until(problem: Callable[[], str], timeout: float) -> None:
        """Wait until `problem()` returns nothing; fail with what it says once time is up."""
        deadline = time.monotonic() + timeout
        while said := problem():
            assert time.monotonic() < deadline, f"after {timeout} s: {said}"
            time.sleep(0.1)

    def output(self, job_id: str) -> str:
        """Return what a batch script and its steps have written so far."""
        path = Path(self.show(job_id).get("StdOut", ""))
        return path.read_text() if path.is_file() else ""

    def cancel(self, job_id: str) -> None:
        done = self.run(["scancel", job_id])
        assert done.returncode == 0, done.stderr

    def preempt(self, job_id: str, *arguments: str, hold_s: float = 2) -> str:
        """Ask for a job's nodes with a job in `urgent` that keeps them `hold_s`; return its id.

        It asks for all their memory, too, unless the further arguments say how much.
        """
        nodes = self.show(job_id)["NodeList"]
        claim = ["--partition=urgent", f"--nodelist={nodes}", "--exclusive", "--output=/dev/null"]
        return self.sbatch(f"#!/bin/sh\nsleep {hold_s}\n", *claim, *arguments)

    def node_exec(self, node: str, command: list, **options) -> subprocess.CompletedProcess:
        """Run a command inside a node, or `login`, outside any job."""
        enter = [TESTCLUSTER / "enter", "--dir", self.state_dir, node]
        return self.run([*enter, *command], **options)

    def cancel_all(self) -> None:
        """End every job at once: a job that ignores SIGTERM would live for KillWait seconds."""
        jobs = self.run(["squeue", "--noheader", "--format=%A"]).stdout.split()
        if not jobs:
            return
        self.run(["scancel", "--state=PENDING", *jobs])
        self.run(["scancel", "--full", "--signal=KILL", *jobs])
        self.run(["scancel", *jobs])

    def wait_idle(self, timeout: float = 120) -> None:
        """Wait until nothing is queued and every node is free."""

        def problem() -> str:
            jobs = self.run(["squeue", "--noheader"]).stdout
            states = self.run(["sinfo", "--noheader", "--Node", "--format=%N %T %E"]).stdout
            busy = [line for line in states.splitlines() if line.split()[1] != "idle"]
            return f"{jobs}{busy}" if jobs or busy else ""

        self.wait_until(problem, timeout)

    def stop(self) -> None:
        """Bring the cluster down; nothing happens where there is none any more."""
        stop_cluster(self.state_dir)


def start_cluster(state_dir: Path, work_dir: Path, *arguments: str) -> Cluster:
    """Bring a cluster up; the caller brings it down."""
    command = [TESTCLUSTER / "up", "--json", "--dir", state_dir, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Cluster(json.loads(done.stdout), work_dir)


def stop_cluster(state_dir: Path) -> None:
    """Bring a cluster down; nothing happens where there is none."""
    command = [TESTCLUSTER / "down", "--dir", state_dir]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def why_no_cluster() -> str | None:
    """Return what this machine lacks for a test cluster, None if it lacks nothing."""
    if os.geteuid() != 0:
        return "the Slurm test cluster needs root"
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    tools = ("slurmctld", "slurmd", "munged", "ip", "nsenter")
    if missing := [tool for tool in tools if not shutil.which(tool, path=path)]:
        return f"{', '.join(missing)} not found (Debian: slurm-wlm munge iproute2)"
    trial = ["unshare", "--net", "--uts", "--mount", "true"]
    done = subprocess.run(trial, capture_output=True, text=True, check=False)
    return f"no namespaces here: {done.stderr.strip()}" if done.returncode else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def testcluster_dir() -> Path:
    """Return the folder with `up` and `down`, on a machine where they can work.

    Elsewhere skip, or with HPCDDP_REQUIRE_SLURM=1 fail.
    """
    reason = why_no_cluster()
    if reason and os.environ.get("HPCDDP_REQUIRE_SLURM") == "1":
        pytest.fail(f"HPCDDP_REQUIRE_SLURM=1, but {reason}", pytrace=False)
    if reason:
        pytest.skip(reason)
    return TESTCLUSTER


@pytest.fixture(scope="session")
def new_cluster(testcluster_dir, tmp_path_factory) -> Iterator[Callable[..., Cluster]]:
    """Return a function that starts a cluster of its own; all are gone after the session."""
    # Not below pytest's directories: Unix sockets allow no long path.
    root = Path(tempfile.mkdtemp(prefix="hpcddp-tests-", dir="/tmp"))
    work_dir = tmp_path_factory.mktemp("slurm")

    def start(name: str, *arguments: str) -> Cluster:
        return start_cluster(root / name, work_dir, *arguments)

    yield start
    for state_dir in root.iterdir():
        stop_cluster(state_dir)
    root.rmdir()


@pytest.fixture(scope="session")
def cluster(request, tmp_path_factory) -> Cluster:
    """Return the session's cluster, or the one that runs in HPCDDP_TESTCLUSTER_DIR already."""
    running = os.environ.get("HPCDDP_TESTCLUSTER_DIR")
    if not running:
        return request.getfixturevalue("new_cluster")("main")
    record = json.loads((Path(running) / "cluster.json").read_text())
    return Cluster(record, tmp_path_factory.mktemp("slurm"))


@pytest.fixture
def long_kill_wait(cluster):
    """Let jobs have longer between SIGTERM and SIGKILL than a busy machine may stand still."""
    before = cluster.conf.read_text()
    cluster.conf.write_text(before.replace("KillWait=10", "KillWait=300"))
    assert cluster.run(["scontrol", "reconfigure"]).returncode == 0
    yield
    cluster.conf.write_text(before)
    assert cluster.run(["scontrol", "reconfigure"]).returncode == 0


@pytest.fixture
def hpcddp(cluster, tmp_path) -> Hpcddp:
    """Return a user of the session's cluster with a runs folder of his own."""
    return Hpcddp(cluster, tmp_path / "runs")


@pytest.fixture(autouse=True)
def idle_afterwards(request) -> Iterator[None]:
    """Leave the next test an empty cluster, whatever became of this one."""
    yield
    if "cluster" in request.fixturenames:
        cluster = request.getfixturevalue("cluster")
        cluster.cancel_all()
        cluster.wait_idle()


@pytest.fixture
def on_node(cluster):
    """Return a function that runs a command on a node, and one that undoes it after the test."""
    with ExitStack() as later:

        def run(node, command, undo):
            done = cluster.node_exec(node, command.split())
            assert done.returncode == 0, done.stderr
            later.callback(cluster.node_exec, node, undo.split())

        yield run
