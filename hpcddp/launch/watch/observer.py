"""Statuses of runs over time: when to read on, and when the scheduler may be asked again."""

import math
import time
from collections.abc import Callable, Sequence

from hpcddp.launch.history import Record, RunHistory
from hpcddp.launch.scheduler import JobInfo, query_jobs
from hpcddp.launch.supervisor import read_supervisor, supervisor_alive
from hpcddp.launch.watch.state import is_finish, is_settled
from hpcddp.launch.watch.status import RunStatus, status_of
from hpcddp.run_dir import RunDir

# Sites ask scripts to poll squeue at most once a minute. A person who waits for a start wants to
# see it sooner, so the pause begins at 10 s and grows to a minute while the answer stays the same.
# What happens inside a job, the run's own files tell without Slurm.
SLURM_PAUSE_S, SLURM_LONGEST_PAUSE_S, _PAUSE_GROWTH = 10.0, 60.0, 1.5
_SUPERVISOR_STARTS_WITHIN_S = 30.0
# Another host may not see a file's last lines for this long (NFS attribute cache, 60 s at most by
# default), so a job that Slurm has forgotten may still turn out to have finished.
_FILES_LAG_S = 60.0

Query = Callable[[Sequence[str]], dict[str, JobInfo]]


class Observer:
    """Keeps the statuses of some runs up to date; `look` is cheap and may be called often."""

    def __init__(
        self,
        run_dirs: Sequence[RunDir],
        *,
        whole: bool = False,
        query: Query | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`whole` reads all old records, so that `news` begins with the run's first."""
        self.histories = [RunHistory(run_dir, whole=whole) for run_dir in run_dirs]
        self.news: list[Record] = []  # what the last look found in the runs' files
        self._query, self._clock = query or query_jobs, clock
        self._jobs: dict[str, JobInfo] = {}
        self._pause_s = SLURM_PAUSE_S
        self._asked_time = 0.0
        self._lost_since: dict[RunDir, float] = {}
        self.is_over = False  # all runs have ended, or there is nobody left who could tell

    def add(self, run_dirs: Sequence[RunDir]) -> None:
        """Look at these runs as well; one that is known already is not added again."""
        known = {history.run_dir for history in self.histories}
        self.histories += [RunHistory(run_dir) for run_dir in run_dirs if run_dir not in known]

    def look(self) -> list[RunStatus]:
        """The statuses now, in the order of the runs given."""
        early = self._read_on()
        self._ask_slurm()
        local = {h.run_dir: local_job(h, self._clock()) for h in self.histories if _is_local(h)}
        # Read last: a run that ends in between is then seen to have ended, with its last words.
        self.news = sorted(early + self._read_on(), key=_time)  # of two files, each in order
        jobs = [local.get(h.run_dir) or self._jobs.get(_slurm_id(h)) for h in self.histories]
        pairs = list(zip(self.histories, jobs, strict=True))
        statuses = [status_of(history, job, self._clock()) for history, job in pairs]
        ends = [s.has_ended or self._is_lost(*p) for s, p in zip(statuses, pairs, strict=True)]
        self.is_over = all(ends)
        return statuses

    def _read_on(self) -> list[Record]:
        news = [record for history in self.histories for record in history.refresh()]
        if any(record.get("event", "checkpoint") != "checkpoint" for record in news):
            self._pause_s = SLURM_PAUSE_S  # something happened that Slurm may say more about
        return news

    def _is_lost(self, history: RunHistory, job: JobInfo | None) -> bool:
        """Slurm has long forgotten the job, and the files do not say how it ended."""
        now = self._clock()
        if job is None or not job.forgotten:
            self._lost_since.pop(history.run_dir, None)
            return False
        return now - self._lost_since.setdefault(history.run_dir, now) >= _FILES_LAG_S

    def _ask_slurm(self) -> None:
        now = self._clock()
        ids = self._ids_to_ask(now)
        is_new = any(job_id not in self._jobs for job_id in ids)
        if not ids or (not is_new and now - self._asked_time < self._pause_s):
            return
        answer = self._query(ids)
        is_same = all(_says_same(self._jobs.get(job_id), job) for job_id, job in answer.items())
        longer_s = min(self._pause_s * _PAUSE_GROWTH, SLURM_LONGEST_PAUSE_S)
        self._pause_s = longer_s if is_same else SLURM_PAUSE_S
        self._asked_time = self._clock()
        self._jobs |= answer

    def _ids_to_ask(self, now: float) -> list[str]:
        """Jobs that may still change; of a single run also how it ended, which Slurm says best."""
        slurm = [history for history in self.histories if _slurm_id(history)]
        if len(self.histories) > 1:
            return [_slurm_id(h) for h in slurm if not is_settled(h.current, now)]
        return [_slurm_id(h) for h in slurm if not any(map(is_finish, h.current))]


def _time(record: Record) -> float:
    return record.get("time", math.inf)


def _says_same(before: JobInfo | None, after: JobInfo) -> bool:
    """Estimates move all the time; what matters is the state and why."""
    return before is not None and (before.state, before.reason) == (after.state, after.reason)


def _slurm_id(history: RunHistory) -> str:
    """The id of the run's newest Slurm job, "" where it has none."""
    submission = history.submission
    return str(submission.get("job_id", "")) if submission.get("launcher") == "slurm" else ""


def _is_local(history: RunHistory) -> bool:
    submission = history.submission
    is_supervised = str(submission.get("job_id", "")).startswith("local-")
    return submission.get("launcher") == "local" and is_supervised


def local_job(history: RunHistory, now: float) -> JobInfo:
    """The local executor's answer, in Slurm's words: does the run's supervisor live?"""
    submission = history.submission
    job_id, supervisor = submission["job_id"], read_supervisor(history.run_dir)
    if supervisor is None or job_id != f"local-{supervisor['pid']}":
        if now - submission.get("time", 0.0) < _SUPERVISOR_STARTS_WITHIN_S:
            return JobInfo(job_id, "PENDING", "its supervisor is starting")
        return JobInfo(job_id, "FAILED", "its supervisor never started")
    alive = supervisor_alive(history.run_dir)
    if alive is None:
        return JobInfo(job_id, reason=f"only host {supervisor['host']} can tell")
    gone = f"its supervisor, process {supervisor['pid']}, is gone"
    return JobInfo(job_id, "RUNNING") if alive else JobInfo(job_id, "FAILED", gone)
