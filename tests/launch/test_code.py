"""What a run writes down about the code that it was sent from."""

import json
import subprocess

import pytest

from hpcddp.launch.code import record_code
from hpcddp.run_dir import RunDir


def git(folder, *words):
    named = ["-c", "user.name=n", "-c", "user.email=e"]
    command = ["git", "-C", str(folder), *named, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def recorded(tmp_path):
    """Return a function: what is recorded in this folder."""
    run_dir = RunDir(tmp_path / "run")
    run_dir.path.mkdir()

    def recorded(work_dir):
        record_code(run_dir, work_dir)
        return json.loads(run_dir.code.read_text(encoding="utf-8"))

    return recorded


def test_commit_and_changes_of_the_repository_are_recorded(tmp_path, recorded):
    repository, program = tmp_path / "code", tmp_path / "code" / "train.py"
    repository.mkdir()
    git(repository, "init", "--quiet")
    program.write_text("lr = 1\n")
    git(repository, "add", "train.py")
    git(repository, "commit", "--quiet", "-m", "first")
    commit = git(repository, "rev-parse", "HEAD")
    assert recorded(repository).items() >= {"commit": commit, "diff": ""}.items()
    program.write_text("lr = 2\n")
    changed = recorded(repository)
    assert (changed["commit"], changed["diff_is_cut"]) == (commit, False)
    assert "-lr = 1\n+lr = 2\n" in changed["diff"]


def test_a_folder_of_no_repository_is_recorded_as_one(tmp_path, recorded, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert recorded(tmp_path).items() >= {"commit": None, "work_dir": str(tmp_path)}.items()
