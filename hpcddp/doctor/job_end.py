"""What it means when the job of the doctor itself ends without a report. Reads nothing."""

from collections.abc import Sequence

from hpcddp.doctor.findings import (
    RUNS_SHARED,
    SHARE_RUNS,
    SHARED_FOLDER,
    Finding,
    Verdict,
    fail,
    finding,
)

_NO_FILE = ("No such file or directory", "did not appear within")
_NO_LOG = "could not connect IO"  # what srun says of a task whose log its node cannot open
_NO_BATCH_LOG = " (JobLaunchFailure)"  # what `status` says of a batch log its node cannot open
_LONGEST = 300


def examine_end(host: str, runs: str, reason: str, log: str, look: str) -> Finding:
    """The one finding about a job that failed: `reason` as `status` says it, the end of its log,
    the folder of the runs, and the command that shows more.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if verdict := _never_began(runs, reason) or _unshared(runs, lines):
        return finding(RUNS_SHARED, host, verdict)
    said = reason or (lines[-1] if lines else "no reason known")
    verdict = fail(f"ended without a report: {said[:_LONGEST]}", "a job that runs", look)
    return finding("job", host, verdict)


def _never_began(runs: str, reason: str) -> Verdict | None:
    """What is wrong where the first node could not even open the job's log; else None."""
    who_and_what, why, _ = reason.partition(_NO_BATCH_LOG)
    if not why:
        return None
    said = f"a node does not see {runs}, or may not write there: {who_and_what[:_LONGEST]}"
    return fail(said, SHARED_FOLDER, f"{SHARE_RUNS}; if it is shared, look whether it is full")


def _unshared(runs: str, lines: Sequence[str]) -> Verdict | None:
    """What is wrong where a node seems not to see the folder of the runs; else None."""
    for line in lines:
        if runs in line and any(words in line for words in _NO_FILE):
            return fail(f"a node does not see {runs}: {line[:_LONGEST]}", SHARED_FOLDER, SHARE_RUNS)
        if _NO_LOG in line:
            said = f"a node cannot open its log in {runs}, or cannot reach srun: {line[:_LONGEST]}"
            fix = f"{SHARE_RUNS}; if it is shared, look for a firewall between nodes"
            return fail(said, SHARED_FOLDER, fix)
    return None
