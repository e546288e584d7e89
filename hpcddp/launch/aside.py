"""The settings of a run, kept aside while a changed job is being sent. Asks no scheduler.

The job reads config.yaml as soon as it starts, so the new one must be there before; and it is wrong
again where Slurm refuses the job.
"""

import shutil
from contextlib import suppress
from pathlib import Path

from hpcddp.launch.history import is_submission
from hpcddp.run_dir import RunDir, write_atomically

_PREFIX = ".before-submission-"  # and the number of the one that they are kept for


def keep_aside(run_dir: RunDir) -> None:
    """Copy config.yaml and job.sbatch to where `put_back` finds them, also after a crash."""
    aside = _aside(run_dir)
    aside.mkdir(exist_ok=True)
    for file in (run_dir.config, run_dir.script):
        write_atomically(aside / file.name, file.read_text(encoding="utf-8"))


def put_back(run_dir: RunDir) -> None:
    """The files as they were, unless a job was sent or has begun since; nothing stays aside."""
    aside = _aside(run_dir)
    for file in () if _has_begun_since(run_dir, aside) else (run_dir.config, run_dir.script):
        with suppress(FileNotFoundError):  # nothing is aside, or an earlier call was killed
            (aside / file.name).replace(file)
    forget(run_dir)


def forget(run_dir: RunDir) -> None:
    """Nothing stays aside: the new files count."""
    for old in run_dir.path.glob(f"{_PREFIX}*"):
        shutil.rmtree(old, ignore_errors=True)


def _has_begun_since(run_dir: RunDir, aside: Path) -> bool:
    """A job that was sent by a call which was killed before it could record that."""
    launched = [e.get("time", 0) for e in run_dir.read_events() if e["event"] == "launched"]
    return bool(launched) and aside.exists() and launched[-1] > aside.stat().st_mtime


def _aside(run_dir: RunDir) -> Path:
    number = 1 + sum(map(is_submission, run_dir.read_events()))
    return run_dir.path / f"{_PREFIX}{number}"
