"""What training tells the run directory and the log, from the main process only.

Events tell the story of the run, metrics are its curves, lines are for who reads the log. Knows no
tensor.
"""

import logging
import signal
import time
from typing import Any

from hpcddp.checkpoint_dir import CheckpointInfo, read_manifest
from hpcddp.config.identity import change_words
from hpcddp.config.layout import ProcessLayout
from hpcddp.run_dir import RunDir, append_json_line, survive_unwritten_records
from hpcddp.train.resume import ResumePoint

_log = logging.getLogger(__name__)


class Journal:
    """Writes in the main process; in the others the same calls do nothing."""

    def __init__(self, run_dir: RunDir, layout: ProcessLayout) -> None:
        self._run_dir = run_dir
        self._layout = layout

    def started(self, **fields: Any) -> None:  # noqa: ANN401
        layout = self._layout
        facts = ", ".join(f"{name} {value}" for name, value in fields.items())
        _log.info("%d processes: %s", layout.world_size, facts)
        self._event("started", world_size=layout.world_size, hosts=list(layout.hosts), **fields)

    def resumed(self, point: ResumePoint) -> None:
        self._event("resumed", step=point.step, changed=point.changed)
        _log.info("Resumed from %s", point.path)
        if point.changed:
            _log.warning(
                "Changed since it was written: %s. The same samples in the same steps, but sums "
                "may be rounded differently, so the weights will not be bit-identical",
                change_words(point.changed),
            )

    def stepped(
        self,
        step: int,
        total_steps: int,
        *,
        label: str | None,
        **fields: Any,  # noqa: ANN401
    ) -> None:
        """One training record: epoch, loss, lr, rates, and what the steps consisted of.

        `label` is what its numbers must not be shown without, where there is such a thing.
        """
        self._metrics(step=step, **fields, **({"label": label} if label else {}))
        _log.info(
            "step %d/%d  epoch %.2f  loss %.4f  lr %.4g  %.1f images/s%s",
            *(step, total_steps, fields["epoch"], fields["loss"], fields["lr"]),
            *(fields["images_per_s"], f" ({label})" if label else ""),
        )
        if fields.get("skipped_steps"):
            _log.warning("%d steps were left out so far: not finite", fields["skipped_steps"])

    def stepped_first(self, step: int) -> None:
        """`step` is the first that this attempt has done."""
        self._event("first_step", step=step)

    def evaluated(self, step: int, weights: str, **fields: float) -> None:
        """One evaluation record: epoch, accuracy, eval_loss, samples, seconds.

        `weights` says whose they are: `model`, or `ema` for the average.
        """
        self._metrics(step=step, weights=weights, **fields)
        whose = " (EMA weights)" if weights == "ema" else ""
        _log.info("step %d  test accuracy %.2f %%%s", step, 100 * fields["accuracy"], whose)

    def saved(
        self, info: CheckpointInfo, seconds: float, stall_s: float, every_steps: int | None
    ) -> None:
        """Written in `seconds`, while training stood still for `stall_s`; the next is due later by
        `every_steps`. From any thread, in the main process only.
        """
        self._event(
            "checkpoint",
            step=info.step,
            seconds=round(seconds, 3),
            stall_s=round(stall_s, 4),
            bytes=read_manifest(info.path).size_bytes,
            every_steps=every_steps,
        )

    def not_saved(self, step: int, reason: str) -> None:
        self._event("checkpoint_failed", step=step, error=reason)
        _log.warning("The run goes on without this checkpoint: %s", reason)

    def signalled(self, signum: int, step: int) -> None:
        """`signum` was agreed on; some process got it."""
        name = signal.Signals(signum).name
        self._event("signal", signal=name, step=step)
        _log.info("%s: stopping after step %d", name, step)

    def stopped(self, step: int, *, is_saved: bool = True) -> None:
        self._event("stopped", step=step, **({} if is_saved else {"saved": False}))
        _log.info("Stopped at step %d; the state is %s", step, "saved" if is_saved else "not saved")

    def stopped_unstarted(self, signum: int) -> None:
        """`signum` was agreed on before the first step."""
        self._event("stopped")
        _log.info("%s before the first step: nothing to save", signal.Signals(signum).name)

    def finished(self, step: int, accuracy: float, loss: float) -> None:
        self._event("finished", step=step, accuracy=accuracy, eval_loss=loss)
        _log.info("Finished at step %d: test accuracy %.2f %%", step, 100 * accuracy)

    def _event(self, kind: str, **fields: Any) -> None:  # noqa: ANN401
        if self._layout.is_main:
            place = {"attempt": self._layout.attempt, "job_id": self._layout.job_id}
            with survive_unwritten_records():
                self._run_dir.append_event(kind, **place, **fields)

    def _metrics(self, **fields: Any) -> None:  # noqa: ANN401
        """After a crash a step can have two records; the later one counts."""
        if self._layout.is_main:
            record = {**fields, "attempt": self._layout.attempt, "time": round(time.time(), 3)}
            with survive_unwritten_records():
                append_json_line(self._run_dir.metrics, record)
