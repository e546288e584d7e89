"""What it means when the job of the doctor itself ends without a report. Reads nothing."""

from hpcddp.doctor.findings import Finding, fail, finding

_NO_FILE = ("No such file or directory", "did not appear within")
_LONGEST = 300


def examine_end(host: str, runs: str, reason: str, log: str, look: str) -> Finding:
    """The one finding about a job that failed: `reason` as `status` says it, the end of its log,
    the folder of the runs, and the command that shows more.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    missing = next((line for line in lines if runs in line and _is_missing(line)), None)
    if missing:
        verdict = fail(
            f"a node does not see {runs}: {missing[:_LONGEST]}",
            "a folder that all nodes share",
            "export HPCDDP_RUNS_DIR=/SHARED/FOLDER/runs",
        )
        return finding("run directory shared", host, verdict)
    said = reason or (lines[-1] if lines else "no reason known")
    verdict = fail(f"ended without a report: {said[:_LONGEST]}", "a job that runs", look)
    return finding("job", host, verdict)


def _is_missing(line: str) -> bool:
    return any(words in line for words in _NO_FILE)
