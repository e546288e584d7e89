"""A process that takes more memory than its job asked for, where Slurm limits it: a real kill."""

from pathlib import Path

import pytest
from hpcddp_user import Hpcddp

# Rank 1 takes a megabyte at a time; rank 0 would wait for it for ever.
GREEDY = [
    "python3",
    "-c",
    "import os, time\n"
    "taken = []\n"
    "while True:\n"
    "    if os.environ['SLURM_PROCID'] == '1':\n"
    "        taken.append(os.urandom(1 << 20))\n"
    "    else:\n"
    "        time.sleep(0.1)\n",
]


@pytest.fixture(scope="module")
def limited(new_cluster):
    """A cluster whose nodes hold jobs to the memory they asked for."""
    if not Path("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists():
        pytest.skip("this machine has no memory control groups (v1)")
    return new_cluster("limits", "--nodes=2", "--memory-limits")


def test_a_kill_for_want_of_memory_is_called_so_and_ends_the_run(limited, tmp_path):
    user = Hpcddp(limited, tmp_path / "runs")
    job_id = user.submit("greedy", "resources.mem=200M", command=GREEDY)
    limited.wait(job_id, "FAILED")
    status = user.status("greedy")
    assert status["state"] == "failed"
    assert [attempt["end"] for attempt in status["attempts"]] == ["out of memory"]
    assert "out of memory" in user("status", "greedy").stdout


def test_a_run_out_of_memory_counts_as_a_failure_that_may_be_tried_again(limited, tmp_path):
    user = Hpcddp(limited, tmp_path / "runs")
    words = ("resources.mem=200M", "requeue.max_failures=1")
    job_id = user.submit("again", *words, command=GREEDY)
    limited.wait(job_id, "FAILED", timeout=120)
    ends = [attempt["end"] for attempt in user.status("again")["attempts"]]
    assert ends == ["out of memory", "out of memory"]
    assert limited.show(job_id)["Restarts"] == "1"
