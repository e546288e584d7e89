"""`bench allreduce` on this machine: as a job, under torchrun, and what it refuses."""

import json
import os
import subprocess
import sys

import pytest

from hpcddp.cluster.layout import process_environment

SMALL = ["--sizes", "1KiB..8KiB", "--seconds-per-size", "0.01"]


@pytest.fixture
def bench(tmp_path):
    """Return a function that runs `bench allreduce` with these words in a place of its own."""
    foreign = ("SLURM_", "HPCDDP_")
    environ = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    environ |= {"HPCDDP_RUNS_DIR": str(tmp_path / "runs"), "OMP_NUM_THREADS": "1"}

    def bench(*words, launcher=(), **more):
        python = [sys.executable, "-m", *launcher]
        command = [*python, *([] if launcher else ["hpcddp"]), "bench", "allreduce", *words]
        options = {"capture_output": True, "text": True, "timeout": 500, "cwd": tmp_path}
        return subprocess.run(command, env=environ | more, **options)

    return bench


def test_a_local_job_leaves_the_report_that_is_printed(bench, tmp_path):
    done = bench("--cluster", "local", "--nodes", "2", "--name", "b", "--json", *SMALL)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert json.loads((tmp_path / "runs/b/reports/allreduce.json").read_text()) == report
    assert [row["bytes"] for row in report["rows"]] == [1024, 2048, 4096, 8192]
    for row in report["rows"]:
        assert row["algbw_gb_per_s"] == pytest.approx(row["bytes"] / row["seconds"] / 1e9)
        assert row["busbw_gb_per_s"] == row["algbw_gb_per_s"]  # of two processes
        assert row["seconds_quartile_1"] <= row["seconds"] <= row["seconds_quartile_3"]
        assert (row["n"] >= 3, row["discarded"]) == (True, 3)
    assert (report["world_size"], report["nodes"], report["backend"]) == (2, 2, "gloo")
    assert report["hosts"] == ["node0", "node1"]
    log = (tmp_path / "runs/b/logs/attempt-000/rank-0000.log").read_text()
    assert "exported by you" not in log  # what the job itself has settled
    page = tmp_path / "runs/b/reports/allreduce.html"
    assert f"Page {page}" in done.stderr
    assert "<h1>All-reduce, gloo</h1>" in page.read_text()


def test_under_torchrun_the_table_is_printed_by_the_main_process_alone(bench):
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node=3", "-m", "hpcddp"]
    done = bench(*SMALL, launcher=torchrun)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all-reduce, gloo, 3 processes on 1 node, torch") == 1
    lines = [line.split() for line in done.stdout.splitlines()]
    sizes = [line[0] for line in lines if line and line[0].isdigit()]
    assert sizes == ["1024", "2048", "4096", "8192"]
    assert "every sum was checked" in done.stdout


@pytest.mark.parametrize("wish", [["--backend", "nccl"], ["train.device=cuda"]])
def test_a_failure_in_the_job_reaches_the_shell_with_its_reason(bench, tmp_path, wish):
    words = ["--cluster", "local", "--nodes", "2", "--name", "b", *wish]
    done = bench(*words, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert "train.device=cuda asks for a GPU" in done.stdout
    assert not (tmp_path / "runs/b/reports").exists()


def test_the_others_are_waited_for_as_long_as_configured(bench):
    second_is_missing = process_environment({}, nodes=1, processes_per_node=2, global_rank=0)
    done = bench("train.rendezvous_timeout_s=1", *SMALL, **second_is_missing)
    assert done.returncode == 1
    assert "within 1 s" in done.stderr


def test_a_lone_process_of_a_job_is_told_how_to_become_two(bench):
    done = bench(*SMALL, HPCDDP_LAUNCHER="single")
    assert done.returncode == 2
    assert "srun --ntasks=2" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cluster", "local"], "Use --nodes 2"),
        (["--sizes", "1KiB..3KiB"], "no range of powers of two"),
        (["--sizes", "8KiB..4KiB"], "no range of powers of two"),
        (["--sizes", "512..1024"], "from 1KiB upwards"),
        (["--cluster", "local", "--nodes", "2", "--seconds-per-size", "nan"], "no number of"),
        (["--cluster", "local", "--nodes", "2", "--seconds-per-size", "inf"], "no number of"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_sent(bench, tmp_path, words, said):
    done = bench(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "runs").exists()
