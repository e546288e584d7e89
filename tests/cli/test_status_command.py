"""`status` prints what people and programs need, cheaply, and watches without hurry."""

import json
import os
import random
import resource
import stat
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from hpcddp.cli import status
from hpcddp.cli.status import command
from hpcddp.errors import HpcddpError
from hpcddp.run_dir import RunDir, append_json_line


@pytest.fixture
def root(tmp_path, monkeypatch):
    """An empty folder for runs, on a machine whose squeue knows one running and one waiting job."""
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    lines = [
        "1|RUNNING|main|0|0|1795963854|1795967454|gpu-[01-02]|None|",
        "2|PENDING|main|0|0|1700100000|1700200000||Resources|",
    ]
    squeue.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    squeue.chmod(squeue.stat().st_mode | stat.S_IXUSR)
    root = tmp_path / "runs"
    root.mkdir()
    monkeypatch.setenv("PATH", f"{squeue.parent}:/usr/bin:/bin")
    monkeypatch.setenv("HPCDDP_RUNS_DIR", str(root))
    return root


def make_run(root, name, job_id, *kinds):
    run_dir = RunDir(root / name)
    run_dir.batch_log.parent.mkdir(parents=True)
    run_dir.batch_log.touch()
    run_dir.append_event("submitted", launcher="slurm", job_id=job_id, cluster="generic")
    for kind in kinds:
        run_dir.append_event(kind, attempt=0, exit_code=1, max_steps=40)
    return run_dir


