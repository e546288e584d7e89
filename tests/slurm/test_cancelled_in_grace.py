"""A user cancels a run in the grace time of its preemption, on a real Slurm."""

import time

import pytest
from hpcddp_user import SMALLEST
from test_requeue_on_slurm import LINGERS

PARTITION = "preempt-cancel"  # where Slurm requeues nothing by itself
ENDLESS = [word for word in SMALLEST if "max_steps" not in word] + ["train.max_steps=1000000"]


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "preempted"])
def test_who_leaves_after_its_grace_goes_on_unless_it_was_cancelled_within(
    long_kill_wait, hpcddp, cluster, tmp_path, is_cancelled
):
    """A cancelled job has KillWait to leave: it asks Slurm when the grace would have been over."""
    may_leave = tmp_path / "may-leave"
    hpcddp.begin_pythons_with(tmp_path / "site", LINGERS.format(str(may_leave)))
    words = [*ENDLESS, f"resources.partition={PARTITION}"]
    job_id = hpcddp.submit("demo", *words, nodes=1)
    hpcddp.wait_for_event("demo", "first_step")
    cluster.preempt(job_id)
    grace_end = hpcddp.wait_for_event("demo", "stop_reason")["end_time"]
    if is_cancelled:
        cluster.cancel(job_id)
        time.sleep(max(0.0, grace_end - time.time()))
    cluster.wait(job_id, "COMPLETING")
    may_leave.touch()
    told = "cancelled" if is_cancelled else "requeued"
    hpcddp.wait_for_event("demo", told)
    cluster.wait_until(lambda: "" if hpcddp.status("demo")["state"] == told else "not yet", 120)
    assert cluster.show(job_id)["Restarts"] == str(int(not is_cancelled))
