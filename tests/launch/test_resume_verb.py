"""An ended run is sent again in its own folder; a living or a finished one is not."""

import os
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from hpcddp.checkpoint_dir import Manifest, checkpoint_path, write_manifest
from hpcddp.cli import group
from hpcddp.config.identity import chosen_settings, identity_of
from hpcddp.config.write import read_config
from hpcddp.errors import HpcddpError, SubmissionFailed
from hpcddp.launch.aside import keep_aside, put_back
from hpcddp.launch.history import read_history
from hpcddp.launch.watch.status import status_of
from hpcddp.run_dir import RunDir, append_json_line, write_atomically


def hpcddp(*words):
    return CliRunner().invoke(group, words, standalone_mode=False, catch_exceptions=False)


@pytest.fixture
def run_dir(fake_sbatch):
    hpcddp("submit", "--cluster", "generic", "--nodes", "2", "--name", "r", "optim.lr=0.5")
    return RunDir(fake_sbatch / "runs" / "r")


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_an_ended_run_is_sent_again_with_its_own_settings(run_dir, end):
    run_dir.append_event(end)
    before = run_dir.config.read_text(), run_dir.script.read_text()
    assert "job 4711" in hpcddp("resume", "r").stdout
    assert (run_dir.config.read_text(), run_dir.script.read_text()) == before
    assert [event["event"] for event in run_dir.read_events()][-2:] == [end, "submitted"]


def test_a_warning_too_short_for_the_last_save_is_said(run_dir):
    run_dir.append_event("checkpoint", step=1, seconds=100.0)
    run_dir.append_event("failed")
    assert "resources.warn_before_s=200" in hpcddp("resume", "r").stderr
    run_dir.append_event("failed")
    assert "warn_before_s" not in hpcddp("resume", "r", "resources.warn_before_s=200").stderr


def test_a_warning_too_short_for_a_step_is_said(run_dir):
    run_dir.append_event("checkpoint", step=1, seconds=1.0)
    run_dir.append_event("failed")
    append_json_line(run_dir.metrics, {"step": 10, "step_s": 150.2})
    said = hpcddp("resume", "r").stderr
    assert "a step 150.2 s" in said
    assert "resources.warn_before_s=153" in said


def test_changed_settings_are_kept_and_rendered(run_dir):
    run_dir.append_event("failed")
    before = run_dir.config.read_text().splitlines()
    hpcddp("resume", "r", "resources.time=08:00:00", "train.max_epochs=20")
    new = set(run_dir.config.read_text().splitlines()) - set(before)
    assert new == {"  time: 08:00:00  # command line", "  max_epochs: 20.0  # command line"}
    assert "#SBATCH --time=08:00:00" in run_dir.script.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes", "4"], "resources.nodes=4"),
        (["optim.lr=1", "--gpus-per-node=2", "train.seed=1"], "resources.gpus_per_node=2"),
        (["--time"], "resources.time=VALUE"),
        (["data.root=my --nodes 3", "--nodes=4"], "resources.nodes=4"),
        (["--follow"], ""),
    ],
)
def test_an_option_of_submit_is_answered_with_the_word_for_it(run_dir, words, said):
    run_dir.append_event("failed")
    with pytest.raises(click.UsageError) as caught:
        hpcddp("resume", "r", *words)
    message = caught.value.format_message()
    assert message.startswith("No such option")
    assert message.endswith(f"words: {said}") if said else "words" not in message
    assert run_dir.read_events()[-1]["event"] == "failed"


def test_a_run_may_go_on_as_dataparallel_on_one_node_alone(run_dir):
    run_dir.append_event("failed")
    before = run_dir.config.read_text(), run_dir.read_events()
    with pytest.raises(HpcddpError, match="one node with one process"):
        hpcddp("resume", "r", "train.replicas=dp")
    assert (run_dir.config.read_text(), run_dir.read_events()) == before
    hpcddp("resume", "r", "train.replicas=dp", "resources.nodes=1", "resources.gpus_per_node=4")
    script = run_dir.script.read_text()
    assert "#SBATCH --nodes=1\n" in script
    assert "#SBATCH --ntasks-per-node=1\n" in script


