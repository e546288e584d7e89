"""Which code a run used: commit and uncommitted changes of the working folder's repository."""

import json
import subprocess
from pathlib import Path

import hpcddp
from hpcddp.run_dir import RunDir, write_atomically

_GIT_TIMEOUT_S = 10
_MAX_DIFF_CHARACTERS = 1_000_000


def record_code(run_dir: RunDir, work_dir: Path) -> None:
    """Write code.json: hpcddp's version and, inside a git repository, commit and diff."""
    commit = _git(work_dir, "rev-parse", "HEAD")
    diff = _git(work_dir, "diff", "HEAD", "--no-ext-diff") if commit else None
    facts = {
        "hpcddp": hpcddp.__version__,
        "work_dir": str(work_dir),
        "commit": commit.strip() if commit else None,
        "diff": diff[:_MAX_DIFF_CHARACTERS] if diff else "",
        "diff_is_cut": bool(diff) and len(diff) > _MAX_DIFF_CHARACTERS,
    }
    write_atomically(run_dir.code, json.dumps(facts, indent=2) + "\n")


def _git(work_dir: Path, *words: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "-C", str(work_dir), *words],
            capture_output=True,
            timeout=_GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.decode(errors="replace") if answer.returncode == 0 else None
