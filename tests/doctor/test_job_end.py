"""A doctor's job that leaves no report is a finding, too."""

from pathlib import Path

import pytest

from hpcddp.doctor.job_end import examine_end
from hpcddp.launch.scheduler import JobInfo
from hpcddp.launch.watch.job_words import why_not_launched

LOG = """\
slurmstepd-gpu-02: error: Could not open stdout file /data/runs/d/x.log: No such file or directory
srun: error: gpu-02: task 1: Exited with exit code 1
"""


@pytest.mark.parametrize(
    ("reason", "log", "name", "said"),
    [
        ("exit code 1", LOG, "run directory shared", "slurmstepd-gpu-02"),
        ("", "Error: /data/runs/d/config.yaml did not appear within 120 s", "run directory shared",
         "did not appear"),
        ("no Rank 1", "srun: error: task 1 launch failed: Slurmd could not connect IO",
         "run directory shared", "cannot open its log in /data/runs"),
        ("NODE_FAIL", "", "job", "NODE_FAIL"),
        ("", "bash: nosuchpython: No such file or directory\n", "job", "nosuchpython"),
        ("", "", "job", "no reason known"),
    ],
)  # fmt: skip
def test_why_there_is_no_report_is_told(reason, log, name, said):
    found = examine_end("login", "/data/runs", reason, log, "python -m hpcddp logs d")
    assert (found.name, found.status) == (name, "fail")
    assert said in found.found
    assert found.fix


def test_a_node_that_could_not_open_the_log_of_the_job_does_not_see_the_runs():
    job = JobInfo("7", "FAILED", "JobLaunchFailure", exit_code=181, nodes="gpu-[04-05]")
    reason = why_not_launched(job, Path("/data/runs/d/logs/batch.log"), 2)
    found = examine_end("login", "/data/runs", reason, "", "python -m hpcddp logs d")
    assert (found.name, found.status) == ("run directory shared", "fail")
    assert "gpu-04 could not open /data/runs/d/logs/batch.log" in found.found
    assert "doctor" not in found.found  # it has just been asked
    assert found.fix.startswith("export HPCDDP_RUNS_DIR=")
