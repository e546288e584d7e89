"""The settings of a run, kept aside while a changed job is being sent. Asks no scheduler.

The job reads config.yaml as soon as it starts, so the new one must be there before; and it is wrong
again where Slurm refuses the job.
"""

import shutil
from contextlib import suppress
from pathlib import Path

from hpcddp.run_dir import RunDir, write_atomically

_PREFIX = ".before-submission-"  # and how many jobs had been sent and had begun before


def keep_aside(run_dir: RunDir) -> None:
    """Copy config.yaml and job.sbatch to where `put_back` finds them, also after a crash."""
    aside = _aside(run_dir)
    aside.mkdir(exist_ok=True)
    for file in (run_dir.config, run_dir.script):
        write_atomically(aside / file.name, file.read_text(encoding="utf-8"))


def put_back(run_dir: RunDir) -> None:
    """The files as they were, unless a job was sent or has begun since they were kept."""
    aside = _aside(run_dir)
    for file in (run_dir.config, run_dir.script):
        with suppress(FileNotFoundError):  # nothing is aside, or an earlier call was killed
            (aside / file.name).replace(file)


def forget_aside(run_dir: RunDir) -> None:
    """Nothing stays aside: the files in use count."""
    for old in run_dir.path.glob(f"{_PREFIX}*"):
        shutil.rmtree(old, ignore_errors=True)


def _aside(run_dir: RunDir) -> Path:
    """Another folder once a job was sent, or has begun whose `resume` was killed before it could
    record it: what lies in the earlier one is then no longer the run's.
    """
    kinds = [event["event"] for event in run_dir.read_events()]
    return run_dir.path / f"{_PREFIX}{kinds.count('submitted')}-{kinds.count('launched')}"
