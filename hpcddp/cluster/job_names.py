"""What this Slurm job is called: for `scontrol requeue`, for ports. Knows no ranks, no torch."""

from collections.abc import Mapping

from hpcddp.cluster.variables import first_set, read_count
from hpcddp.errors import HpcddpError

JOB_ID_NAMES = ("SLURM_JOB_ID", "SLURM_JOBID")  # the second is the old spelling
STEP_ID_NAMES = ("SLURM_STEP_ID", "SLURM_STEPID")
# From here up Slurm numbers what srun did not start: interactive step (salloc's shell), batch
# script, external processes, pending (slurm.h).
_FIRST_SPECIAL_STEP = 0xFFFFFFFA


def in_step(environ: Mapping[str, str]) -> bool:
    """True if srun started this process (or one above it) as a task.

    Only the step id tells: a batch script also has SLURM_PROCID=0, SLURM_NTASKS and so on.
    """
    name = first_set(environ, *STEP_ID_NAMES)
    return name is not None and read_count(environ, name) < _FIRST_SPECIAL_STEP


def in_job(environ: Mapping[str, str]) -> bool:
    """True inside an allocation, with or without a step."""
    return first_set(environ, *JOB_ID_NAMES) is not None


def requeue_target(environ: Mapping[str, str]) -> str:
    """What `scontrol requeue` takes: `36`, or `38_1` for one element of an array.

    A bare array id would requeue the siblings too; of a heterogeneous job only the id of its
    first component can be requeued. Raises HpcddpError `not_in_step` outside Slurm.
    """
    names = requeue_names(environ)
    if not names:
        raise HpcddpError(
            "SLURM_JOB_ID is not set: this process is in no Slurm job, so there is nothing to "
            "requeue. Start it with `python -m hpcddp submit`.",
            "not_in_step",
        )
    return "_".join(environ[name].strip() for name in names)


def requeue_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The variables the requeue target is made of; empty outside Slurm."""
    array = ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")
    if all(environ.get(name, "").strip() for name in array):
        return array
    name = first_set(environ, "SLURM_JOB_ID_HET_GROUP_0", *JOB_ID_NAMES)
    return (name,) if name else ()


def requeue_target_or_none(environ: Mapping[str, str]) -> str | None:
    """As `requeue_target`, but None outside Slurm."""
    return requeue_target(environ) if requeue_names(environ) else None


def job_key(environ: Mapping[str, str]) -> str:
    """Job, array index and step in Slurm's own notation: `38_1.0`.

    Two steps of one job can run on one node at the same time, so the step belongs to it.
    """
    step = first_set(environ, *STEP_ID_NAMES)
    job = requeue_target_or_none(environ) or "job"
    return f"{job}.{environ[step].strip()}" if step else job


def restart_count(environ: Mapping[str, str]) -> int:
    """How often Slurm has requeued this job; Slurm sets no variable on the first start."""
    name = first_set(environ, "SLURM_RESTART_COUNT")
    return read_count(environ, name) if name else 0
