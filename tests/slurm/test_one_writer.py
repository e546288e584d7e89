"""One run, one writer, on a real Slurm: a frozen node that thaws, and a second job."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hpcddp_user import losses
from interruptions import kill_slurmd, start_slurmd

TINY = ("train.model=resnet18", "train.global_batch=8", "data.name=synthetic")
TINY += (
    "data.synthetic_samples=64",
    "data.image_size=16",
    "log.every_steps=1",
    "checkpoint.every_steps=5",
)
TINY += ("train.eval_every_epochs=null", "train.max_epochs=null")


def everything_on(cluster, node):
    """The processes in a node's network: its daemon, the batch script, srun and the ranks."""
    slurmd = (cluster.state_dir / f"slurmd-{node}.pid").read_text().strip()
    network = os.readlink(f"/proc/{slurmd}/ns/net")
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            if os.readlink(f"/proc/{pid}/ns/net") == network:
                yield psutil.Process(pid)


def send_all(processes, signum):
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signum)


@pytest.mark.slow  # Slurm has to give the node up first
def test_a_copy_on_a_frozen_node_commits_nothing_after_it_has_thawed(hpcddp, cluster):
    job_id = hpcddp.submit("r", *TINY, "train.max_steps=100000", nodes=1)
    hpcddp.wait_for_event("r", "checkpoint", timeout=200)
    node = cluster.show(job_id)["BatchHost"]
    frozen = [*everything_on(cluster, node)]
    old = Path(f"/proc/{hpcddp.pid_of_rank(job_id, 0)}")
    send_all(frozen, signal.SIGSTOP)
    try:
        hpcddp.wait_for_event("r", "first_step", 2, timeout=300)
        assert cluster.show(job_id)["BatchHost"] != node
        told = len(hpcddp.events("r"))
        resumed = hpcddp.events("r", "resumed")[-1]["step"]
    finally:
        send_all(frozen, signal.SIGCONT)
    cluster.wait_until(lambda: f"{old} is alive" if old.exists() else "", 120)
    saved = len(hpcddp.events("r", "checkpoint"))
    hpcddp.wait_for_event("r", "checkpoint", saved + 2, timeout=200)
    late = hpcddp.events("r")[told:]
    # The srun that has thawed may abort the step of its number, which now is the second start's.
    assert {e["attempt"] for e in late if e["event"] == "stopped"} <= {1, 2}
    # The copy may have been frozen before it could tell of the save that the others went on from.
    saved = [e for e in late if e["event"] == "checkpoint" and e["attempt"] == 0]
    assert [e["step"] for e in saved] in ([], [resumed])
    status = hpcddp.status("r")
    assert (status["state"], status["attempt"] in (1, 2)) == ("running", True)
    steps = losses(hpcddp.run_dir("r"))
    assert sorted(steps) == list(range(1, max(steps) + 1))
    # Slurm asks a node that it has given up only now and then; a new daemon tells it.
    kill_slurmd(cluster, node)
    start_slurmd(cluster, node)


def test_the_script_of_a_running_job_sent_again_is_refused_and_harms_nothing(hpcddp, cluster):
    job_id = hpcddp.submit("r", *TINY, "train.max_steps=100000", nodes=2)
    hpcddp.wait_for_event("r", "checkpoint", timeout=200)
    second = cluster.sbatch(hpcddp.run_dir("r").script)
    assert cluster.wait(second, {"FAILED"}, timeout=120) == "FAILED"
    shown = cluster.show(second)
    assert (shown["Restarts"], shown["ExitCode"]) == ("0", "2:0")
    assert f"is being trained by job {job_id}" in hpcddp("logs", "r", "--attempt", "1").stdout
    assert {event.get("attempt", 0) for event in hpcddp.events("r")} == {0}
    status = hpcddp.status("r")
    assert (status["state"], status["job_id"], status["attempt"]) == ("running", job_id, 0)
    assert cluster.run(["scontrol", "requeue", job_id]).returncode == 0
    hpcddp.wait_for_event("r", "first_step", 2, timeout=200)
    attempts = hpcddp.status("r")["attempts"]
    assert [(each["attempt"], each["job_id"]) for each in attempts] == [(0, job_id), (2, job_id)]
    assert hpcddp("cancel", "r").returncode == 0
    assert cluster.wait(job_id, "CANCELLED", timeout=120) == "CANCELLED"
