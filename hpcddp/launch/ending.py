"""How an attempt ended, as the batch script's host sees it. Decides nothing and asks no Slurm."""

import itertools
import signal
import time
from collections.abc import Mapping, Sequence

from hpcddp.cluster.job_names import in_job, restart_count
from hpcddp.cluster.variables import ATTEMPT_TIME_VARIABLE, LOCAL_RESTARTS
from hpcddp.config.layout import EXIT_AGAIN, EXIT_DONE, EXIT_USAGE
from hpcddp.launch.decision import Ending, Event, tells_end
from hpcddp.launch.history import is_submission
from hpcddp.launch.last_words import (
    first_exit,
    has_run_out_of_memory,
    no_start,
    unreached_nodes,
    words_of_attempt,
)
from hpcddp.run_dir import RunDir, space_problem


def ending_of(
    run_dir: RunDir,
    exit_code: int,
    attempt: int,
    events: Sequence[Event],
    environ: Mapping[str, str],
    *,
    is_own_program: bool,
) -> Ending:
    """The end as this host saw it; srun's words and the processes' tell what its code hides."""
    words = words_of_attempt(run_dir, attempt)
    first = first_exit(words) if is_own_program and exit_code else None
    code, culprit = first or (_code_of_processes(exit_code, attempt, events), "")
    own = {event["event"] for event in events if event.get("attempt") == attempt}
    is_told = is_own_program or code == EXIT_DONE or bool(own & {"stopped", "failed"})
    return Ending(
        code,
        attempt,
        out_of_memory=exit_code not in (EXIT_DONE, EXIT_AGAIN) and has_run_out_of_memory(words),
        culprit=culprit,
        unreached=unreached_nodes(words),
        unstarted="" if own else no_start(words),
        no_space="" if is_told else space_problem(run_dir.path),
        unended=unended_attempts(run_dir, events, attempt, environ),
        is_own_program=is_own_program,
        began=float(environ.get(ATTEMPT_TIME_VARIABLE, time.time())),
        time=time.time(),
    )


def unended_attempts(
    run_dir: RunDir, events: Sequence[Event], attempt: int, environ: Mapping[str, str]
) -> tuple[int, ...]:
    """The attempts of this job right before this one whose end could not be written, newest first.

    None where there is room now: Slurm starts a job again without a word, too, when it has lost
    the node that would have written.
    """
    restarts = restart_count(environ) if in_job(environ) else environ.get(LOCAL_RESTARTS, "0")
    first = attempt - int(restarts)
    ended = {event.get("attempt") for event in filter(tells_end, events)}
    earlier = range(attempt - 1, first - 1, -1)
    unended = tuple(itertools.takewhile(lambda number: number not in ended, earlier))
    return unended if unended and space_problem(run_dir.path) else ()


def is_superseded(events: Sequence[Event], attempt: int, job_id: str | None) -> bool:
    """A node came back late with a copy of a job that Slurm, or with another job the user, has
    started anew since: what becomes of the run is for that one to decide. Elements of an array are
    jobs of their own.
    """
    newer = (event for event in events if event.get("attempt", 0) > attempt)
    if any(event.get("job_id") == job_id for event in newer):
        return True
    is_own = [event["event"] == "launched" and event.get("attempt") == attempt for event in events]
    later = events[is_own.index(True) :] if True in is_own else ()
    return any(is_submission(event) and event.get("job_id", job_id) != job_id for event in later)


def _code_of_processes(exit_code: int, attempt: int, events: Sequence[Event]) -> int:
    """The code of the process that failed, where srun's 75 is only of those that srun has ended for
    it: they had nothing to save yet. Those that had not even begun leave srun 143, which here
    hides a wrong configuration only: another failure may be of the stop that ended all of them.
    """
    own = [event for event in events if event.get("attempt") == attempt]
    failed = next((e.get("exit_code") for e in own if e["event"] == "failed"), None)
    has_stopped = any(event["event"] == "stopped" for event in own)
    is_usage = exit_code == 128 + signal.SIGTERM and failed == EXIT_USAGE
    is_hidden = exit_code == EXIT_AGAIN or is_usage
    return failed if failed and is_hidden and not has_stopped else exit_code
