"""What Slurm says about jobs, from squeue, scontrol and sacct. Knows no run directory.

Only text of a fixed shape is read: the JSON of these tools changes with Slurm's version. No
answer is an answer too: a job without a state carries the reason, and nothing here raises.
"""

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcddp.cluster.live import ask_preemption
from hpcddp.cluster.scrub import query_environment

# A controller that lives answers within MessageTimeout, 10 s by default; the tools themselves
# give up on a dead one only after 18 s (22.05).
_TIMEOUT_S = 10.0
_JOB_ID = re.compile(r"\d+(_\d+)?")
# A tool that is asked why the job ends must outlive the signals that end it.
_DEAF = ("sh", "-c", 'trap "" TERM USR1 USR2; exec "$@"', "sh")
# In this order; the reason comes last because only it could ever hold the separator.
_SQUEUE_FIELDS = (
    "JobArrayID",
    "State",
    "Partition",
    "RestartCnt",
    "exit_code",
    "StartTime",
    "EndTime",
    "NodeList",
    "Reason",
)
_SACCT_FIELDS = ("JobID", "State", "ExitCode", "Start", "End", "Partition", "NodeList")


@dataclass(frozen=True, slots=True)
class JobInfo:
    """One job as its scheduler sees it. `state` is Slurm's word, "" where it is not known.

    `reason` is Slurm's, or says why the state is not known; `forgotten` means that Slurm answered
    and has no such job (any more). Times are Unix seconds; `start_time` of a pending job is
    Slurm's estimate. `exit_code` is what a shell would show: 128 + signal for a killed job.
    """

    job_id: str
    state: str = ""
    reason: str = ""
    exit_code: int | None = None
    restarts: int | None = None
    start_time: float | None = None
    end_time: float | None = None
    preempt_time: float | None = None  # only `show_job` tells
    partition: str = ""
    qos: str = ""  # only `show_job` tells
    nodes: str = ""
    forgotten: bool = False


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one tool printed; `problem` is None when it succeeded."""

    text: str = ""
    problem: str | None = None

    @property
    def is_final(self) -> bool:
        """Slurm was reached and said all it knows; an unknown single id is an error to it."""
        return self.problem is None or "Invalid job id" in self.problem


def query_jobs(job_ids: Sequence[str]) -> dict[str, JobInfo]:
    """The state of each job (`38`, `38_1`), with one squeue call for all of them."""
    asked = [job_id for job_id in dict.fromkeys(job_ids) if _JOB_ID.fullmatch(job_id)]
    infos = {job_id: JobInfo(job_id, reason="not a Slurm job id") for job_id in job_ids}
    if not asked:
        return infos
    found, squeue = _ask_squeue(asked)
    missing = [job_id for job_id in asked if job_id not in found]
    if missing:
        accounted, sacct = _ask_sacct(missing)
        infos |= {job_id: _not_known(job_id, squeue, sacct) for job_id in missing} | accounted
    return infos | found


def _not_known(job_id: str, squeue: _Answer, sacct: _Answer) -> JobInfo:
    if not squeue.is_final:
        return JobInfo(job_id, reason=f"Slurm cannot be asked: {squeue.problem}")
    if not sacct.is_final and not _has_no_accounting(sacct):
        return JobInfo(job_id, reason=f"squeue lists no job {job_id}, and {sacct.problem}")
    return JobInfo(job_id, reason=f"Slurm knows no job {job_id} (any more)", forgotten=True)


def _has_no_accounting(sacct: _Answer) -> bool:
    return "disabled" in (sacct.problem or "") or "not found" in (sacct.problem or "")


def _ask_squeue(job_ids: Sequence[str]) -> tuple[dict[str, JobInfo], _Answer]:
    """Pending, running and, for Slurm's MinJobAge (300 s by default), ended jobs."""
    options = ["--noheader", "--all", "--array", "--states=all", f"--jobs={','.join(job_ids)}"]
    columns = ",".join(f"{field}:|" for field in _SQUEUE_FIELDS)
    answer = _run(["squeue", *options, f"--Format={columns}"], _TIMEOUT_S)
    jobs, readable = parse_squeue(answer.text)
    if not readable or "format" in (answer.problem or ""):  # a Slurm that lacks a column
        return _ask_scontrol(job_ids)
    return jobs, answer


