"""A rehearsal sees what two runs have shown, and says no where a job would lose work."""

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner
from patience import WAITS_FOR_A_STOP
from waiting import wait_until

from hpcddp.cli import rehearse as rehearse_module
from hpcddp.config.load import Layer, resolve
from hpcddp.config.schema import RunConfig
from hpcddp.launch import rehearsal
from hpcddp.launch.rehearsal import _stopped_at, preemption_of, report
from hpcddp.run_dir import RunDir
from hpcddp.train.checkpoint import save_checkpoint

TINY = ["train.model=resnet18", "train.global_batch=8", "data.name=synthetic", "data.image_size=8"]


def rehearse(*words):
    command = [sys.executable, "-m", "hpcddp", "rehearse", "--cluster", "local", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=500)


@pytest.fixture
def quick(workplace, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return workplace


@pytest.mark.parametrize(("words", "may_rename"), [([], True), (["--name", "q"], False)])
def test_only_names_that_nobody_chose_give_way(workplace, monkeypatch, words, may_rename):
    seen = []
    monkeypatch.setattr(rehearse_module, "rehearse", lambda *both, out: sys.exit(seen.extend(both)))
    CliRunner().invoke(rehearse_module.command, ["--cluster", "local", *words, *TINY])
    assert [submission.renamed is not None for submission in seen] == [may_rename] * 2


def test_a_job_that_survives_is_said_to_survive_with_every_number(quick, monkeypatch):
    """It is not over before it can be interrupted, however late that is."""
    lines = WAITS_FOR_A_STOP.format(name="q-interrupted", rank=0, step=5)
    test = "import os\nif 'HPCDDP_GLOBAL_RANK' in os.environ:\n"
    (quick / "sitecustomize.py").write_text(test + textwrap.indent(lines, "    "))
    monkeypatch.setenv("PYTHONPATH", f"{quick}:{os.environ.get('PYTHONPATH', '')}")
    done = rehearse("--nodes", "2", "--name", "q", "--steps", "9", "--json", *TINY)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert found["comparison"]["identical"]
    assert found["comparison"]["num_tensors"] > 100
    assert found["steps_lost"] == 0
    for key in ("save_s", "stall_s", "stop_s", "requeue_s", "restart_s", "recommended_interval_s"):
        assert found[key] >= 0, key
    assert found["recommended_warn_before_s"] >= 10
    interrupted = RunDir(quick / "runs" / "q-interrupted")
    assert json.loads((interrupted.reports / "rehearsal.json").read_text()) == found
    kinds = [event["event"] for event in interrupted.read_events()]
    assert kinds.count("requeued") == kinds.count("resumed") == 1
    assert interrupted.read_events()[kinds.index("stopped")]["step"] in (3, 4, 5, 6)


def test_a_job_that_fails_by_itself_is_not_interrupted(quick):
    done = rehearse("--name", "q", "--steps", "4", *TINY, "optim.lr=1e30")
    assert done.returncode == 1
    assert "the uninterrupted run did not finish" in done.stdout
    assert not (quick / "runs" / "q-interrupted").exists()


def test_who_leaves_the_display_gets_no_verdict(monkeypatch, tmp_path):
    sent = []
    monkeypatch.setattr(
        rehearsal, "send", lambda submission: sent.append(submission) or (submission, "7")
    )
    monkeypatch.setattr(rehearsal, "follow", lambda run_dir, out: 130)
    plain = SimpleNamespace(
        request=SimpleNamespace(config=RunConfig(), profile=SimpleNamespace(launcher="local")),
        run_dir=RunDir(tmp_path),
    )
    with pytest.raises(KeyboardInterrupt):
        rehearsal.rehearse(plain, plain, sys.stdout)
    assert len(sent) == 1


def test_a_program_of_ones_own_cannot_be_rehearsed(quick):
    done = rehearse("--name", "q", "--", "true")
    assert done.returncode == 2
    assert "-- COMMAND" in done.stderr
    assert not (quick / "runs").exists()


def test_a_signal_that_cannot_be_sent_is_said(quick, monkeypatch):
    scancel = quick / "bin" / "scancel"
    scancel.parent.mkdir()
    scancel.write_text("#!/bin/sh\necho 'error: Invalid job id' >&2; exit 1\n")
    scancel.chmod(0o755)
    monkeypatch.setenv("PATH", f"{scancel.parent}:{os.environ['PATH']}")
    run_dir = RunDir(quick)
    run_dir.metrics.write_text('{"step": 3}\n')
    with _stopped_at(run_dir, 3, "slurm", "7") as refusals:
        wait_until(lambda: refusals)
    with _stopped_at(run_dir, 3, "local", "local-7") as more:
        wait_until(lambda: more)
    assert [*refusals, *more] == [
        "SIGTERM was not sent: error: Invalid job id",
        "SIGTERM was not sent: no process was running",
    ]


def ended_run(path, *events, weight=1.0):
    """A finished run with these events and one checkpoint."""
    run_dir = RunDir(path)
    run_dir.checkpoints.mkdir(parents=True)
    run_dir.append_event("submitted", launcher="local", job_id="local-1")
    for kind, fields in events:
        run_dir.append_event(kind, **{"attempt": 0} | fields)
    run_dir.append_event("finished", attempt=max(f.get("attempt", 0) for _, f in events))
    save_checkpoint(run_dir.checkpoints, 9, {"model": {"w": torch.tensor([weight])}}, {}, 1)
    return run_dir


STOPPED = [
    ("launched", {"began": 100.0}),
    ("started", {}),
    ("first_step", {"time": 105.0, "step": 1}),
    ("stop_reason", {"signal_time": 110.0, "reason": "signalled"}),
    ("checkpoint", {"step": 3, "seconds": 1.0, "stall_s": 0.2}),
    ("requeued", {"time": 130.0, "reason": "signalled", "exit_code": 75}),
    ("launched", {"attempt": 1, "began": 140.0, "last_step": 3}),
    ("started", {"attempt": 1}),
    ("resumed", {"attempt": 1, "step": 3}),
    ("first_step", {"attempt": 1, "time": 150.0, "step": 4}),
]


@pytest.fixture
def looked_at(tmp_path):
    """What a rehearsal says of an interrupted run with these events."""

    def look(events, lead_s=120, kill_after_s=None, **weights):
        plain = ended_run(tmp_path / "a", ("launched", {}), ("started", {}))
        stopped = ended_run(tmp_path / "b", *events, **weights)
        values = {"train": {"max_steps": 9}, "resources": {"warn_before_s": lead_s}}
        return report(plain, stopped, resolve([Layer("test", values)]).config, kill_after_s)

    return look


def test_the_times_of_a_rehearsal(looked_at):
    found = looked_at(STOPPED)
    assert found.problems == ()
    assert (found.stop_s, found.requeue_s, found.restart_s) == (20.0, 10.0, 10.0)
    assert found.recommended_warn_before_s == 40


def test_other_bits_are_a_problem_that_names_the_first_tensor(looked_at):
    [problem] = looked_at(STOPPED, weight=2.0).problems
    assert "model.w" in problem


def test_lost_steps_are_a_problem(looked_at):
    events = [(k, f | {"last_step": 5} if "last_step" in f else f) for k, f in STOPPED]
    assert looked_at(events).problems == ("2 steps were lost",)


def test_a_stop_that_takes_longer_than_the_warning_is_a_problem(looked_at):
    [problem] = looked_at(STOPPED, lead_s=15).problems
    assert "resources.warn_before_s" in problem


@pytest.mark.parametrize(("kill_after_s", "is_late"), [(None, False), (22, False), (21, True)])
def test_a_stop_that_outlasts_a_preemption_is_a_problem(looked_at, kill_after_s, is_late):
    """20 s from the signal to the exit, and one more for a save that may be under way."""
    problems = looked_at(STOPPED, kill_after_s=kill_after_s).problems
    assert ["GraceTime and KillWait" in problem for problem in problems] == [True] * is_late


SLURM = {
    "config": "KillWait = 30 sec\nClusterName = x\nPreemptType = preempt/partition_prio\n",
    "partition": (
        "PartitionName=a GraceTime=20 PriorityTier=1 PreemptMode=REQUEUE\n"
        "PartitionName=b GraceTime=0 PriorityTier=1 PreemptMode=OFF\n"
        "PartitionName=still GraceTime=0 PriorityTier=1 PreemptMode=SUSPEND\n"
        "PartitionName=plain GraceTime=0 PriorityTier=1 PreemptMode=GANG,CANCEL\n"
        "PartitionName=top GraceTime=0 PriorityTier=9 PreemptMode=REQUEUE\n"
    ),
}


@pytest.mark.parametrize(
    ("partition", "mode", "seconds"),
    [
        ("a", "REQUEUE", 50),
        ("b", "OFF", None),
        ("still", "SUSPEND", None),
        ("plain", "CANCEL", 30),
        ("top", "OFF", None),
        ("gone", None, None),
    ],
)
def test_how_and_when_a_preemption_ends_a_job_is_slurms_own_word(partition, mode, seconds):
    def ask(words):
        return next((SLURM[word] for word in words if word in SLURM), "")

    assert preemption_of(partition, "", ask) == (mode, seconds)
    assert preemption_of(partition, "", lambda words: "") == (None, None)


@pytest.mark.parametrize(
    ("mode", "words"),
    [("OFF", "takes no nodes"), ("SUSPEND", "stands still"), ("CANCEL", "only if"), (None, None)],
)
def test_the_report_says_what_a_preemption_does_there(looked_at, mode, words):
    found = replace(looked_at(STOPPED), preempt_mode=mode)
    told = [line for line in rehearse_module._lines(found.as_document()) if "preemption th" in line]
    assert [words in line for line in told] == ([True] if mode else [])


def test_a_run_that_was_over_too_soon_proves_nothing(looked_at):
    [problem] = looked_at(STOPPED[:2]).problems
    assert "--steps" in problem
