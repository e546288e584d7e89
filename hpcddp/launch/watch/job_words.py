"""What Slurm's words for a job mean, as a sentence with what to type. Pure; knows no events."""

from pathlib import Path

from hpcddp.cluster.hostlist import expand_hostlist
from hpcddp.errors import HpcddpError
from hpcddp.launch.scheduler import JobInfo

# Slurm takes such a job all the same, for somebody might change the partition.
_TOO_MUCH = {
    "PartitionConfig": "it asks for more than its partition has",
    "PartitionNodeLimit": "it asks for more nodes than its partition gives to one job",
    "PartitionTimeLimit": "it asks for more time than its partition gives",
    "BadConstraints": "no node has what it asks for",
}
_NEVER = "DependencyNeverSatisfied"
_NO_LOG = 128 + 53  # slurmd ends a script whose output it cannot open with signal 53 (0:53)


def why_it_waits(job: JobInfo) -> str:
    """Why a job is not running yet."""
    if job.state == "CONFIGURING":
        return "its nodes are being prepared"
    if words := too_much(job):
        return words
    if job.reason == "BeginTime" and job.restarts:
        return (
            "BeginTime: Slurm holds it back after a requeue. To start it as soon as there is room: "
            f"scontrol update jobid={job.job_id} StartTime=now"
        )
    if job.reason == "Dependency":
        return (
            "Dependency: another job has to end first. Which one: "
            f"squeue --jobs={job.job_id} --Format=Dependency:80"
        )
    if job.reason == _NEVER:
        return f"{_NEVER}: the job that it waits for did not finish, so it never starts. Cancel it"
    return job.reason or "Slurm has not considered it yet"


def too_much(job: JobInfo) -> str:
    """Why Slurm may never start a job, "" where it does not say so; it knows as it takes it."""
    if job.reason not in _TOO_MUCH:
        return ""
    return f"{job.reason}: it may never start, as {_TOO_MUCH[job.reason]}. Cancel it, ask for less"


def who_cancelled(job: JobInfo) -> str:
    """Who cancelled a job that says nothing itself; only sacct knows the user.

    Slurm's reason is still the one for which the job was waiting, and tells nothing else.
    """
    if job.reason == _NEVER:
        return f"by Slurm, as the job that it waited for did not finish ({_NEVER})"
    return job.reason if job.reason.startswith("by ") else "by `scancel` or by Slurm"


def why_not_launched(job: JobInfo, log: Path, num_nodes: int) -> str:
    """Why its node could not start the batch script, "" where it could or nobody knows."""
    if job.reason != "JobLaunchFailure" or job.exit_code != _NO_LOG:
        return ""
    return (
        f"{_first_node(job)} could not open {log} (JobLaunchFailure): do the nodes see that "
        f"folder, and may they write there? Ask them: python -m hpcddp doctor --nodes {num_nodes}"
    )


def _first_node(job: JobInfo) -> str:
    try:
        return expand_hostlist(job.nodes)[0]
    except HpcddpError:  # Slurm names none, or in a way of its own
        return "its first node"
