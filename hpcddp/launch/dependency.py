"""One run that waits for another to finish. Knows the other run's status, not its files."""

from hpcddp.errors import HpcddpError
from hpcddp.launch.watch.status import RunStatus
from hpcddp.launch.watch.words import command_line

_OVER = ("failed", "cancelled", "unknown")


def afterok_options(before: RunStatus, launcher: str) -> tuple[str, ...]:
    """Options of sbatch for a job that starts once `before` has finished; none if it has already.

    A requeued job keeps its id, so Slurm waits through all attempts. Where `before` fails, the
    waiting job is cancelled instead of pending for ever.

    Raises HpcddpError when the wait would never end, or Slurm has not both jobs.
    """
    if before.state == "finished":
        return ()
    if before.state in _OVER:
        raise HpcddpError(
            f"--afterok {before.run}: that run is {before.state}, so the new one would never start."
            f" Go on with it first: {command_line('resume', before.run)}"
        )
    if launcher != "slurm" or before.launcher != "slurm" or before.job_id is None:
        raise HpcddpError(
            f"--afterok {before.run}: only Slurm can let one job wait for another, and here a "
            f"`{launcher}` run would wait for a `{before.launcher}` one. Wait yourself: "
            f"{command_line('wait', before.run)} && python -m hpcddp submit ..."
        )
    return (f"--dependency=afterok:{before.job_id}", "--kill-on-invalid-dep=yes")