def parse_squeue(text: str) -> tuple[dict[str, JobInfo], bool]:
    """Jobs by id from squeue's lines, and whether every line had the expected shape."""
    lines = [line.split("|", len(_SQUEUE_FIELDS) - 1) for line in text.splitlines() if line]
    rows = [
        dict(zip(_SQUEUE_FIELDS, line, strict=True))
        for line in lines
        if len(line) == len(_SQUEUE_FIELDS)
    ]
    jobs = {row["JobArrayID"]: _from_squeue(row) for row in rows}
    return jobs, len(rows) == len(lines)


def _from_squeue(row: Mapping[str, str]) -> JobInfo:
    return JobInfo(
        job_id=row["JobArrayID"],
        state=row["State"],
        reason=_word(row["Reason"].rstrip("|")),
        exit_code=_exit_code(row["exit_code"]),
        restarts=_number(row["RestartCnt"]),
        start_time=_number(row["StartTime"]),
        end_time=_number(row["EndTime"]),
        partition=row["Partition"],
        nodes=_word(row["NodeList"]),
    )


def show_job(job_id: str, timeout_s: float = _TIMEOUT_S) -> JobInfo:
    """One job as `scontrol show job` tells it; without a state when it does not in time."""
    found, answer = _ask_scontrol([job_id], _DEAF, timeout_s)
    return found.get(job_id, JobInfo(job_id, reason=answer.problem or "not found"))


def _ask_scontrol(
    job_ids: Sequence[str], before: Sequence[str] = (), timeout_s: float = _TIMEOUT_S
) -> tuple[dict[str, JobInfo], _Answer]:
    """One call for each job, all within one time-out; words `before` scontrol start it."""
    jobs: dict[str, JobInfo] = {}
    deadline = time.monotonic() + timeout_s
    for job_id in job_ids:
        answer = _run([*before, "scontrol", "show", "job", job_id], deadline - time.monotonic())
        if answer.problem is None:
            jobs[job_id] = parse_show_job(job_id, answer.text)
        elif not answer.is_final and f"Job {job_id} not found" not in answer.text:
            return jobs, answer
    return jobs, _Answer()


def parse_show_job(job_id: str, text: str) -> JobInfo:
    """One job from the lines of `scontrol show job`."""
    values: dict[str, str] = {}
    # The first line holds the job's name, in which anything may be written.
    for line in text.strip().splitlines()[1:]:
        for key, value in re.findall(r"(\S+?)=(\S*)", line):
            values.setdefault(key, value)
    return JobInfo(
        job_id=job_id,
        state=values.get("JobState", ""),
        reason=_word(values.get("Reason", "")),
        exit_code=_exit_code(values.get("ExitCode", "")),
        restarts=_number(values.get("Restarts", "")),
        start_time=_number(values.get("StartTime", "")),
        end_time=_number(values.get("EndTime", "")),
        preempt_time=_number(values.get("PreemptTime", "")),
        partition=values.get("Partition", ""),
        qos=_word(values.get("QOS", "")),
        nodes=_word(values.get("NodeList", "")),
    )


def requeues_preempted(partition: str, qos: str) -> bool:
    """True where Slurm ends jobs of that partition and QOS for others and starts them again."""
    taken = ask_preemption(partition, qos, _ask_deaf) if partition else None
    return taken is not None and taken[0] == "REQUEUE"


def leaves_grace(partition: str, qos: str) -> bool:
    """True where Slurm leaves a preempted job of that partition and QOS seconds before it ends it:
    more than the one by which it may note two times of one moment.
    """
    taken = ask_preemption(partition, qos, _ask_deaf) if partition else None
    return taken is not None and taken[1] > 1


