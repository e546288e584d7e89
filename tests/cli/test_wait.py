"""`wait` ends when the run has ended, with the run's exit code."""

import itertools
import os
import threading
import time
from functools import partial

import pytest
from click.testing import CliRunner

from hpcddp.cli import wait
from hpcddp.cli.wait import command
from hpcddp.launch.scheduler import JobInfo
from hpcddp.launch.supervisor import record_supervisor
from hpcddp.launch.watch import observer
from hpcddp.run_dir import RunDir


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    """A local run that lives as long as this process."""
    monkeypatch.setenv("HPCDDP_RUNS_DIR", str(tmp_path))
    monkeypatch.setattr(wait, "_POLL_S", 0.02)
    run_dir = RunDir(tmp_path / "demo")
    run_dir.path.mkdir()
    record_supervisor(run_dir)
    run_dir.append_event("submitted", launcher="local", job_id=f"local-{os.getpid()}")
    run_dir.append_event("started", attempt=0)
    return run_dir


def waited(*words):
    return CliRunner().invoke(command, ["demo", *words], catch_exceptions=False)


def test_it_waits_through_a_requeue_to_the_end(run_dir):
    def live():
        for kind in ("stopped", "requeued", "started"):
            run_dir.append_event(kind)
            time.sleep(0.05)
        run_dir.append_event("finished", accuracy=0.97)

    life = threading.Timer(0.1, live)
    life.start()
    result = waited()
    life.join()
    assert run_dir.read_events()[-1]["event"] == "finished"
    assert (result.exit_code, result.stdout) == (0, "Run demo finished: test accuracy 97.00 %\n")


def test_a_failed_run_passes_on_its_exit_code(run_dir):
    run_dir.append_event("failed", exit_code=3, reason="exit code 3")
    result = waited()
    assert (result.exit_code, "failed, exit code 3" in result.output) == (3, True)


def test_a_time_out_exits_with_124_and_leaves_the_run_alone(run_dir):
    began = time.monotonic()
    result = waited("--timeout", "0.2")
    assert time.monotonic() - began >= 0.2
    assert (result.exit_code, "still running" in result.stderr) == (124, True)


def test_why_a_run_does_not_start_is_said_once(run_dir, monkeypatch):
    run_dir.append_event("submitted", launcher="slurm", job_id="38")
    waits = JobInfo("38", "PENDING", reason="PartitionConfig")
    monkeypatch.setattr(observer, "query_jobs", lambda ids: {"38": waits})
    result = waited("--timeout", "0.2")
    assert result.exit_code == 124
    assert result.stderr.count("pending: PartitionConfig: it may never start") == 1


def test_that_nobody_can_be_asked_is_said_once_however_long_ago_the_run_wrote(run_dir, monkeypatch):
    clock = itertools.count(time.time(), 0.5).__next__
    monkeypatch.setattr(wait, "Observer", partial(observer.Observer, clock=clock))
    run_dir.append_event("submitted", launcher="torchrun")
    run_dir.append_event("started", attempt=0)
    result = waited("--timeout", "0.2")
    assert result.stderr.count("running: its job is not one that can be asked about") == 1


def test_a_cancelled_run_exits_with_1(run_dir, monkeypatch):
    run_dir.append_event("submitted", launcher="slurm", job_id="38")
    monkeypatch.setattr(observer, "query_jobs", lambda ids: {"38": JobInfo("38", "CANCELLED")})
    assert waited().exit_code == 1


def test_a_run_that_nobody_can_tell_about_ends_the_waiting_with_1(run_dir, monkeypatch):
    run_dir.append_event("submitted", launcher="slurm", job_id="38")
    gone = JobInfo("38", reason="Slurm knows no job 38 (any more)", forgotten=True)
    monkeypatch.setattr(observer, "query_jobs", lambda ids: {"38": gone})
    monkeypatch.setattr(observer, "_FILES_LAG_S", 0.1)
    result = waited()
    assert result.exit_code == 1
    assert "How run demo ended is not known: Slurm knows no job 38" in result.output
