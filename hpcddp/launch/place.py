"""Where a job runs, as far as its script says it. Knows no cluster."""

from dataclasses import dataclass
from pathlib import Path

from hpcddp.run_dir import RunDir


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job runs: facts of the submitting process that end up in the script."""

    run_dir: RunDir
    python: str
    work_dir: Path


# Stands for a place where options are looked up and no script is written.
ANYWHERE = Place(RunDir(Path("RUN")), python="python", work_dir=Path("."))
