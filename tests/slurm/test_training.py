"""Real training on a real Slurm: to the end, through a stop and preemption, into failure."""

import os
import re
import signal
import time

import pytest
from hpcddp_user import SMALLEST, losses
from patience import WAITS_FOR_A_STOP

from hpcddp.run_dir import read_json_lines

# Small enough for two shared cores, large enough to be caught in the middle.
TINY = ("train.model=resnet18", "train.global_batch=16", "log.every_steps=1", "train.seed=3")
LONG = (*TINY, "train.max_steps=400", "checkpoint.every_steps=400")
METRICS = {
    "step", "epoch", "loss", "lr", "images_per_s", "images_per_s_per_gpu", "data_wait_s", "step_s",
}  # fmt: skip


def kinds(run_dir):
    return [event["event"] for event in run_dir.read_events()]


def test_two_nodes_train_to_the_end_and_everything_is_told(hpcddp, cluster):
    words = [*TINY, "train.max_steps=4"]
    done = hpcddp(
        "submit", "--nodes", "2", "--cluster", "testcluster", "--name", "r", "--follow", *words,
        timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    assert "test accuracy" in done.stdout
    run_dir, status = hpcddp.run_dir("r"), hpcddp.status("r")
    assert (status["state"], status["step"], status["exit_code"]) == ("finished", 4, 0)
    story = ["started", "first_step", "checkpoint", "finished"]
    assert [kind for kind in kinds(run_dir) if kind in story] == story
    started = next(event for event in run_dir.read_events() if event["event"] == "started")
    assert (started["world_size"], started["hosts"]) == (2, cluster.nodes[:2])
    assert set(next(read_json_lines(run_dir.metrics))) >= METRICS
    kept = cluster.run(["scontrol", "write", "batch_script", status["job_id"], "-"])
    assert kept.stdout.rstrip("\n") == run_dir.script.read_text().rstrip("\n")
    same = ["submit", "--nodes", "2", "--cluster", "local", "--name", "here", "--follow", *words]
    assert hpcddp(*same, timeout=900).returncode == 0
    assert losses(hpcddp.run_dir("here")) == losses(run_dir)
    compared = hpcddp("checkpoint", "diff", "r", "here")
    assert (compared.returncode, "identical" in compared.stdout) == (0, True)


def test_a_signalled_job_saves_comes_back_and_ends_with_the_same_bits(hpcddp, cluster, tmp_path):
    lines = WAITS_FOR_A_STOP.format(name="r", rank=1, step=5)
    hpcddp.begin_pythons_with(tmp_path / "site", lines)
    words = [*TINY, "train.max_steps=12"]
    job_id = hpcddp.submit("r", *words)
    hpcddp.wait_for_step("r", 2)
    os.kill(hpcddp.pid_of_rank(job_id, 1), signal.SIGUSR2)  # one rank is told, all stop
    hpcddp.wait_for_event("r", "requeued", timeout=200)
    run_dir = hpcddp.run_dir("r")
    stopped = next(event for event in run_dir.read_events() if event["event"] == "stopped")
    assert 2 <= stopped["step"] <= 6
    status = hpcddp.wait_for("r", "finished", timeout=600)
    assert (status["attempt"], status["job_id"], status["step"]) == (1, job_id, 12)
    first, second = status["attempts"]
    assert (first["end"], first["steps_lost"], second["end"]) == ("signalled", 0, "finished")
    assert first["signal_to_exit_s"] > 0
    assert second["restart_to_first_step_s"] > 0
    resumed = next(event for event in run_dir.read_events() if event["event"] == "resumed")
    assert resumed["step"] == stopped["step"]
    hpcddp.submit("uninterrupted", *words)
    hpcddp.wait_for("uninterrupted", "finished", timeout=600)
    assert losses(hpcddp.run_dir("uninterrupted")) == losses(run_dir)
    compared = hpcddp("checkpoint", "diff", "r", "uninterrupted")
    assert compared.returncode == 0, compared.stdout


def test_a_preempted_job_loses_no_step(hpcddp, cluster, tmp_path):
    lines = WAITS_FOR_A_STOP.format(name="r", rank=0, step=5)
    hpcddp.begin_pythons_with(tmp_path / "site", lines)
    job_id = hpcddp.submit("r", "--partition", "preempt-grace", *TINY, "train.max_steps=12")
    hpcddp.wait_for_step("r", 2)
    cluster.preempt(job_id)
    status = hpcddp.wait_for("r", "finished", timeout=600)
    assert (status["attempt"], status["step"]) == (1, 12)
    steps = [r["step"] for r in read_json_lines(hpcddp.run_dir("r").metrics) if "loss" in r]
    assert steps == list(range(1, 13))  # none twice, none missing
    assert cluster.show(job_id)["Restarts"] == "1"
    reasons = [e["reason"] for e in hpcddp.run_dir("r").read_events() if e["event"] == "requeued"]
    assert reasons == ["preempted"]


@pytest.mark.slow
def test_a_run_goes_on_with_fewer_and_with_more_nodes(hpcddp):
    """What becomes of the losses then, tests/train/test_resume.py shows."""
    hpcddp.submit("r", *TINY, "train.max_steps=2")
    hpcddp.wait_for("r", "finished", timeout=300)
    for nodes, steps in ((1, 4), (4, 6)):
        words = [f"resources.nodes={nodes}", f"train.max_steps={steps}"]
        assert hpcddp("resume", "r", *words).returncode == 0
        hpcddp.wait_for("r", "finished", timeout=300)
    started = hpcddp.events("r", "started")
    sizes = [(e["world_size"], e["micro_batch"], e["accumulation_steps"]) for e in started]
    assert sizes == [(2, 8, 1), (1, 8, 2), (4, 4, 1)]
    assert sorted(losses(hpcddp.run_dir("r"))) == [1, 2, 3, 4, 5, 6]


@pytest.fixture
def images_with_a_broken_one(tmp_path):
    """An image folder in which one training file is no image."""
    from PIL import Image

    for split, count in (("train", 16), ("val", 4)):
        for label in ("a", "b"):
            folder = tmp_path / "images" / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (32, 32), (8 * number, 0, 0)).save(folder / f"{number:02d}.JPEG")
    (tmp_path / "images/train/b/07.JPEG").write_bytes(b"not an image")
    return tmp_path / "images"


