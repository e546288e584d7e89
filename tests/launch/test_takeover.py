"""A new job takes over a run where Slurm forbids to requeue the old one."""

import errno
import re
import shutil
import signal
import socket
import time
from functools import partial
from types import SimpleNamespace

import pytest
from last_act import FIRST, SILENT

from hpcddp.config.load import Layer, resolve
from hpcddp.config.write import config_text
from hpcddp.errors import SubmissionFailed
from hpcddp.launch import exclusion, order, requeue, slurm, stop_reason, takeover
from hpcddp.launch.requeue import finish_attempt
from hpcddp.launch.scheduler import JobInfo
from hpcddp.run_dir import RunDir

pytestmark = pytest.mark.usefixtures("slurm_says")


@pytest.fixture
def sent(monkeypatch):
    """Slurm forbids to requeue; what a new job would be sent with, and how sbatch answers."""
    monkeypatch.undo()  # of `send_anew`
    monkeypatch.setattr(stop_reason, "show_job", lambda job_id: JobInfo("7", state="RUNNING"))
    monkeypatch.setattr(order, "_scontrol", lambda words: "disabled")
    calls = SimpleNamespace(options=[], answer="8")

    def submit(run_dir, *options):
        calls.options.append(options)
        if isinstance(calls.answer, Exception):
            raise calls.answer
        return calls.answer

    monkeypatch.setattr(slurm, "submit_to_slurm", submit)
    return calls


def test_the_new_job_is_described_as_the_newest_submission_was(run_dir, sent):
    run_dir.append_event("submitted", nodes=4, run="r", launcher="slurm", job_id="7")
    finish_attempt(run_dir, 75, {"SLURM_JOB_ID": "7"})
    event = run_dir.read_events()[-1]
    assert (event["event"], event["nodes"], event["job_id"]) == ("submitted", 4, "8")
    assert sent.options == [("--dependency=singleton",)]  # not before this job is gone


def test_a_new_job_keeps_off_a_lost_node_and_off_those_of_its_user(run_dir, sent, monkeypatch):
    values = {
        "train": {"max_steps": 1},
        "requeue": {"max_failures": 1},
        "resources": {"sbatch": {"exclude": "n9"}},
    }
    run_dir.config.write_text(config_text(resolve([Layer("test", values)])))
    monkeypatch.setattr(exclusion, "lost_nodes", lambda hosts: ["n2"])
    monkeypatch.setattr(exclusion, "ask_sbatch", lambda *_: (True, ""))
    run_dir.script.touch()
    finish_attempt(run_dir, 1, {"SLURM_JOB_ID": "7"})
    assert sent.options == [("--dependency=singleton", "--exclude=n9,n2")]


@pytest.fixture
def full_disk(run_dir, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunDir, "append_event", full)


def test_a_new_job_that_a_full_disk_does_not_hear_of_is_sent_and_told(
    sent, full_disk, run_dir, capfd
):
    assert finish_attempt(run_dir, 75, FIRST) == 75
    assert sent.options == [("--dependency=singleton",)]
    said = capfd.readouterr().err
    assert "sent anew as job 8\nhpcddp: not recorded: submitted: no space left on device" in said
    assert run_dir.handled(0).exists()  # else the script would ask for a requeue as well


def test_a_refused_requeue_is_told_on_a_full_disk(run_dir, monkeypatch, full_disk, capfd):
    monkeypatch.setattr(order, "_scontrol", lambda words: "no such job")
    assert finish_attempt(run_dir, 75, FIRST) == 75
    assert "cannot requeue 7: no new job either" in capfd.readouterr().err
    assert run_dir.handled(0).exists()


def test_a_controller_that_goes_away_before_it_takes_the_new_job_is_waited_for(run_dir, sent, naps):
    sent.answer = SubmissionFailed(SILENT.reason)
    naps.calls = [lambda: None, lambda: setattr(sent, "answer", "8")]
    finish_attempt(run_dir, 75, FIRST)
    event = run_dir.read_events()[-1]
    assert (event["event"], event.get("job_id"), len(sent.options)) == ("submitted", "8", 3)


