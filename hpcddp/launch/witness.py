"""What the main process tells the run about its own attempt, beside the work. Knows no torch."""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hpcddp.cluster.variables import ATTEMPT_TIME_VARIABLE
from hpcddp.config.layout import ProcessLayout
from hpcddp.config.schema import RunConfig
from hpcddp.launch.decision import tells_end
from hpcddp.launch.history import FileTail, Record, last_step
from hpcddp.launch.scheduler import lost_nodes, requeues_preempted, restarted_nodes
from hpcddp.launch.stop_reason import StopReason, ask_stop_reason
from hpcddp.run_dir import RunDir, survive_unwritten_records
from hpcddp.stop_flag import StopFlag

_NODE_RESTART = "daemon of its node restarted"
_METRICS_TAIL_BYTES = 16 * 1024


def attend(
    config: RunConfig,
    layout: ProcessLayout,
    run_dir: RunDir,
    stop_flag: StopFlag,
    environ: Mapping[str, str],
) -> threading.Thread:
    """Record that the attempt begins and how the one before ended; from now on note why it stops.

    Call it in the main process. The thread that is returned ends once it has noted that.
    """
    with survive_unwritten_records():
        _explain_predecessor(layout, run_dir, environ)
    with survive_unwritten_records():
        _record_launch(layout, run_dir, environ)
    notes = threading.Thread(
        target=_note_stop,
        args=(config, layout, run_dir, stop_flag, environ),
        name="stop-reason",
        daemon=True,
    )
    notes.start()
    return notes


def _record_launch(layout: ProcessLayout, run_dir: RunDir, environ: Mapping[str, str]) -> None:
    """`began` is when the batch script did; `last_step` what earlier attempts had reached."""
    fields: dict[str, Any] = {}
    if began := environ.get(ATTEMPT_TIME_VARIABLE):
        fields["began"] = float(began)
    if layout.attempt:
        records = FileTail(run_dir.metrics, _METRICS_TAIL_BYTES).lines()
        fields["last_step"] = last_step(records, run_dir.read_events())
    run_dir.append_event(
        "launched",
        attempt=layout.attempt,
        job_id=layout.job_id,
        restart_count=layout.restart_count,
        **fields,
    )


def _explain_predecessor(
    layout: ProcessLayout, run_dir: RunDir, environ: Mapping[str, str]
) -> None:
    """An attempt that a lost node or SIGKILL has ended could not say so itself."""
    if not layout.requeue_target or not layout.restart_count:
        return
    events = run_dir.read_events()
    predecessor = _newest_launch_before(layout, events)
    own = [event for event in events if event.get("attempt") == predecessor]
    if predecessor is None or _has_told_end(own):
        return
    hosts = next((event["hosts"] for event in own if event.get("hosts")), ())
    began = next((event["began"] for event in own if "began" in event), time.time())
    reason = StopReason.REQUEUED.value
    if lost := lost_nodes(hosts):
        reason = StopReason.NODE_FAILURE.value
    elif lost := restarted_nodes(hosts, began):  # for whatever reason: an update of Slurm is one
        reason = _NODE_RESTART
    queue = [environ.get(f"SLURM_JOB_{name}", "") for name in ("PARTITION", "QOS")]
    is_preemptible = not lost and requeues_preempted(*queue)
    hints = {"preemptible": True} if is_preemptible else {}
    run_dir.append_event("ended", attempt=predecessor, reason=reason, lost_nodes=lost, **hints)


def _newest_launch_before(layout: ProcessLayout, events: Sequence[Record]) -> int | None:
    """This job's newest attempt before this one that has written a word. One in between has not:
    the run was refused to it, or it was ended too early.
    """
    launches = (e for e in events if e["event"] == "launched" and e.get("job_id") == layout.job_id)
    earlier = (e["attempt"] for e in launches if e.get("attempt", layout.attempt) < layout.attempt)
    return max(earlier, default=None)


def _has_told_end(events: Sequence[Record]) -> bool:
    """Why it was to stop is enough. What failed on one process may be the loss of another."""
    told = [event for event in events if tells_end(event) or event["event"] == "stop_reason"]
    return any(event.get("reason") != StopReason.REQUEUED.value for event in told)


def _note_stop(
    config: RunConfig,
    layout: ProcessLayout,
    run_dir: RunDir,
    stop_flag: StopFlag,
    environ: Mapping[str, str],
) -> None:
    """Ask Slurm at once: what it says while it kills the job is often nothing."""
    notice = stop_flag.wait()
    says: dict[str, Any] = {"reason": "signalled"}
    if layout.requeue_target:
        answer = ask_stop_reason(environ, config.resources.warn_before_s)
        says = {"reason": answer.reason.value, "end_time": answer.end_time, **answer.hints}
    with survive_unwritten_records():
        run_dir.append_event(
            "stop_reason", attempt=layout.attempt, **says, signal_time=round(notice.time, 3)
        )
