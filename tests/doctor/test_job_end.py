"""A doctor's job that leaves no report is a finding, too."""

import pytest

from hpcddp.doctor.job_end import examine_end

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
