"""How an attempt ended, as the batch script's host sees it. Decides nothing and asks no Slurm."""

import time
from collections.abc import Mapping, Sequence

from hpcddp.config.layout import EXIT_AGAIN, EXIT_DONE
from hpcddp.launch.decision import Ending, Event
from hpcddp.launch.last_words import first_exit, has_run_out_of_memory, words_of_attempt
from hpcddp.run_dir import RunDir, space_problem


def ending_of(
    run_dir: RunDir, exit_code: int, attempt: int, events: Sequence[Event], *, is_own_program: bool
) -> Ending:
    """The end as this host saw it; srun's words and the processes' tell what its code hides."""
    words = words_of_attempt(run_dir, attempt)
    first = first_exit(words) if is_own_program and exit_code else None
    code, culprit = first or (_code_of_processes(exit_code, attempt, events), "")
    own = {event["event"] for event in events if event.get("attempt") == attempt}
    is_told = is_own_program or code == EXIT_DONE or own & {"stopped", "failed"}
    return Ending(
        code,
        attempt,
        out_of_memory=exit_code not in (EXIT_DONE, EXIT_AGAIN) and has_run_out_of_memory(words),
        culprit=culprit,
        no_space="" if is_told else space_problem(run_dir.path),
        is_own_program=is_own_program,
        time=time.time(),
    )


def silent_attempts(events: Sequence[Event], attempt: int, environ: Mapping[str, str]) -> int:
    """Newest attempts of this job, up to this one, of which there is no word: the disk was full."""
    newest = max((event["attempt"] for event in events if "attempt" in event), default=-1)
    starts_before = attempt
    if "SLURM_JOB_ID" in environ:
        starts_before = int(environ.get("SLURM_RESTART_COUNT", "0"))
    return max(0, min(attempt - newest, starts_before + 1))


def _code_of_processes(exit_code: int, attempt: int, events: Sequence[Event]) -> int:
    """The code of the process that failed, where srun's 75 is only of those that srun has ended for
    it: they had nothing to save yet.
    """
    own = [event for event in events if event.get("attempt") == attempt]
    failed = next((e.get("exit_code") for e in own if e["event"] == "failed"), None)
    has_stopped = any(event["event"] == "stopped" for event in own)
    return failed if exit_code == EXIT_AGAIN and failed and not has_stopped else exit_code