def test_a_finished_run_needs_a_new_length(run_dir):
    run_dir.append_event("finished", step=1)
    with pytest.raises(HpcddpError, match=r"is finished.*train\.max_epochs=N"):
        hpcddp("resume", "r")
    assert "job 4711" in hpcddp("resume", "r", "train.max_epochs=20").stdout


def test_a_finished_run_that_was_no_training_is_to_be_sent_under_another_name(run_dir):
    hpcddp("submit", "--cluster", "generic", "--nodes", "2", "--name", "own", "--", "true")
    RunDir(run_dir.path.with_name("own")).append_event("finished")
    with pytest.raises(HpcddpError, match=r"is finished\. .*another --name") as caught:
        hpcddp("resume", "own")
    assert "train" not in caught.value.message


def test_a_run_that_counts_steps_is_told_to_take_more_steps(run_dir):
    text = run_dir.config.read_text().replace("max_steps: null", "max_steps: 7")
    run_dir.config.write_text(text)
    run_dir.append_event("finished", step=7)
    with pytest.raises(HpcddpError, match=r"train\.max_steps=N"):
        hpcddp("resume", "r")


def test_a_run_of_the_users_own_line_is_not_sent_by_resume(run_dir):
    run_dir.script.unlink()
    run_dir.append_event("finished", step=1)
    with pytest.raises(HpcddpError, match="was not sent by `submit`"):
        hpcddp("resume", "r", "train.max_epochs=20")


def test_a_living_run_is_never_sent_twice(run_dir, fake_sbatch):
    squeue = fake_sbatch / "bin" / "squeue"
    row = "4711|RUNNING|gpu|0|0|1|9999999999|n1|None"
    squeue.write_text(f"#!/bin/bash\necho '{row}'\n")
    squeue.chmod(0o755)
    with pytest.raises(HpcddpError, match="is running"):
        hpcddp("resume", "r")


def test_a_run_that_is_just_being_sent_is_not_sent_twice(run_dir):
    run_dir.events.unlink()  # as before sbatch has answered
    with pytest.raises(HpcddpError, match=r"is pending \(it is being sent\)"):
        hpcddp("resume", "r")
    os.utime(run_dir.script, (0, 0))
    assert "job 4711" in hpcddp("resume", "r").stdout


def test_a_job_that_may_still_live_is_waited_for(run_dir, fake_sbatch):
    run_dir.append_event("failed")
    hpcddp("resume", "r")
    assert "--dependency=singleton" in (fake_sbatch / "sbatch.args").read_text().split()
    run_dir.append_event("failed")
    hpcddp("resume", "r", "resources.sbatch.dependency=afterok:1")
    assert "--dependency=singleton" not in (fake_sbatch / "sbatch.args").read_text()


def test_two_at_once_send_one_job(run_dir, fake_sbatch):
    run_dir.append_event("failed")
    row = "4711|RUNNING|gpu|0|0|1|9999999999|n1|None"
    bin_dir = fake_sbatch / "bin"
    for name, body in {"squeue": f"echo '{row}'", "sbatch": "sleep 1; echo 4711"}.items():
        (bin_dir / name).write_text(f"#!/bin/bash\n{body}\n")
        (bin_dir / name).chmod(0o755)
    run_dir.append_event("submitted", launcher="slurm", job_id="12")
    run_dir.append_event("failed", exit_code=1)
    words = [sys.executable, "-m", "hpcddp", "resume", "r"]
    both = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate()[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 2]
    assert "is running (job 4711)" in "".join(errors)


def everything_of(run_dir):
    files = [path for path in run_dir.path.rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in files if path.name != "resume.lock"}


