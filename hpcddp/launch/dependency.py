"""One run that waits for another to finish. Knows the other run's status, not its files."""

from hpcddp.errors import HpcddpError
from hpcddp.launch.phrases import command_line
from hpcddp.launch.submission import Submission
from hpcddp.launch.watch.status import RunStatus

_OVER = ("failed", "cancelled", "unknown")


def afterok_options(before: RunStatus, waiting: Submission) -> tuple[str, ...]:
    """Options of sbatch that let `waiting` start once `before` has finished; none if it has.

    A requeued job keeps its id, so Slurm waits through all attempts. Where `before` fails, or where
    requeueing is forbidden and a new job takes over, the waiting job is cancelled instead of
    pending for ever.

    Raises HpcddpError when the wait would never end, when Slurm has not both jobs, and when the
    job has a dependency already.
    """
    launcher = waiting.request.profile.launcher
    if before.state == "finished":
        return ()
    if before.state in _OVER:
        raise HpcddpError(
            f"--afterok {before.run}: that run is {before.state}, so a wait might never end. "
            f"Go on with it first: {command_line('resume', before.run)}"
        )
    if launcher != "slurm" or before.launcher != "slurm" or before.job_id is None:
        raise HpcddpError(
            f"--afterok {before.run}: only Slurm can let one job wait for another, and here a "
            f"`{launcher}` run would wait for a `{before.launcher}` one. Wait yourself: "
            f"{command_line('wait', before.run)} && python -m hpcddp submit ..."
        )
    if "\n#SBATCH --dependency=" in waiting.script:
        raise HpcddpError(
            f"--afterok {before.run}: the job has resources.sbatch.dependency already, and sbatch "
            f"takes one. Leave out --afterok and add afterok:{before.job_id} there."
        )
    return (f"--dependency=afterok:{before.job_id}", "--kill-on-invalid-dep=yes")