def kill_wait_s(cluster):
    """Seconds between the SIGTERM and the SIGKILL of a step that is ended."""
    said = cluster.run(["scontrol", "show", "config"]).stdout
    return int(re.search(r"^KillWait += (\d+) sec", said, re.MULTILINE)[1])


def test_a_rank_that_raises_ends_the_job_and_status_names_its_error(
    hpcddp, cluster, images_with_a_broken_one
):
    data = ("data.name=imagenet", f"data.root={images_with_a_broken_one}")
    job_id = hpcddp.submit("r", *LONG, *data)
    status = hpcddp.wait_for("r", "failed", timeout=600)
    assert cluster.wait(job_id, {"FAILED"}) == "FAILED"
    assert "07.JPEG cannot be decoded" in status["reason"]
    failures = [e for e in hpcddp.run_dir("r").read_events() if e["event"] == "failed"]
    ended = time.strptime(cluster.show(job_id)["EndTime"], "%Y-%m-%dT%H:%M:%S")
    # They are ended, long before they would be through.
    assert time.mktime(ended) - failures[0]["time"] < kill_wait_s(cluster) + 60
    rank = failures[0]["global_rank"]
    assert f"see {hpcddp.run_dir('r').rank_log(0, rank)}" in status["reason"]
    assert "07.JPEG" in hpcddp("logs", "r", "--rank", str(rank)).stdout
    assert hpcddp("wait", "r").returncode not in (0, 75)


FAILS_IN_A_STEP = """
    import hpcddp.train.loop as loop
    def fail(*_):
        raise RuntimeError("boom")
    if env["SLURM_PROCID"] == "1":
        loop.set_lr = fail
"""


def test_an_error_that_nobody_expected_is_named_with_its_rank_and_traceback(hpcddp, tmp_path):
    hpcddp.begin_pythons_with(tmp_path / "site", FAILS_IN_A_STEP)
    hpcddp.submit("r", *SMALLEST)
    status = hpcddp.wait_for("r", "failed", timeout=300)
    log = hpcddp.run_dir("r").rank_log(0, 1)
    assert "rank 1 on gpu-02: RuntimeError: boom" in status["reason"]
    assert f"see {log}" in status["reason"]
    told = log.read_text()[log.read_text().index("Traceback") :]
    assert "in train_step" in told
    assert told.rstrip().endswith("RuntimeError: boom")


def test_a_rank_killed_outright_ends_the_job(hpcddp, cluster):
    job_id = hpcddp.submit("r", *LONG)
    hpcddp.wait_for_step("r", 2)
    os.kill(hpcddp.pid_of_rank(job_id, 1), signal.SIGKILL)
    cluster.wait(job_id, "FAILED")
    status = hpcddp.status("r")
    assert status["state"] == "failed"
    assert "rank 1" in status["reason"], status["reason"]
    assert not cluster.run(["squeue", "--noheader"]).stdout


def test_a_cancelled_run_never_comes_back(hpcddp, cluster):
    job_id = hpcddp.submit("r", *LONG)
    hpcddp.wait_for_step("r", 1)
    assert hpcddp("cancel", "r").returncode == 0
    assert cluster.wait(job_id, {"CANCELLED"}, timeout=200) == "CANCELLED"
    assert hpcddp.status("r")["state"] == "cancelled"
    time.sleep(10)  # a requeued job of this cluster is back after about 8 s
    assert cluster.show(job_id)["JobState"] == "CANCELLED"
    assert "requeued" not in kinds(hpcddp.run_dir("r"))


def test_two_jobs_on_one_node_do_not_meet(hpcddp, cluster):
    where = [f"resources.sbatch.nodelist={cluster.nodes[0]}", "resources.processes_per_node=2"]
    words = ["--nodes", "1", *where, "resources.sbatch.hold=true", *SMALLEST]
    jobs = [hpcddp.submit(name, *words) for name in ("one", "two")]
    assert cluster.run(["scontrol", "release", *jobs]).returncode == 0
    for name in ("one", "two"):
        hpcddp.wait_for(name, "finished", timeout=600)
    records = [cluster.show(job_id) for job_id in jobs]
    begin, end = ([record[key] for record in records] for key in ("StartTime", "EndTime"))
    assert max(begin) < min(end)  # both were there at once
    assert losses(hpcddp.run_dir("one")) == losses(hpcddp.run_dir("two"))
