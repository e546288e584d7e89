"""The runs below a folder, and the one of a name. Knows no state and no scheduler."""

import difflib
import os
from pathlib import Path

from hpcddp.errors import HpcddpError
from hpcddp.run_dir import RunDir


def list_runs(root: Path) -> list[RunDir]:
    """All runs below `root`, by name: the folders with a configuration or an event log.

    Folders that may not be read are somebody else's, in a root that several people share.
    """
    if not root.is_dir():
        return []
    return [run for run in map(RunDir, sorted(root.iterdir())) if _is_readable_run(run)]


def _is_readable_run(run: RunDir) -> bool:
    if not os.access(run.path, os.R_OK | os.X_OK) or not run.path.is_dir():
        return False
    there = [path for path in (run.events, run.config) if path.exists()]
    return bool(there) and all(os.access(path, os.R_OK) for path in there)


def find_run(root: Path, name: str) -> RunDir:
    """The run of that name; HpcddpError names the nearest ones and where they were looked for."""
    runs = {run_dir.name: run_dir for run_dir in list_runs(root)}
    if name in runs:
        return runs[name]
    near = difflib.get_close_matches(name, runs, n=3, cutoff=0.4)
    hint = f"Nearest: {', '.join(f'`{run}`' for run in near)}. " if near else ""
    raise HpcddpError(
        f"No run `{name}` in {root}. {hint}`python -m hpcddp status` lists all "
        f"{len(runs)}; HPCDDP_RUNS_DIR names another folder.",
        "unknown_run",
    )