def test_a_new_job_that_may_have_been_taken_is_no_refusal(run_dir, sent):
    sent.answer = SubmissionFailed("timed out", maybe_sent=True)
    finish_attempt(run_dir, 75, {"SLURM_JOB_ID": "7"})
    event = run_dir.read_events()[-1]
    assert (event["event"], "job_id" in event) == ("submitted", False)


@pytest.fixture
def only_tools(run_dir, tmp_path, monkeypatch):
    """Leave nothing on PATH but these tools, the named ones with a body of their own."""
    monkeypatch.undo()  # of `send_anew`
    run_dir.script.write_text("#!/bin/sh\n")
    monkeypatch.setattr(stop_reason, "show_job", lambda job_id: JobInfo("7", state="RUNNING"))

    def only_tools(*names, **bodies):
        for tool in names:
            (tmp_path / tool).symlink_to(shutil.which(tool))
        for tool, body in bodies.items():
            (tmp_path / tool).write_text(f"#!/bin/sh\n{body}\n")
            (tmp_path / tool).chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return only_tools


def test_a_node_without_sbatch_is_told_and_nobody_there_is_sent_to_a_login_node(
    run_dir, only_tools
):
    only_tools("sh", "env", scontrol="echo disabled; exit 1")
    finish_attempt(run_dir, 75, {"SLURM_JOB_ID": "7"})
    event = run_dir.read_events()[-1]
    assert event["event"] == "failed"
    assert re.fullmatch(
        r"Slurm refused to requeue: \S+ .sbatch.: No such file or directory; "
        rf"`python -m hpcddp resume {run_dir.name}` goes on",
        event["reason"],
    )


def test_a_node_without_any_tool_of_slurm_promises_no_start_and_says_what_to_type(
    run_dir, only_tools
):
    only_tools("sh")
    assert finish_attempt(run_dir, 75, FIRST) == 75
    assert "requeued" not in {event["event"] for event in run_dir.read_events()}
    event = run_dir.read_events()[-1]
    assert (event["event"], event["exit_code"]) == ("failed", 75)
    assert event["reason"] == (
        f"signalled; {socket.gethostname()} has no scontrol and no sbatch to requeue with; "
        f"`python -m hpcddp resume {run_dir.name}` goes on"
    )
    assert run_dir.handled(0).exists()  # the script has no scontrol either


def test_a_run_that_is_cancelled_while_slurm_is_asked_is_not_sent_anew(run_dir, sent, monkeypatch):
    def cancelled_meanwhile(words):
        run_dir.append_event("cancelled", by="ada")
        return "disabled"

    monkeypatch.setattr(order, "_scontrol", cancelled_meanwhile)
    finish_attempt(run_dir, 75, {"SLURM_JOB_ID": "7"})
    assert sent.options == []


@pytest.fixture
def scancelled(sent, monkeypatch):
    """The user has cancelled this job by `scancel` once a new one was sent so often, or before."""
    ended = []

    def show(job_id):
        is_over = len(sent.options) >= sent.sent_before
        return JobInfo("7", state="CANCELLED" if is_over else "RUNNING", end_time=time.time())

    monkeypatch.setattr(stop_reason, "show_job", show)
    monkeypatch.setattr(takeover, "tell", lambda words, timeout_s: ended.append(words))
    return ended


@pytest.mark.parametrize(("sent_before", "ended"), [(0, []), (1, [["scancel", "8"]])])
def test_a_job_whose_user_cancels_it_while_another_takes_over_does_not_come_back(
    run_dir, sent, scancelled, sent_before, ended
):
    sent.sent_before = sent_before
    takeover.send_anew(run_dir, partial(requeue._is_cancelled, run_dir, 0, FIRST), "")
    assert (len(sent.options), scancelled) == (sent_before, ended)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN  # scancel sends it to who asks


def test_a_preempted_job_whose_grace_ends_while_another_takes_over_comes_back(
    run_dir, sent, scancelled
):
    """Slurm then shows it as if its user had cancelled it."""
    run_dir.append_event("stop_reason", attempt=0, reason="preempted", end_time=time.time() - 1)
    sent.sent_before = 0
    takeover.send_anew(run_dir, partial(requeue._is_cancelled, run_dir, 0, FIRST), "")
    assert (len(sent.options), scancelled) == (1, [])
