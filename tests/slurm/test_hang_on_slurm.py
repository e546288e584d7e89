"""What stands still on a real Slurm: a network that swallows everything, and suspended jobs."""

import time
from collections import Counter

import psutil
import pytest
from hpcddp_user import SMALLEST, Hpcddp, losses, processes_of

from hpcddp.run_dir import read_json_lines

HANG_S = 8
WATCHED = (
    *SMALLEST, "log.every_steps=1", "checkpoint.every_steps=5", f"train.hang_timeout_s={HANG_S}",
    "requeue.max_failures=1",
)  # fmt: skip
ENDLESS = (*WATCHED, "train.max_steps=1000000")
NUM_STEPS = 40
SHORT = (*WATCHED, f"train.max_steps={NUM_STEPS}")
# A step takes half a second at least, until the file exists.
SLOW = """
    from hpcddp.train.watchdog import Watchdog
    beat = Watchdog.beat
    def slow_beat(watchdog):
        if not os.path.exists({0!r}):
            time.sleep(0.25)
        beat(watchdog)
    Watchdog.beat = slow_beat
"""


def cut(cluster, on_node, node, other):
    """Let nothing go from one node to another; returns how to put an end to that."""
    no_longer = "tc qdisc del dev eth0 root"
    on_node(node, "tc qdisc add dev eth0 root handle 1: htb", no_longer)
    for line in (
        "class add dev eth0 parent 1: classid 1:4 htb rate 8bit burst 1 cburst 1 quantum 60000",
        f"filter add dev eth0 parent 1: u32 match ip dst {cluster.addresses[other]} flowid 1:4",
    ):
        on_node(node, f"tc {line}", "true")
    return lambda: cluster.node_exec(node, no_longer.split())


def test_a_collective_that_never_returns_ends_the_attempt_and_the_run_goes_on(
    hpcddp, cluster, on_node
):
    hpcddp.submit("r", *ENDLESS)
    hpcddp.wait_for_step("r", 8)
    heal = cut(cluster, on_node, "gpu-02", "gpu-01")
    hang = hpcddp.wait_for_event("r", "hang", timeout=120)
    heal()
    assert hang["silent_s"] >= HANG_S
    requeued = hpcddp.wait_for_event("r", "requeued", timeout=120)
    assert requeued["failure"] == 1
    hpcddp.wait_for_event("r", "first_step", 2, timeout=120)
    logs = [hpcddp.run_dir("r").rank_log(0, rank).read_text() for rank in range(2)]
    assert all("no progress for" in log and "run_steps" in log for log in logs)


def test_a_job_that_slurm_suspends_for_longer_has_not_hung(hpcddp, cluster):
    job_id = hpcddp.submit("r", *ENDLESS)
    hpcddp.wait_for_step("r", 3)
    assert cluster.run(["scontrol", "suspend", job_id]).returncode == 0
    cluster.wait_until(lambda: still_running(cluster, job_id), 120)
    before = max(losses(hpcddp.run_dir("r")))
    time.sleep(2 * HANG_S)
    assert max(losses(hpcddp.run_dir("r"))) == before
    assert cluster.run(["scontrol", "resume", job_id]).returncode == 0
    hpcddp.wait_for_step("r", before + 3)
    assert not hpcddp.events("r", "hang")
    assert hpcddp.status("r")["attempt"] == 0


def still_running(cluster, job_id):
    """The job's ranks that are not stopped; empty once all are."""
    states = {rank: psutil.Process(pid).status() for rank, pid in processes_of(cluster, job_id)}
    running = {rank for rank, state in states.items() if state != psutil.STATUS_STOPPED}
    return f"not stopped: {running}" if running else ""


@pytest.fixture
def suspending(new_cluster, tmp_path):
    """A user of a cluster with a partition whose jobs are suspended for those in `urgent`."""
    hpcddp = Hpcddp(new_cluster("suspends", "--suspend"), tmp_path / "runs")
    yield hpcddp
    hpcddp.cluster.stop()


def test_a_run_that_a_preemption_suspends_goes_on_in_the_same_attempt_with_the_same_bits(
    suspending, tmp_path
):
    hpcddp, cluster = suspending, suspending.cluster
    hpcddp.begin_pythons_with(tmp_path / "site", SLOW.format(str(tmp_path / "soon")))
    job_id = hpcddp.submit("r", *SHORT, "--partition", "preempt-suspend")
    hpcddp.wait_for_step("r", 3)
    urgent = cluster.preempt(job_id, "--mem=1024", hold_s=2 * HANG_S)
    cluster.wait(job_id, "SUSPENDED")
    assert "SUSPENDED" in hpcddp.status("r")["reason"]
    (tmp_path / "soon").touch()
    hpcddp.submit("calm", *SHORT)
    cluster.wait(urgent, "COMPLETED")
    for name in ("r", "calm"):
        hpcddp.wait_for(name, "finished", timeout=120)
    told = {name: Counter(e["event"] for e in hpcddp.events(name)) for name in ("r", "calm")}
    assert told["r"] == told["calm"]  # no hang, no stop, no second start
    steps = [r["step"] for r in read_json_lines(hpcddp.run_dir("r").metrics) if "loss" in r]
    assert steps == list(range(1, NUM_STEPS + 1))
    compared = hpcddp("checkpoint", "diff", "r", "calm")
    assert compared.returncode == 0, compared.stdout
    assert losses(hpcddp.run_dir("r")) == losses(hpcddp.run_dir("calm"))
