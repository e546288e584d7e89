"""The mark of an attempt that found its run in other hands, read by its script's last act.

It lies among the logs of that attempt, and never in a folder that may be another job's. Knows no
torch.
"""

from collections.abc import Mapping
from contextlib import suppress

from hpcddp.cluster.job_names import requeue_target_or_none
from hpcddp.cluster.variables import ATTEMPT_VARIABLE
from hpcddp.config.layout import ProcessLayout
from hpcddp.run_dir import RunDir, write_atomically


def is_refused(error: BaseException, run_dir: RunDir, layout: ProcessLayout | None) -> bool:
    """True where the run is another start's. The main process is told so when it claims the run;
    the others may fail before they hear of that, of anything, and look who owns it.
    """
    from hpcddp.train.ownership import NOT_OURS, is_of_another_job

    is_told = getattr(error, "code", None) in NOT_OURS
    looks = layout is not None and not layout.is_main
    return is_told or (looks and is_of_another_job(run_dir, layout))


def mark_refusal(run_dir: RunDir, exit_code: int, environ: Mapping[str, str]) -> None:
    """Note job and exit code. Where no script of ours has counted this start there is no last act
    either, and the folder of that number may be that of the job which trains.
    """
    if ATTEMPT_VARIABLE in environ:
        mark = run_dir.refusal(int(environ[ATTEMPT_VARIABLE]))
        with suppress(OSError):  # the way to the exit must not fail
            write_atomically(mark, f"{requeue_target_or_none(environ)} {exit_code}\n")


def refusal_code(run_dir: RunDir, attempt: int, environ: Mapping[str, str]) -> int | None:
    """The exit code of this job's attempt where the run was refused to it, else None."""
    try:
        job, code = run_dir.refusal(attempt).read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return None
    return int(code) if job == str(requeue_target_or_none(environ)) else None
