"""A new job takes over a run from this one, where Slurm forbids to requeue it. Loads no torch."""

import signal
from collections.abc import Callable
from typing import Any

from hpcddp.errors import SubmissionFailed
from hpcddp.launch.notes import say, write_event
from hpcddp.launch.slurm_tool import tell
from hpcddp.run_dir import RunDir

_SCANCEL_TIMEOUT_S = 60
_SUBMITTED_FIELDS = ("run", "launcher", "cluster", "nodes", "processes_per_node")


def send_anew(run_dir: RunDir, is_cancelled: Callable[[], bool], excluded: str) -> str | None:
    """Where Slurm forbids to requeue, a new job takes over, and keeps off the nodes `excluded`;
    the refusal, or None.

    `singleton` holds it until the last job of this name and user, which is this one, has ended. Who
    cancels this one meanwhile means the run: what ends it must not end us before we know of that.
    """
    from hpcddp.launch.slurm import submit_to_slurm

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if is_cancelled():
        return None
    newest = next((e for e in reversed(run_dir.read_events()) if e["event"] == "submitted"), {})
    fields: dict[str, Any] = {key: newest[key] for key in _SUBMITTED_FIELDS if key in newest}
    options = ["--dependency=singleton", *([f"--exclude={excluded}"] if excluded else [])]
    try:
        fields["job_id"] = submit_to_slurm(run_dir, *options)
    except SubmissionFailed as error:
        if not error.maybe_sent:
            return str(error)
    say(f"sent anew as job {fields.get('job_id', 'of a number that is not known')}")
    write_event(run_dir, "submitted", **fields, again=True)
    if "job_id" in fields and is_cancelled():
        tell(["scancel", str(fields["job_id"])], _SCANCEL_TIMEOUT_S)
    return None
