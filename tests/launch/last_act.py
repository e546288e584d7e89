"""What Slurm and srun say to the last act of a job, and what that orders."""

import dataclasses

from hpcddp.launch.scheduler import JobInfo

ONE_STEP = {"train": {"max_steps": 1}}
FIRST = {"SLURM_JOB_ID": "7", "HPCDDP_ATTEMPT": "0"}
SILENT = JobInfo("7", reason="Unable to contact slurm controller (connect failure)")
RUNS, COMES_BACK = (JobInfo("7", state="RUNNING", restarts=n) for n in (0, 1))
CANCELLED = JobInfo("7", state="COMPLETING", restarts=0)
PREEMPTED = dataclasses.replace(CANCELLED, end_time=9.0, preempt_time=9.0)
WHILE_IT_RUNS, IN_ANY_CASE = ["requeue", "incomplete", "7"], ["requeue", "7"]
NOT_REACHED = "srun: error: Task launch for StepId=7.0 failed on node n2: {}"


def srun_said(run_dir, attempt, *lines):
    """Let the batch log tell these lines of that attempt."""
    with run_dir.batch_log.open("a") as log:
        log.write("\n".join([f"hpcddp: attempt {attempt}", *lines]) + "\n")
