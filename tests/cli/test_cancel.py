"""`cancel` ends a run so that nothing starts it again, and says when it could not."""

import errno
import json
import os
import stat
import subprocess
import sys

import pytest
from click.testing import CliRunner

from hpcddp.cli.cancel import command
from hpcddp.errors import HpcddpError
from hpcddp.launch.supervisor import record_supervisor
from hpcddp.run_dir import RunDir

RUNNING = "echo '38|RUNNING|main|0|0|1|1|gpu-01|None|'"
SUPERVISOR = """
import sys, time
from pathlib import Path
from hpcddp.launch.supervisor import record_supervisor
from hpcddp.run_dir import RunDir
record_supervisor(RunDir(Path(sys.argv[1])))
print(flush=True)
time.sleep(600)
"""


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("HPCDDP_RUNS_DIR", str(tmp_path))
    run_dir = RunDir(tmp_path / "demo")
    run_dir.path.mkdir()
    return run_dir


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Make Slurm's tools of shell lines; `scancel` notes its words and what had been recorded."""
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    monkeypatch.setenv("PATH", f"{bin_dir}:/usr/bin:/bin")

    def make(**scripts):
        for name, body in {"sacct": "exit 1", **scripts}.items():
            path = bin_dir / name
            path.write_text(f"#!/bin/sh\n{body}\n")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return make


def cancel(*runs):
    return CliRunner().invoke(command, [*runs] or ["demo"], catch_exceptions=False)


def kinds(run_dir):
    return [event["event"] for event in run_dir.read_events()]


@pytest.mark.parametrize("job_id", ["38", "38_1"])
def test_the_newest_job_is_cancelled_after_that_was_recorded(run_dir, tools, tmp_path, job_id):
    run_dir.append_event("submitted", launcher="slurm", job_id="12")
    run_dir.append_event("failed", exit_code=1)
    run_dir.append_event("submitted", launcher="slurm", job_id=job_id)
    note = tmp_path / "note"
    tools(
        squeue=RUNNING.replace("38", job_id, 1),
        scancel=f'echo "$@" > {note}; tail -n 1 {run_dir.events} >> {note}',
    )
    result = cancel()
    assert result.exit_code == 0
    words, last_event = note.read_text().splitlines()
    assert words == job_id
    assert json.loads(last_event)["event"] == "cancelled"
    assert json.loads(last_event)["by"]
    assert f"job {job_id} cancelled" in result.output


def test_a_refusal_is_told_and_exits_with_1(run_dir, tools):
    run_dir.append_event("submitted", launcher="slurm", job_id="38")
    tools(squeue=RUNNING, scancel="echo 'scancel: error: Access denied' >&2; exit 1")
    result = cancel()
    assert result.exit_code == 1
    assert "Access denied" in result.stderr
    assert "python -m hpcddp cancel demo" in result.stderr


def test_what_was_not_cancelled_is_cancelled_again_although_slurm_is_silent(run_dir, tools):
    run_dir.append_event("submitted", launcher="slurm", job_id="38")
    down = "echo 'error: Unable to contact slurm controller' >&2; exit 1"
    tools(squeue=down, scancel=down)
    assert [cancel().exit_code, cancel().exit_code] == [1, 1]
    tools(squeue=down, scancel="exit 0")
    assert "job 38 cancelled" in cancel().output
    assert "is cancelled already" in cancel().output


