"""Submitting from a login node: what may be missing there, and what must not be written down."""

import shutil
import subprocess
import sys

import pytest

from hpcddp.run_dir import RunDir

SECRETS = {"HF_TOKEN": "hf_s3cret", "WANDB_API_KEY": "w4ndb-s3cret", "MY_PASSWORD": "pass-s3cret"}


def hpcddp(*words):
    done = subprocess.run([sys.executable, "-m", "hpcddp", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def no_srun(fake_sbatch, monkeypatch):
    """PATH is one folder: with an `sbatch` and what a script needs, without Slurm's other tools."""
    for name in ("bash", "sh", "env", "cp"):
        (fake_sbatch / "bin" / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(fake_sbatch / "bin"))
    return fake_sbatch


def test_submit_needs_sbatch_alone_of_slurms_tools(no_srun):
    assert shutil.which("srun") is None
    said = hpcddp("submit", "--nodes", "2", "--cluster", "generic", "--name", "r")
    assert "job 4711" in said
    run_dir = RunDir(no_srun / "runs" / "r")
    assert (no_srun / "sbatch.script").read_bytes() == run_dir.script.read_bytes()
    assert run_dir.read_events()[-1]["event"] == "submitted"


def test_what_is_secret_is_neither_written_down_nor_shown(fake_sbatch, monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    words = ["submit", "--cluster", "generic", "--name", "r"]
    said = hpcddp(*words, "--dry-run") + hpcddp(*words)
    run_dir = RunDir(fake_sbatch / "runs" / "r")
    files = {path: path.read_bytes() for path in run_dir.path.rglob("*") if path.is_file()}
    assert {run_dir.script, run_dir.config, run_dir.code, run_dir.events} <= set(files)
    assert [path for path in files if path.is_relative_to(run_dir.path / "submitit")]
    kept = [said.encode(), (fake_sbatch / "sbatch.args").read_bytes(), *files.values()]
    assert not [text for text in kept if b"s3cret" in text]
    # The job itself has them: Slurm passes the environment on.
    assert "HF_TOKEN=hf_s3cret" in (fake_sbatch / "sbatch.env").read_text().split("\0")
