"""`rehearse`: prove that a job survives preemption on this cluster, before it matters."""

import json
import os
import sys
import time
from typing import Any

import click

from hpcddp.cli.options import RequestCommand, build_request, request_options
from hpcddp.cli.submit import warn
from hpcddp.config.layout import EXIT_DONE, EXIT_FAILED
from hpcddp.errors import HpcddpError
from hpcddp.launch.phrases import table
from hpcddp.launch.rehearsal import rehearse, short_overrides
from hpcddp.launch.request import resolve_request
from hpcddp.launch.submission import prepare
from hpcddp.run_dir import RunDir, runs_root, write_atomically

_FEWEST_STEPS = 4  # one before the signal, and some after the restart

_PREEMPTION = {
    "OFF": "none: Slurm takes no nodes from jobs of this partition and QOS",
    "REQUEUE": "PreemptMode=REQUEUE: the job starts again",
    "CANCEL": "PreemptMode=CANCEL: the job comes back only if it stops in time, as above",
    "SUSPEND": "PreemptMode=SUSPEND: the job stands still in memory, and goes on later",
}


@click.command(cls=RequestCommand)
@request_options
@click.option("--steps", type=click.IntRange(_FEWEST_STEPS), default=30, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="print the report as one object")
@click.pass_context
def command(context: click.Context, steps: int, as_json: bool, **typed: Any) -> None:  # noqa: ANN401
    """Run a short copy of a job twice, once uninterrupted and once preempted, and compare.

    The second run gets SIGTERM after a third of its steps, saves, is requeued and goes on. Exit
    code 1 if the job would lose work: steps lost, other bits, no restart, too short a warning, or
    a stop that takes longer than a preemption leaves it on that partition.
    """
    request = resolve_request(build_request(context, typed, short_overrides(steps)), os.environ)
    if request.config.command:
        raise HpcddpError(
            "`rehearse` compares what hpcddp's own training has saved; where your program keeps "
            "its state is not known here. Leave out `-- COMMAND`."
        )
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = typed["name"] or f"rehearse-{request.job_name}-{stamp}"
    is_ours = not typed["name"]
    plain = prepare(request, f"{name}-uninterrupted", os.environ, may_rename=is_ours)
    stopped = prepare(request, f"{name}-interrupted", os.environ, may_rename=is_ours)
    warn(plain.warnings)
    report = rehearse(plain, stopped, out=sys.stderr if as_json else sys.stdout)
    text = json.dumps(report.as_document(), indent=2)
    folder = RunDir(runs_root(os.environ) / report.interrupted).reports
    if folder.parent.is_dir():
        folder.mkdir(exist_ok=True)
        write_atomically(folder / "rehearsal.json", f"{text}\n")
    click.echo(text if as_json else "\n".join(_lines(report.as_document())))
    sys.exit(EXIT_FAILED if report.problems else EXIT_DONE)


def _lines(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    comparison = report["comparison"] or {}
    tensors = f"identical: {comparison.get('num_tensors')} tensors"
    if comparison and not comparison["identical"]:
        tensors = f"different, first {comparison['first_differing']}"
    pairs = [
        ("weights and state", tensors if comparison else "not compared"),
        ("steps lost", report["steps_lost"]),
        ("save at the stop", _seconds(report["save_s"])),
        ("save beside training stalls it", _seconds(report["stall_s"])),
        ("signal to exit", _seconds(report["stop_s"])),
        ("exit to restart (requeue)", _seconds(report["requeue_s"])),
        ("restart to first step", _seconds(report["restart_s"])),
        ("resources.warn_before_s", _recommended(report)),
        ("seconds between checkpoints", _seconds(report["recommended_interval_s"])),
    ]
    if report["preempt_mode"] is not None:
        mode = report["preempt_mode"]
        pairs.append(("preemption there", _PREEMPTION.get(mode, f"PreemptMode={mode}")))
    if report["kill_after_s"] is not None:
        pairs.insert(5, ("a preemption kills after", _seconds(report["kill_after_s"])))
    rows = [(name, "-" if value is None else str(value)) for name, value in pairs]
    verdict = "This job survives a preemption with the same bits."
    if report["problems"]:
        verdict = "This job would lose work: " + "; ".join(report["problems"]) + "."
    return ["", *table(rows), "", verdict]


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f} s"


def _recommended(report: dict[str, Any]) -> str:
    advice = report["recommended_warn_before_s"]
    enough = "" if advice is None else f"; {advice} would be enough"
    return f"{report['warn_before_s']}{enough}"
