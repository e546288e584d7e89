"""A rehearsal on the real cluster: a real signal, a real requeue, the same bits."""

import json

from patience import WAITS_FOR_A_STOP

TINY = ("train.model=resnet18", "train.global_batch=16", "data.image_size=16")


def test_a_rehearsal_proves_that_the_job_survives_here(hpcddp, tmp_path):
    """It is not over before it can be interrupted, however late that is."""
    lines = WAITS_FOR_A_STOP.format(name="q-interrupted", rank=0, step=5)
    hpcddp.begin_pythons_with(tmp_path / "site", lines)
    words = ["rehearse", "--cluster", "testcluster", "--nodes", "2", "--name", "q", "--json"]
    words += ["--partition", "preempt-grace"]
    done = hpcddp(*words, "--steps", "9", *TINY, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert found["comparison"]["identical"]
    assert found["steps_lost"] == 0
    assert found["preempt_mode"] == "REQUEUE"
    assert found["kill_after_s"] == 30  # GraceTime and KillWait
    attempts = hpcddp.status("q-interrupted")["attempts"]
    assert [attempt["attempt"] for attempt in attempts] == [0, 1]
    assert attempts[0]["job_id"] == attempts[1]["job_id"]  # a requeue, no second job
    assert found["requeue_s"] > 1  # Slurm has its own idea of when