def _ask_deaf(words: Sequence[str]) -> str:
    return _run([*_DEAF, *words], _TIMEOUT_S).text


def restarted_nodes(nodes: Sequence[str], since: float) -> list[str]:
    """Those of the nodes whose daemon has begun later than that."""
    if not nodes:
        return []
    words = ["scontrol", "show", "node", "--oneliner", ",".join(nodes)]
    lines = _run(words, _TIMEOUT_S).text.splitlines()
    begins = [re.match(r"NodeName=(\S+).* SlurmdStartTime=(\d+)", line) for line in lines]
    return sorted(begin[1] for begin in begins if begin and int(begin[2]) > since)


def lost_nodes(nodes: Sequence[str]) -> list[str]:
    """Those of the nodes that Slurm calls down, or that do not answer it."""
    if not nodes:
        return []
    options = ["--noheader", "--Node", f"--nodes={','.join(nodes)}", "--format=%N %T"]
    rows = [line.split() for line in _run(["sinfo", *options], _TIMEOUT_S).text.splitlines()]
    lost = {name for name, state in rows if state.startswith(("down", "fail")) or "*" in state}
    return sorted(lost)


def _ask_sacct(job_ids: Sequence[str]) -> tuple[dict[str, JobInfo], _Answer]:
    options = ["--noheader", "--parsable2", "--allocations", f"--jobs={','.join(job_ids)}"]
    answer = _run(["sacct", *options, f"--format={','.join(_SACCT_FIELDS)}"], _TIMEOUT_S)
    return parse_sacct(answer.text), answer


def parse_sacct(text: str) -> dict[str, JobInfo]:
    """Jobs by id from the lines of `sacct --parsable2`; `CANCELLED by 1000` gives a reason."""
    rows = [line.split("|") for line in text.splitlines()]
    whole = [row for row in rows if len(row) == len(_SACCT_FIELDS)]
    jobs = [_from_sacct(dict(zip(_SACCT_FIELDS, row, strict=True))) for row in whole]
    return {job.job_id: job for job in jobs}


def _from_sacct(row: Mapping[str, str]) -> JobInfo:
    state, _, by = row["State"].partition(" by ")
    return JobInfo(
        job_id=row["JobID"],
        state=state,
        reason=f"by user id {by}" if by else "",
        exit_code=_exit_code(row["ExitCode"]),
        start_time=_number(row["Start"]),
        end_time=_number(row["End"]),
        partition=row["Partition"],
        nodes=_word(row["NodeList"]),
    )


def _run(words: Sequence[str], timeout_s: float) -> _Answer:
    """Run one of Slurm's tools."""
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            env=query_environment(os.environ),
            timeout=max(0.0, timeout_s),
        )
    except FileNotFoundError:
        return _Answer(problem=f"`{words[0]}` was not found on PATH")
    except OSError as error:
        return _Answer(problem=f"`{words[0]}` cannot be run: {error.strerror}")
    except subprocess.TimeoutExpired:
        return _Answer(problem=f"`{words[0]}` gave no answer within {timeout_s:.0f} s")
    if done.returncode == 0 and "error" not in done.stderr:  # a bad column is only complained of
        return _Answer(done.stdout)
    said = done.stderr.strip().splitlines()
    return _Answer(done.stdout, said[-1] if said else f"`{words[0]}` exited {done.returncode}")


def _word(text: str) -> str:
    """Slurm's ways to say nothing are nothing."""
    return "" if text in ("None", "(null)", "N/A", "None assigned") else text


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _exit_code(text: str) -> int | None:
    """`3:0`, `0:15`, or squeue's wait status (768, 15), as a shell would show it."""
    if text.isdigit():
        code, signal_number = divmod(int(text), 256)
    elif match := re.fullmatch(r"(\d+):(\d+)", text):
        code, signal_number = int(match[1]), int(match[2])
    else:
        return None
    return 128 + (signal_number & 0x7F) if signal_number else code