@pytest.fixture
def full_disk(monkeypatch):
    """No event can be written any more once it is called."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    return lambda: monkeypatch.setattr(RunDir, "append_event", full)


def test_on_a_full_disk_the_job_is_cancelled_all_the_same(run_dir, tools, full_disk, tmp_path):
    run_dir.append_event("submitted", launcher="slurm", job_id="38")
    tools(squeue=RUNNING, scancel=f"touch {tmp_path}/told")
    full_disk()
    result = cancel()
    assert (result.exit_code, (tmp_path / "told").exists()) == (0, True)
    assert "`cancelled` is not recorded: no space left on device" in result.stderr


def test_what_a_full_disk_and_slurm_refuse_together_promises_nothing(run_dir, tools, full_disk):
    run_dir.append_event("submitted", launcher="slurm", job_id="38")
    tools(squeue=RUNNING, scancel="echo 'scancel: error: Access denied' >&2; exit 1")
    full_disk()
    result = cancel()
    assert result.exit_code == 1
    assert "Access denied. The job may go on" in result.stderr
    assert "will not start again" not in result.stderr


def test_an_event_log_that_must_not_be_written_is_an_error(run_dir, tools, monkeypatch):
    def forbidden(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    run_dir.append_event("submitted", launcher="slurm", job_id="38")
    tools(squeue=RUNNING, scancel="exit 9")
    monkeypatch.setattr(RunDir, "append_event", forbidden)
    with pytest.raises(PermissionError):
        cancel()


def test_without_scancel_nothing_is_recorded(run_dir, monkeypatch, tmp_path):
    run_dir.append_event("submitted", launcher="slurm", job_id="38")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(HpcddpError, match="scancel 38"):
        cancel()
    assert kinds(run_dir) == ["submitted"]


@pytest.mark.parametrize("kind", ["finished", "failed", "cancelled"])
def test_a_run_that_has_ended_is_left_alone(run_dir, tools, kind):
    run_dir.append_event("submitted", launcher="slurm", job_id="38")
    run_dir.append_event(kind, exit_code=1)
    tools(squeue="exit 0", scancel="exit 9")
    result = cancel()
    assert (result.exit_code, f"is {kind} already" in result.output) == (0, True)
    assert kinds(run_dir) == ["submitted", kind]


def test_a_cancel_that_did_not_work_can_be_repeated(run_dir, tools):
    run_dir.append_event("submitted", launcher="slurm", job_id="38")
    tools(squeue=RUNNING, scancel="exit 1")
    assert cancel().exit_code == 1
    tools(squeue=RUNNING, scancel="exit 0")
    assert cancel().exit_code == 0


def test_of_several_runs_each_is_tried_and_told(run_dir, tools, tmp_path):
    names = ["demo", "other", "third"]
    for job_id, name in enumerate(names, start=38):
        (tmp_path / name).mkdir(exist_ok=True)
        RunDir(tmp_path / name).append_event("submitted", launcher="slurm", job_id=str(job_id))
    tools(
        squeue="; ".join(RUNNING.replace("38", str(job_id)) for job_id in (38, 39, 40)),
        scancel='[ "$1" = 39 ] && { echo "scancel: error: Access denied" >&2; exit 1; }; exit 0',
    )
    result = cancel("no-such-run", "other", "demo", "third", "demo")
    assert result.exit_code == 1
    assert "Error: run no-such-run: " in result.stderr
    assert "job 39 was not cancelled: " in result.stderr
    assert result.stdout.splitlines() == [
        "Run demo: job 38 cancelled.",
        "Run third: job 40 cancelled.",
    ]
    assert cancel("demo", "third").exit_code == 0


def test_a_run_that_submit_did_not_send_cannot_be_cancelled(run_dir):
    run_dir.append_event("submitted", launcher="torchrun", job_id="pid-1")
    with pytest.raises(HpcddpError, match="launcher: torchrun"):
        cancel()


def test_where_the_record_of_the_submission_is_gone_the_job_is_named(run_dir, tools):
    tools(squeue=RUNNING, scancel="exit 9")
    run_dir.events.touch()
    with pytest.raises(HpcddpError, match="does not say how run `demo` was sent, and names no job"):
        cancel()
    run_dir.append_event("checkpoint_failed", attempt=0, job_id="80")
    with pytest.raises(HpcddpError, match=r"names job 80.*type: scancel 80"):
        cancel()
    assert kinds(run_dir) == ["checkpoint_failed"]
    run_dir.append_event("checkpoint_failed", attempt=0, job_id="pid-9")
    with pytest.raises(HpcddpError, match="names pid-9: stop that where you started it"):
        cancel()


def test_a_local_run_is_stopped_with_its_supervisor(run_dir):
    words = [sys.executable, "-c", SUPERVISOR, str(run_dir.path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as supervisor:
        supervisor.stdout.readline()
        run_dir.append_event("submitted", launcher="local", job_id=f"local-{supervisor.pid}")
        run_dir.append_event("started", attempt=0)
        assert cancel().exit_code == 0
        supervisor.wait(timeout=100)
    assert kinds(run_dir) == ["submitted", "started", "cancelled"]
    result = cancel()
    assert "is cancelled already" in result.output


def test_a_local_run_is_stopped_on_a_full_disk_too(run_dir, full_disk):
    words = [sys.executable, "-c", SUPERVISOR, str(run_dir.path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as supervisor:
        supervisor.stdout.readline()
        run_dir.append_event("submitted", launcher="local", job_id=f"local-{supervisor.pid}")
        run_dir.append_event("started", attempt=0)
        full_disk()
        assert cancel().exit_code == 0
        supervisor.wait(timeout=100)


def test_a_local_run_on_another_host_is_not_touched(run_dir):
    record_supervisor(run_dir)
    record_path = run_dir.path / "supervisor.json"
    record_path.write_text(json.dumps(json.loads(record_path.read_text()) | {"host": "elsewhere"}))
    run_dir.append_event("submitted", launcher="local", job_id=f"local-{os.getpid()}")
    with pytest.raises(HpcddpError, match="on host elsewhere"):
        cancel()
    assert kinds(run_dir) == ["submitted"]