@pytest.mark.parametrize("end", ["finished", "failed", "cancelled"])
def test_a_resume_that_slurm_refuses_changes_nothing(run_dir, fake_sbatch, end):
    run_dir.append_event(end, exit_code=3)
    hpcddp("resume", "r", "train.max_epochs=20")
    run_dir.append_event(end, exit_code=3)
    files, status = everything_of(run_dir), status_of(read_history(run_dir), None, 0.0)
    (fake_sbatch / "refuse").touch()
    with pytest.raises(SubmissionFailed, match="Invalid account"):
        hpcddp("resume", "r", "train.max_epochs=30", "resources.time=09:00:00")
    after = everything_of(run_dir)
    new = set(after) - set(files)
    assert {path.parent.name for path in new} == {"submitit"}  # what sbatch was given
    assert {path: text for path, text in after.items() if path not in new} == files
    assert status_of(read_history(run_dir), None, 0.0) == status


def test_settings_outlive_a_resume_that_is_killed_before_its_job_is_sent(run_dir):
    run_dir.append_event("failed")
    before = run_dir.config.read_text()
    keep_aside(run_dir)
    run_dir.config.write_text(before.replace("lr: 0.5", "lr: 9.0"))
    hpcddp("resume", "r", "train.max_epochs=20")
    assert "lr: 0.5 " in run_dir.config.read_text()
    assert not list(run_dir.path.glob(".before*"))


@pytest.mark.parametrize("recorded", ["submitted", "launched"])
def test_settings_stay_where_a_resume_is_killed_once_its_job_is_sent(run_dir, recorded):
    run_dir.append_event("failed")
    keep_aside(run_dir)
    run_dir.config.write_text(run_dir.config.read_text().replace("lr: 0.5", "lr: 9.0"))
    run_dir.append_event(recorded, job_id="12", launcher="slurm")
    run_dir.append_event("failed", exit_code=1)
    hpcddp("resume", "r", "train.max_epochs=20")
    assert "lr: 9.0 " in run_dir.config.read_text()
    assert not list(run_dir.path.glob(".before*"))


def test_settings_stay_for_a_job_that_has_begun_whatever_its_nodes_clock_says(run_dir):
    run_dir.append_event("launched", attempt=0, job_id="11", time=2e9)
    run_dir.append_event("failed", exit_code=1)
    keep_aside(run_dir)
    before = run_dir.config.read_text()
    run_dir.config.write_text(before.replace("lr: 0.5", "lr: 9.0"))
    put_back(run_dir)
    assert run_dir.config.read_text() == before  # that launch was before
    keep_aside(run_dir)
    run_dir.config.write_text(before.replace("lr: 0.5", "lr: 9.0"))
    run_dir.append_event("launched", attempt=1, job_id="12", time=1.0)
    put_back(run_dir)
    assert "lr: 9.0 " in run_dir.config.read_text()


def full(*_, **__):
    raise OSError(28, "No space left on device")


def test_settings_are_put_back_where_the_script_finds_no_room(run_dir, monkeypatch):
    def write(path, text):
        if path == run_dir.script:
            full()
        write_atomically(path, text)

    run_dir.append_event("failed")
    before = everything_of(run_dir)
    monkeypatch.setattr("hpcddp.launch.resume.write_atomically", write)
    with pytest.raises(OSError, match="No space"):
        hpcddp("resume", "r", "optim.lr=9.0")
    assert everything_of(run_dir) == before
    assert not list(run_dir.path.glob(".before*"))


ANSWERS = {"taken": "echo 4711", "not told": "echo 'Socket timed out' >&2; exit 1"}


@pytest.mark.parametrize("answer", ANSWERS)
def test_settings_stay_for_a_job_that_was_sent_and_cannot_be_recorded(
    run_dir, fake_sbatch, monkeypatch, answer
):
    run_dir.append_event("failed")
    (fake_sbatch / "bin" / "sbatch").write_text(f"#!/bin/sh\n{ANSWERS[answer]}\n")
    monkeypatch.setattr(RunDir, "append_event", full)
    with pytest.raises((HpcddpError, SubmissionFailed), match="No space"):
        hpcddp("resume", "r", "optim.lr=9.0")
    assert "lr: 9.0 " in run_dir.config.read_text()
    assert not list(run_dir.path.glob(".before*"))