def shown(*words):
    result = CliRunner().invoke(command, words, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_no_runs_are_no_error(root):
    assert shown() == f"No runs in {root}.\n"
    assert json.loads(shown("--json")) == []


def test_the_table_has_a_line_for_each_run_newest_first(root):
    run_dir = make_run(root, "old run", "1", "started")
    run_dir.metrics.write_text('{"step": 12, "loss": 1.0, "images_per_s": 312.44}\n')
    make_run(root, "new", "2")
    header, new, old = shown().splitlines()
    assert header.split() == ["RUN", "STATE", "STEP", "IMAGES/S", "ATTEMPT", "JOB", "REASON"]
    assert new.split()[:2] == ["new", "pending"]
    assert "Resources; expected start 2023-11-1" in new
    assert old.split() == ["old", "run", "running", "12/40", "312", "0", "1"]


def test_a_speed_that_needs_a_label_is_never_shown_without(root):
    run_dir = make_run(root, "demo", "1", "started")
    record = '{"step": 12, "loss": 1.0, "images_per_s": 8.0, "label": "DP on threads"}'
    run_dir.metrics.write_text(record + "\n")
    assert shown().splitlines()[2:] == ["demo: images/s of DP on threads"]
    assert "label      DP on threads\n" in shown("demo")
    assert json.loads(shown("demo", "--json"))["label"] == "DP on threads"


def test_a_run_of_somebody_else_does_not_hide_the_others(root, monkeypatch):
    make_run(root, "mine", "1")
    theirs = make_run(root, "theirs", "2").path
    allows = os.access  # root, as which tests may run, could read it

    def refuses_theirs(path, mode):
        return theirs not in (path, *path.parents) and allows(path, mode)

    monkeypatch.setattr(os, "access", refuses_theirs)
    assert [line.split()[0] for line in shown().splitlines()] == ["RUN", "mine"]


def test_lines_that_hpcddp_has_not_written_are_passed_over(root):
    events = make_run(root, "demo", "1", "started").events
    for line in (b"\xff\x00{", b"[1]", b"null", b'{"event": 5}', b'{"event": null}', b"{}"):
        events.write_bytes(events.read_bytes() + line + b"\n")
    assert shown().splitlines()[1].split()[:2] == ["demo", "running"]


FIELDS = [
    "event", "time", "attempt", "job_id", "launcher", "host", "hosts", "reason", "exit_code",
    "error", "step", "loss", "epoch", "accuracy", "images_per_s", "max_steps", "global_rank",
    "world_size", "signal_time", "end_time", "began", "last_step", "nodes", "bytes", "seconds",
    "stall_s", "suspected_ranks", "again", "failure", "by", "label", "afterok",
]  # fmt: skip
KINDS = [
    "submitted", "launched", "started", "resumed", "first_step", "checkpoint", "signal", "stopped",
    "stop_reason", "requeued", "ended", "failed", "cancelled", "cancel_failed", "hang",
]  # fmt: skip
VALUES = [None, True, -1, 2**70, 1.5, float("nan"), "x", [], ["a"], [1], {}, {"a": 1}]


@pytest.mark.parametrize("seed", range(30))
def test_values_of_any_type_do_not_hide_the_run_nor_the_others(root, seed):
    draw = random.Random(seed)
    run_dir = make_run(root, "odd", "38", *draw.choices(KINDS, k=6))
    for _ in range(12):
        record = {name: draw.choice(VALUES) for name in draw.sample(FIELDS, 8)}
        append_json_line(run_dir.events, {"event": draw.choice(KINDS)} | record)
        append_json_line(run_dir.metrics, record)
    make_run(root, "plain", "39", "submitted")
    assert {status["run"] for status in json.loads(shown("--json"))} == {"odd", "plain"}
    assert "odd" in shown("odd")


def test_one_run_is_one_object_and_all_are_a_list(root):
    run_dir = make_run(root, "demo", "1", "started")
    run_dir.metrics.write_text('{"step": 12, "loss": NaN, "epoch": 0.5, "images_per_s": 8.0}\n')
    one = json.loads(shown("demo", "--json"), parse_constant=pytest.fail)
    needed = {
        "run": "demo", "state": "running", "step": 12, "max_steps": 40, "epoch": 0.5,
        "images_per_s": 8.0, "attempt": 0, "job_id": "1", "reason": "", "loss": None,
        "run_dir": str(run_dir.path), "nodes": "gpu-[01-02]",
    }  # fmt: skip
    assert {key: one[key] for key in needed} == needed
    assert json.loads(shown("--json")) == [one]


def test_details_name_the_failing_rank_its_error_and_its_log(root):
    run_dir = make_run(root, "demo", "1", "started")
    run_dir.append_event("failed", attempt=0, global_rank=3, exit_code=1, error="ValueError: bad")
    run_dir.append_event("failed", attempt=0, exit_code=1, reason="exit code 1")
    text = shown("demo")
    assert "state      failed\n" in text
    assert "rank 3 on " in text
    assert "ValueError: bad" in text
    assert str(run_dir.rank_log(0, 3)) in text


def test_without_slurm_the_files_still_tell(root, monkeypatch, tmp_path):
    make_run(root, "done", "1", "started", "finished")
    make_run(root, "open", "2")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    states = {each["run"]: each for each in json.loads(shown("--json"))}
    assert states["done"]["state"] == "finished"
    assert states["open"]["state"] == "unknown"
    assert "`squeue` was not found on PATH" in states["open"]["reason"]


def test_an_unknown_run_and_contradicting_options_are_refused(root):
    make_run(root, "resnet-a", "1")
    with pytest.raises(HpcddpError, match="Nearest: `resnet-a`"):
        shown("resnet-b")
    with pytest.raises(HpcddpError, match="leave out --json or --watch"):
        shown("--json", "--watch")


def test_watching_one_run_ends_with_it_and_keeps_its_pace(root, monkeypatch):
    run_dir = make_run(root, "demo", "1", "started")
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 2:
            run_dir.append_event("finished", step=40)

    clock = SimpleNamespace(sleep=sleep, strftime=time.strftime)
    monkeypatch.setattr(status, "time", clock)
    text = shown("demo", "--watch")
    assert text.count("state      running") == 2
    assert text.count("state      finished") == 1
    assert min(pauses) >= 2


def test_watching_all_runs_shows_new_ones_and_ends_with_ctrl_c(root):
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcddp", "status", "--watch"], stdout=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    assert process.stdout.readline() == f"No runs in {root}.\n"
    make_run(root, "late", "2")
    lines = [process.stdout.readline() for _ in range(3)]
    assert lines[2].startswith("late  pending")
    process.send_signal(2)
    assert process.wait(timeout=100) == 130


def test_twenty_long_runs_take_hardly_more_processor_time_than_none(root, tmp_path):
    for number in range(20):
        run_dir = make_run(root, f"run{number}", "1", "started", *["checkpoint"] * 100)
        run_dir.metrics.write_text('{"step": 12, "loss": 1.0, "images_per_s": 9.0}\n' * 2000)

    def used_s(runs):
        environ = {**os.environ, "HPCDDP_RUNS_DIR": str(runs)}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "hpcddp", "status"],
            env=environ,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return sum((after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime))

    pairs = [(used_s(root), used_s(tmp_path / "none")) for _ in range(5)]
    many, none = map(min, zip(*pairs, strict=True))
    assert many < 2 * none


def test_it_loads_nothing_heavy():
    probe = (
        "import sys; from click.testing import CliRunner; from hpcddp.cli.status import command; "
        "CliRunner().invoke(command, []); "
        "sys.exit(bool({'torch', 'numpy', 'omegaconf', 'rich', 'psutil'} & set(sys.modules)))"
    )
    environ = {**os.environ, "HPCDDP_RUNS_DIR": "/nowhere"}
    assert subprocess.run([sys.executable, "-c", probe], env=environ).returncode == 0
