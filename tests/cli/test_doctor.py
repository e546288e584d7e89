"""`doctor` as typed: on a login node, and in a job of two emulated nodes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcddp.cli import doctor as doctor_module
from hpcddp.cli.doctor import _expected_busbw
from hpcddp.cluster.shared_runs import is_proven
from hpcddp.config.layout import EXIT_INTERRUPTED
from hpcddp.config.schema import RunConfig
from hpcddp.doctor.findings import RUNS_SHARED, Finding, as_document
from hpcddp.launch.watch import follow as follow_module

ROOT = Path(__file__).parents[2]
NEEDS_TORCH = {"cores of a loader worker", "all-reduce exact", "clocks", "pairs of nodes"}


def doctor(tmp_path, *words, **variables):
    environ = {
        **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
        "OMP_NUM_THREADS": "1",
        "HPCDDP_RUNS_DIR": str(tmp_path / "runs"),
        **variables,
    }
    command = [sys.executable, "-m", "hpcddp", "doctor", *words]
    return subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=500
    )


def by_name(done):
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_on_a_login_node_it_prints_a_table_with_what_to_type(tmp_path):
    done = doctor(tmp_path, "--cluster", "local", HF_TOKEN="hush")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    at = next(n for n, line in enumerate(lines) if line.split()[:2] == ["warn", "credentials"])
    assert lines[at + 2].strip() == "fix: unset HF_TOKEN"
    assert "hush" not in done.stdout
    assert lines[-1].startswith("0 fail, ")


def test_where_slurm_is_missing_it_fails_and_sends_no_job(tmp_path):
    empty = tmp_path / "bin"
    empty.mkdir()
    words = ["--cluster", "generic", "--nodes", "2", "--json"]
    done = doctor(tmp_path, *words, PATH=str(empty))
    assert done.returncode == 1
    slurm = by_name(done)["slurm"]
    assert slurm["status"] == "fail"
    assert "sbatch" in slurm["found"]
    assert set(slurm) == {"name", "host", "status", "found", "needed", "fix"}
    assert not (tmp_path / "runs").exists()


def test_in_a_step_of_ones_own_the_profile_that_fits_says_what_to_expect(tmp_path, monkeypatch):
    folder = tmp_path / "configs" / "clusters"
    folder.mkdir(parents=True)
    text = "description: d\ndetect: [{env: MY_CLUSTER}]\nexpected_busbw_gb_per_s: 40\n"
    (folder / "mine.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_CLUSTER", "yes")
    monkeypatch.delenv("HPCDDP_CLUSTER", raising=False)
    assert _expected_busbw(None, RunConfig()) == 40
    assert _expected_busbw("local", RunConfig()) is None


def test_an_unknown_profile_is_a_finding(tmp_path):
    done = doctor(tmp_path, "--cluster", "nosuch", "--json")
    assert done.returncode == 1
    assert "nosuch" in by_name(done)["profile"]["found"]


def test_a_job_that_cannot_be_sent_is_a_finding(tmp_path):
    (tmp_path / "runs").write_text("a file where the folder should be")
    done = doctor(tmp_path, "--cluster", "local", "--nodes", "2", "--json")
    assert done.returncode == 1
    assert "not sent" in by_name(done)["job"]["found"]


@pytest.mark.parametrize("words", [("--partition", "p"), ("trian.model=x",), ("--time", "5")])
def test_what_only_a_job_would_heed_is_refused_where_none_is_sent(tmp_path, words):
    done = doctor(tmp_path, "--cluster", "local", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{words[0]} would do nothing. Add --nodes N" in done.stderr


def test_the_name_of_another_run_is_no_finding(tmp_path):
    taken = tmp_path / "runs" / "taken"
    taken.mkdir(parents=True)
    (taken / "config.yaml").touch()
    done = doctor(tmp_path, "--cluster", "local", "--nodes", "2", "--name", "taken", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Run `taken` exists already" in done.stderr


def test_who_stops_looking_is_told_nothing_of_the_job(tmp_path, monkeypatch):
    monkeypatch.setattr(follow_module, "follow", lambda *_, **__: EXIT_INTERRUPTED)
    monkeypatch.setattr(doctor_module, "send", lambda sent: (sent, "7"))
    monkeypatch.setenv("HPCDDP_RUNS_DIR", str(tmp_path / "runs"))
    words = ["--cluster", "local", "--nodes", "2", "--json"]
    done = CliRunner().invoke(doctor_module.command, words)
    assert done.exit_code == EXIT_INTERRUPTED
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("cluster", "status", "proves"),
    [("generic", "ok", True), ("generic", "fail", False), ("local", "ok", False)],
)
def test_a_job_whose_nodes_share_the_runs_is_remembered(
    tmp_path, monkeypatch, cluster, status, proves
):
    (tmp_path / "runs").mkdir()
    monkeypatch.setenv("HPCDDP_RUNS_DIR", str(tmp_path / "runs"))
    document = as_document([Finding(RUNS_SHARED, "", status, "seen at once")])
    monkeypatch.setattr(doctor_module, "_is_hopeless", lambda findings: False)
    monkeypatch.setattr(doctor_module, "_document_of_job", lambda *_, **__: document)
    CliRunner().invoke(doctor_module.command, ["--cluster", cluster, "--nodes", "2"])
    assert is_proven(tmp_path / "runs") is proves


def test_a_typing_error_is_no_finding(tmp_path):
    done = doctor(tmp_path, "--cluster", "local", "--nodes", "2", "trian.model=resnet18")
    assert done.returncode == 2
    assert "trian" in done.stderr
    assert not done.stdout


def test_two_emulated_nodes_are_examined_without_slurm(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "1.png").write_bytes(b"x")
    words = ["--cluster", "local", "--nodes", "2", "--json", f"data.root={tmp_path / 'data'}"]
    done = doctor(tmp_path, *words)
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads(done.stdout)
    checks = report["checks"]
    assert {check["status"] for check in checks} <= {"ok", "warn", "not testable"}
    assert {check["name"] for check in checks if check["status"] == "ok"} >= NEEDS_TORCH
    assert {c["host"] for c in checks if c["name"] == "data path"} == {"node0", "node1"}
    assert [hosts[:2] for hosts in report["pairs"]] == [["node0", "node1"]]
    assert report["allreduce"]["rows"][0]["bytes"] == 1024


def test_one_process_by_itself_says_what_it_cannot_test(tmp_path):
    words = ["--json", f"data.root={tmp_path / 'nothing'}"]
    done = doctor(tmp_path, *words, HPCDDP_LAUNCHER="single")
    assert done.returncode == 1, done.stderr
    found = by_name(done)
    assert "No such file" in found["data path"]["found"]
    for name in ("clocks", "pairs of nodes", "all-reduce exact", "names of all nodes"):
        assert found[name]["status"] == "not testable"
