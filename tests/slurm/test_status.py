"""What status, logs, wait and cancel say of jobs on a real Slurm, at each turn of their lives."""

import subprocess

from hpcddp.launch import scheduler
from hpcddp.launch.scheduler import query_jobs

# Programs of the user's own need no torch, so that a life takes seconds.
UNTIL_TOLD = ["bash", "-c", 'until [ -e "$0" ]; do sleep 0.1; done; echo rank $RANK is done']


def test_a_run_is_pending_running_and_finished(hpcddp, cluster, tmp_path):
    told = tmp_path / "told"
    hold = "resources.sbatch.hold=true"
    job_id = hpcddp.submit("my run", hold, command=[*UNTIL_TOLD, str(told)])
    assert hpcddp.wait_for("my run", "pending")["reason"] == "JobHeldUser"
    cluster.run(["scontrol", "release", job_id])
    running = hpcddp.wait_for("my run", "running")
    assert (running["job_id"], running["nodes"]) == (job_id, "gpu-[01-02]")
    with subprocess.Popen(
        [hpcddp.python, "-m", "hpcddp", "logs", "my run", "--rank", "0", "--follow"],
        env=hpcddp.env, cwd=hpcddp.work_dir, stdout=subprocess.PIPE, text=True,
    ) as following:  # fmt: skip
        assert "Network: " in following.stdout.readline()  # it shows what there is, and waits
        told.touch()
        shown, _ = following.communicate(timeout=120)
    assert (following.returncode, shown.splitlines()[-1]) == (0, "rank 0 is done")
    assert hpcddp("wait", "my run", "--timeout", "120").returncode == 0
    finished = hpcddp.status("my run")
    assert (finished["state"], finished["exit_code"]) == ("finished", 0)
    *ours, last = hpcddp("logs", "my run", "--rank", "1").stdout.splitlines()
    assert last == "rank 1 is done"
    assert all(" Network: " in line for line in ours)
    assert (
        hpcddp("cancel", "my run").stdout == "Run my run is finished already; nothing to cancel.\n"
    )


def test_a_program_that_fails_gives_its_exit_code_to_who_waits(hpcddp):
    words = ["submit", "--name", "bad", "--cluster", "testcluster", "requeue.max_failures=0"]
    done = hpcddp(*words, "--follow", "--", "bash", "-c", "exit 3")
    assert (done.returncode, hpcddp("wait", "bad", "--timeout", "120").returncode) == (3, 3)
    assert "Run bad failed" in done.stdout
    failed = hpcddp.status("bad")
    assert (failed["state"], failed["exit_code"]) == ("failed", 3)
    assert "exit code 3" in failed["reason"]


def test_a_process_that_cannot_start_is_named_with_its_error(hpcddp):
    hpcddp.submit("typo", "requeue.max_failures=0", command=["/no/such/program"])
    assert hpcddp("wait", "typo", "--timeout", "120").returncode != 0
    reason = hpcddp.status("typo")["reason"]
    assert "rank " in reason
    assert " on gpu-0" in reason
    assert "Cannot run `/no/such/program`" in reason


def test_cancel_ends_the_job_and_status_says_by_whom(hpcddp, cluster, tmp_path):
    job_id = hpcddp.submit("demo", command=[*UNTIL_TOLD, str(tmp_path / "never")])
    hpcddp.wait_for("demo", "running")
    assert hpcddp("cancel", "demo").returncode == 0
    cluster.wait(job_id, "CANCELLED")
    assert "cancelled by " in hpcddp.wait_for("demo", "cancelled")["reason"]
    assert hpcddp("wait", "demo", "--timeout", "120").returncode == 1


def test_a_job_cancelled_with_slurms_own_tool_is_cancelled(hpcddp, cluster, tmp_path):
    job_id = hpcddp.submit("demo", command=[*UNTIL_TOLD, str(tmp_path / "never")])
    hpcddp.wait_for("demo", "running")
    cluster.cancel(job_id)
    cluster.wait(job_id, "CANCELLED")
    assert hpcddp.status("demo")["state"] == "cancelled"


def test_a_requeued_run_tells_what_it_waits_for_and_goes_on(hpcddp, cluster, tmp_path):
    told = tmp_path / "told"
    job_id = hpcddp.submit("demo", command=[*UNTIL_TOLD, str(told)])
    hpcddp.wait_for("demo", "running")
    cluster.run(["scontrol", "requeue", job_id])
    cluster.run(["scontrol", "update", f"jobid={job_id}", "StartTime=now+600"])
    waiting = hpcddp.wait_for("demo", "requeued", "BeginTime")
    assert waiting["expected_start_time"] > waiting["submitted_time"]
    told.touch()
    cluster.run(["scontrol", "update", f"jobid={job_id}", "StartTime=now"])
    assert hpcddp("wait", "demo", "--timeout", "120").returncode == 0
    said = hpcddp("logs", "demo", "--attempt", "1").stdout
    assert said.splitlines()[-1] == "rank 0 is done"


def test_elements_of_an_array_are_told_apart(cluster, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    job_id = cluster.sbatch("#!/bin/sh\nsleep 600\n", "--array=0-1", "--output=/dev/null")
    cluster.wait(job_id, "RUNNING")
    cluster.cancel(f"{job_id}_0")
    cluster.wait_until(lambda: "" if element(job_id, 0) == "CANCELLED" else "not yet", 120)
    assert element(job_id, 1) == "RUNNING"


def element(job_id, index):
    return query_jobs([f"{job_id}_{index}"])[f"{job_id}_{index}"].state


def test_squeue_and_scontrol_agree_on_every_field(cluster, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    script = "#!/bin/sh\nexit "
    jobs = [cluster.sbatch(f"{script}{code}\n", "--output=/dev/null") for code in (0, 3)]
    jobs.append(cluster.sbatch("#!/bin/sh\nkill -9 $$\n", "--output=/dev/null"))
    for job_id in jobs:
        cluster.wait(job_id, {"COMPLETED", "FAILED"})
    jobs.append(cluster.sbatch(f"{script}0\n", "--hold", "--job-name=a b|c JobState=x"))
    jobs.append(cluster.sbatch(f"{script}0\n", "--begin=now+1hour"))
    by_squeue, answer = scheduler._ask_squeue(jobs)
    by_scontrol, _ = scheduler._ask_scontrol(jobs)
    assert answer.problem is None
    assert set(by_squeue) == set(jobs)
    assert by_squeue == by_scontrol
    codes = [by_squeue[job_id].exit_code for job_id in jobs[:3]]
    assert codes == [0, 3, 137]


def test_a_job_that_never_was_is_forgotten_also_without_accounting(cluster, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    assert query_jobs(["999999"])["999999"].forgotten
    assert query_jobs(["999999", "999998"])["999998"].forgotten


def test_a_controller_that_is_gone_is_said_so(cluster, monkeypatch, tmp_path):
    conf = tmp_path / "slurm.conf"
    conf.write_text(cluster.conf.read_text().replace("SlurmctldPort=6817", "SlurmctldPort=6999"))
    monkeypatch.setenv("SLURM_CONF", str(conf))
    monkeypatch.setattr(scheduler, "_TIMEOUT_S", 2.0)
    job = query_jobs(["1"])["1"]
    assert not job.forgotten
    assert "Slurm cannot be asked" in job.reason
