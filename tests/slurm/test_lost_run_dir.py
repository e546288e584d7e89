"""The file system with the run directory vanishes under a running job, and comes back later."""

import pytest
from hpcddp_user import SMALLEST, Hpcddp

ENDLESS = (
    *SMALLEST, "train.max_steps=1000000", "log.every_steps=1", "requeue.max_failures=3",
)  # fmt: skip


class Disk:
    """A folder that this machine and all nodes see in another place, as long as it is mounted."""

    def __init__(self, cluster, folder):
        self.cluster, self.real, self.seen = cluster, folder / "real", folder / "runs"
        self.real.mkdir()
        self.seen.mkdir()

    def mount(self):
        mount = ["mount", "--bind", self.real, self.seen]
        self.cluster.run(mount, check=True)
        for node in self.cluster.nodes:
            self.cluster.node_exec(node, mount, check=True)

    def vanish(self, check=True):
        unmount = ["umount", "--lazy", self.seen]
        for node in self.cluster.nodes:
            self.cluster.node_exec(node, unmount, check=check)
        self.cluster.run(unmount, check=check)


@pytest.fixture
def disk(cluster, tmp_path):
    disk = Disk(cluster, tmp_path)
    disk.mount()
    yield disk
    disk.vanish(check=False)


def test_a_run_whose_file_system_vanishes_ends_as_a_failure_and_goes_on_once_it_is_back(disk):
    cluster, hpcddp = disk.cluster, Hpcddp(disk.cluster, disk.seen)
    job_id = hpcddp.submit("r", *ENDLESS, "checkpoint.every_steps=5")
    hpcddp.wait_for_event("r", "checkpoint", 2)
    disk.vanish()
    cluster.wait(job_id, "FAILED", timeout=120)
    shown = cluster.show(job_id)
    assert (shown["Restarts"], shown["ExitCode"]) == ("0", "1:0")
    assert list(disk.seen.iterdir()) == []  # nothing is begun in its place
    disk.mount()
    log = hpcddp.run_dir("r").rank_log(0, 0).read_text()
    assert log.count("is gone: two saves in a row have not found it") == 1
    status = hpcddp.status("r")
    assert (status["state"], status["exit_code"]) == ("failed", 1)
    saved = hpcddp.events("r", "checkpoint")[-1]["step"]
    assert hpcddp("resume", "r").returncode == 0
    assert hpcddp.wait_for_event("r", "resumed", timeout=120)["step"] >= saved


def test_a_run_that_is_told_to_stop_without_its_file_system_is_not_revived_for_ever(disk):
    cluster, hpcddp = disk.cluster, Hpcddp(disk.cluster, disk.seen)
    job_id = hpcddp.submit("r", *ENDLESS, "checkpoint.every_steps=1000000")
    hpcddp.wait_for_event("r", "first_step")
    disk.vanish()
    cluster.run(["scancel", "--signal=TERM", job_id])
    cluster.wait(job_id, "FAILED", timeout=120)
    shown = cluster.show(job_id)
    # Its script asks for the requeue, and then there is no folder for the log.
    assert (shown["Restarts"], shown["Reason"]) == ("1", "JobLaunchFailure")
    assert list(disk.seen.iterdir()) == []
    disk.mount()
    assert hpcddp.status("r")["state"] == "failed"
    assert [event["event"] for event in hpcddp.events("r")].count("started") == 1
