"""Slurm's controller stands still while it ends a job: whether the run goes on, on a real Slurm."""

import os
import signal

import pytest
from ended import has_ended
from test_requeue_on_slurm import STOPS, restarts, wait_for_starts

_LAST_ACT_S = 60


@pytest.fixture
def controller(cluster):
    """Send a signal to Slurm's controller, which goes on after the test whatever that was."""
    pid = int((cluster.state_dir / "slurmctld.pid").read_text())
    yield lambda signum: os.kill(pid, signum)
    os.kill(pid, signal.SIGCONT)


@pytest.fixture
def kill_wait(cluster):
    """Let jobs have as long between SIGTERM and SIGKILL as where nobody has set that."""
    before = cluster.conf.read_text()
    cluster.conf.write_text(before.replace("KillWait=10", "KillWait=30"))
    assert cluster.run(["scontrol", "reconfigure"]).returncode == 0
    yield
    cluster.conf.write_text(before)
    assert cluster.run(["scontrol", "reconfigure"]).returncode == 0


@pytest.fixture
def falls_silent(hpcddp, cluster, tmp_path, controller):
    """Stop the controller before the first question of a last act, and let its scontrol give up
    early; wait until that has, and return the last act's process id.
    """
    impatient, asked = tmp_path / "slurm.conf", tmp_path / "asked"
    impatient.write_text(f"{cluster.conf.read_text()}MessageTimeout=2\n")
    pid = (cluster.state_dir / "slurmctld.pid").read_text().strip()
    give_up = f"SLURM_CONF={impatient} scontrol $*; echo $PPID > {asked}; exit 1"
    lines = f'[ -e {asked} ] || {{ kill -STOP {pid}; {give_up}; }}; exec scontrol "$@"'
    hpcddp.replace_tool(tmp_path, "scontrol", lines)

    def wait():
        cluster.wait_until(lambda: "" if asked.exists() else "nobody has asked", _LAST_ACT_S)
        return int(asked.read_text())

    return wait


def start_and_end(hpcddp, cluster, path, partition):
    """A job that Slurm ends: by its user's order where nobody preempts, else by a preemption."""
    words = [f"resources.partition={partition}"]
    job_id = hpcddp.submit("demo", *words, command=[*STOPS, str(path)], nodes=1)
    wait_for_starts(cluster, path, 1)
    if partition == "main":
        cluster.cancel(job_id)
    else:
        cluster.preempt(job_id, hold_s=1)
    return job_id


@pytest.mark.parametrize(
    ("partition", "event"), [("preempt-cancel-nograce", "requeued"), ("main", "cancelled")]
)
def test_a_controller_that_answers_while_the_script_lives_is_asked_until_it_does(
    kill_wait, hpcddp, cluster, tmp_path, falls_silent, controller, partition, event
):
    job_id = start_and_end(hpcddp, cluster, tmp_path / "demo", partition)
    falls_silent()
    controller(signal.SIGCONT)
    hpcddp.wait_for_event("demo", event)
    hpcddp.wait_for("demo", event)
    assert restarts(cluster, job_id) == int(event == "requeued")


@pytest.mark.parametrize(
    ("partition", "state"), [("preempt-nograce", "requeued"), ("main", "cancelled")]
)
def test_a_controller_that_answers_too_late_has_the_last_word(
    hpcddp, cluster, tmp_path, falls_silent, controller, partition, state
):
    """Nothing is recorded against the next start: Slurm makes that by itself, or nobody does."""
    job_id = start_and_end(hpcddp, cluster, tmp_path / "demo", partition)
    last_act = falls_silent()
    cluster.wait_until(lambda: "" if has_ended(last_act) else "it lives", _LAST_ACT_S)
    controller(signal.SIGCONT)
    if state == "cancelled":
        hpcddp.wait_for("demo", state)
    cluster.wait_until(
        lambda: "" if restarts(cluster, job_id) == int(state == "requeued") else "not requeued", 60
    )
    told = {event["event"] for event in hpcddp.events("demo")}
    assert not {"requeued", "cancelled", "failed"} & told