def test_ctrl_c_before_the_job_is_sent_changes_nothing(run_dir, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    run_dir.append_event("failed")
    before = everything_of(run_dir)
    monkeypatch.setattr("hpcddp.launch.resume.send_job", interrupted)
    with pytest.raises(click.exceptions.Abort):
        hpcddp("resume", "r", "optim.lr=9.0")
    assert everything_of(run_dir) == before


def test_a_run_that_was_to_wait_for_another_says_that_it_does_not_wait_again(fake_sbatch):
    before = RunDir(fake_sbatch / "runs" / "before")
    before.path.mkdir(parents=True)
    before.append_event("submitted", job_id="38", launcher="slurm")
    before.append_event("started")
    hpcddp("submit", "--cluster", "generic", "--name", "r", "--afterok", "before")
    run_dir = RunDir(fake_sbatch / "runs" / "r")
    run_dir.append_event("failed")
    assert "to wait for job 38; this time it does not" in hpcddp("resume", "r").stderr
    run_dir.append_event("failed")
    assert "to wait" not in hpcddp("resume", "r").stderr


def test_a_run_that_has_waited_and_begun_says_nothing_of_that(run_dir):
    run_dir.append_event("submitted", job_id="12", launcher="slurm", afterok="38")
    run_dir.append_event("launched", attempt=0)
    run_dir.append_event("failed")
    assert "to wait" not in hpcddp("resume", "r").stderr


def make_checkpoint(run_dir, step, **extra):
    path = checkpoint_path(run_dir.checkpoints, step)
    path.mkdir(parents=True)
    write_manifest(path, Manifest(step, {}, extra))
    return path


STRICT = "checkpoint.strict_fingerprint=true"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.model=resnet18"], "Go on with `train.model=resnet50`, or start a new run"),
        (["train.global_batch=64"], "train.global_batch=32 there and 64 here"),
        (["data.name=synthetic"], "Go on with `data.name=digits`"),
        ([STRICT, "optim.lr=0.25"], "optim.lr was 0.5 and is 0.25"),
        ([STRICT, "resources.nodes=4"], "world_size was 2 and is 4"),
    ],
)
def test_settings_that_the_job_would_refuse_are_refused_before_anything_is_sent(
    run_dir, words, said
):
    config = read_config(run_dir)
    make_checkpoint(
        run_dir,
        26,
        **identity_of(config, "r"),
        settings=chosen_settings(config),
        fingerprint={"world_size": 2, "torch": "1"},
    )
    run_dir.append_event("finished", step=26)
    before = everything_of(run_dir)
    with pytest.raises(HpcddpError) as caught:
        hpcddp("resume", "r", "train.max_epochs=20", *words)
    assert said in caught.value.message
    assert everything_of(run_dir) == before
    allowed = [word for word in words if word.startswith(("optim", "resources"))]
    assert "job 4711" in hpcddp("resume", "r", "train.max_epochs=20", *allowed).stdout


def test_a_length_that_is_done_already_is_refused_before_anything_is_sent(run_dir):
    make_checkpoint(run_dir, 26)
    (checkpoint_path(run_dir.checkpoints, 40)).mkdir()  # torn: the run goes on from 26
    run_dir.append_event("failed")
    before = everything_of(run_dir)
    words = [sys.executable, "-X", "importtime", "-m", "hpcddp", "resume", "r"]
    done = subprocess.run(
        [*words, "train.max_epochs=null", "train.max_steps=20"], capture_output=True, text=True
    )
    said = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert (done.returncode, len(said)) == (2, 1)
    for part in ("26 steps", "step_000000026", "train.max_steps=20", "resume r train.max_steps=N"):
        assert part in said[0]
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)
    assert everything_of(run_dir) == before
    assert "job 4711" in hpcddp("resume", "r", "train.max_epochs=null", "train.max_steps=26").stdout
