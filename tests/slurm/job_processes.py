"""The processes of a job: the nodes of the test cluster share this machine's process ids."""

from pathlib import Path

# What Slurm itself runs for a step has the same environment as the step's tasks.
NOT_TASKS = (b"srun", b"slurmstepd", b"slurm_script")


def environment_of(entry):
    """The environment of one process as a dictionary of bytes; empty for one that is gone."""
    try:
        pairs = (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(pair.split(b"=", 1) for pair in pairs if b"=" in pair)


def is_task(entry):
    try:
        command = (entry / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return bool(command[0]) and not any(name in word for name in NOT_TASKS for word in command[:2])


def task_pids(job_id, global_rank):
    """The processes of one task and of what it started, the task itself first."""
    wanted = {b"SLURM_JOB_ID": str(job_id).encode(), b"SLURM_PROCID": str(global_rank).encode()}
    pids = []
    for entry in Path("/proc").iterdir():
        seen = environment_of(entry) if entry.name.isdigit() else {}
        if b"SLURM_STEP_ID" in seen and wanted.items() <= seen.items() and is_task(entry):
            pids.append(int(entry.name))
    return sorted(pids)
