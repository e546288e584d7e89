"""A new job takes over a run from this one, where Slurm forbids to requeue it. Loads no torch."""

from collections.abc import Mapping
from typing import Any

from hpcddp.errors import SubmissionFailed
from hpcddp.launch.history import since_sent
from hpcddp.launch.notes import say, write_event
from hpcddp.launch.slurm_tool import tell
from hpcddp.launch.stop_reason import StopReason, ask_stop_reason
from hpcddp.run_dir import RunDir

_SCANCEL_TIMEOUT_S = 60
_SUBMITTED_FIELDS = ("run", "launcher", "cluster", "nodes", "processes_per_node")


def send_anew(run_dir: RunDir, environ: Mapping[str, str]) -> str | None:
    """Where Slurm forbids to requeue, a new job takes over; the refusal, or None.

    `singleton` holds it until the last job of this name and user, which is this one, has ended. Who
    cancels this one meanwhile means the run.
    """
    from hpcddp.launch.slurm import submit_to_slurm

    if _is_cancelled(run_dir, environ):
        return None
    newest = next((e for e in reversed(run_dir.read_events()) if e["event"] == "submitted"), {})
    fields: dict[str, Any] = {key: newest[key] for key in _SUBMITTED_FIELDS if key in newest}
    try:
        fields["job_id"] = submit_to_slurm(run_dir, "--dependency=singleton")
    except SubmissionFailed as error:
        if not error.maybe_sent:
            return str(error)
    say(f"sent anew as job {fields.get('job_id', 'of a number that is not known')}")
    write_event(run_dir, "submitted", **fields, again=True)
    if "job_id" in fields and _is_cancelled(run_dir, environ):
        tell(["scancel", str(fields["job_id"])], _SCANCEL_TIMEOUT_S)
    return None


def _is_cancelled(run_dir: RunDir, environ: Mapping[str, str]) -> bool:
    return has_said_so(run_dir) or ask_stop_reason(environ, 0).reason is StopReason.CANCELLED


def has_said_so(run_dir: RunDir) -> bool:
    """True once `hpcddp cancel` has recorded itself, which comes before Slurm does it."""
    return any(e["event"] == "cancelled" for e in since_sent(run_dir.read_events()))
