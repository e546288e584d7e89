"""`report` finds what a run has measured and writes its pages again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hpcddp.run_dir import RunDir

CASE = Path(__file__).parents[1] / "cases" / "compare_document.yaml"


@pytest.fixture
def run_dir(tmp_path):
    """A run that was sent, with nothing measured."""
    run_dir = RunDir(tmp_path / "runs" / "r")
    run_dir.reports.mkdir(parents=True)
    run_dir.append_event("submitted", job_id="1", launcher="local")
    return run_dir


def report(run_dir, name="r", before=""):
    probe = f"import sys\n{before}\nfrom hpcddp.cli import main\nmain()"
    environ = os.environ | {"HPCDDP_RUNS_DIR": str(run_dir.path.parent)}
    command = [sys.executable, "-c", probe, "report", name]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)


def test_the_page_is_written_again_from_the_report(run_dir):
    (run_dir.reports / "compare.json").write_text(json.dumps(yaml.safe_load(CASE.read_text())))
    done = report(run_dir)
    assert done.returncode == 0, done.stderr
    page = run_dir.reports / "compare.html"
    assert done.stdout == f"{page}\n"
    first = page.read_text()
    assert "DDP is 2.00 times as fast as DP" in first
    (run_dir.reports / "compare.html").unlink()
    assert report(run_dir).returncode == 0
    assert page.read_text() == first


def test_without_matplotlib_the_line_to_type_is_said(run_dir):
    (run_dir.reports / "compare.json").write_text(json.dumps(yaml.safe_load(CASE.read_text())))
    done = report(run_dir, before="sys.modules['matplotlib'] = None")
    assert done.returncode == 2
    assert "pip install -e '.[report]'" in done.stderr
    assert "python -m hpcddp report r" in done.stderr


def test_a_run_that_has_measured_nothing_is_said_so(run_dir):
    run_dir.append_event("failed", reason="rank 0: ValueError", exit_code=1)
    said = report(run_dir).stderr
    assert "Run `r` is failed and has left no report" in said
    assert "compare.json, allreduce.json" in said
    assert "python -m hpcddp logs r" in said
    run_dir.append_event("submitted", job_id="2", launcher="local")
    run_dir.append_event("finished", attempt=1)
    assert "is finished and has left no report" in report(run_dir).stderr
    assert "No run `other`" in report(run_dir, "other").stderr


def test_a_page_that_cannot_be_kept_is_said_with_its_place(run_dir):
    (run_dir.reports / "compare.json").write_text(json.dumps(yaml.safe_load(CASE.read_text())))
    (run_dir.reports / "compare.html").mkdir()
    done = report(run_dir)
    assert done.returncode == 2
    assert f"The page cannot be kept in {run_dir.reports}: Is a directory" in done.stderr
    assert "python -m hpcddp report r" in done.stderr
