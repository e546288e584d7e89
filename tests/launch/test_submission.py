"""What is rendered, sent and kept is one text; what fails leaves a trace and no lie."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner
from waiting import wait_until

from hpcddp.cli import group
from hpcddp.errors import HpcddpError, SubmissionFailed
from hpcddp.launch import scheduler
from hpcddp.launch.history import read_history
from hpcddp.launch.request import Request, resolve_request
from hpcddp.launch.sbatch import last_words
from hpcddp.launch.submission import check_run_name, prepare, write_run_dir
from hpcddp.run_dir import RunDir


def hpcddp(*words):
    """Run the command line in this process; errors come out as exceptions."""
    return CliRunner().invoke(group, words, standalone_mode=False, catch_exceptions=False)


def environment_of_sbatch(workplace):
    text = (workplace / "sbatch.env").read_text()
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def test_rendered_sent_and_kept_texts_are_the_same_bytes(fake_sbatch):
    words = ["--nodes", "2", "--cluster", "generic", "--name", "it's $x; ü", "--time", "30:00"]
    rendered = hpcddp("render", *words).stdout_bytes
    result = hpcddp("submit", *words)
    run_dir = RunDir(fake_sbatch / "runs" / "it's $x; ü")
    assert run_dir.script.read_bytes() == rendered
    assert (fake_sbatch / "sbatch.script").read_bytes() == rendered
    assert "job 4711" in result.stdout
    for verb in ("status", "logs", "cancel"):
        assert f"python -m hpcddp {verb}" in result.stdout


def test_the_run_directory_tells_what_was_submitted(fake_sbatch):
    hpcddp("submit", "--nodes", "2", "--cluster", "generic", "--name", "r", "optim.lr=0.5")
    run_dir = RunDir(fake_sbatch / "runs" / "r")
    event = run_dir.read_events()[-1]
    assert (event["event"], event["job_id"], event["launcher"]) == ("submitted", "4711", "slurm")
    assert (event["nodes"], event["processes_per_node"]) == (2, 1)
    assert "lr: 0.5  # command line" in run_dir.config.read_text()
    assert json.loads(run_dir.code.read_text())["work_dir"] == str(fake_sbatch)


def test_a_surrounding_job_does_not_leak_into_the_new_one(fake_sbatch, monkeypatch):
    leaked = {
        "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_CPU_BIND": "x", "SRUN_CPUS_PER_TASK": "1",
        "RANK": "3", "MASTER_ADDR": "login", "CUDA_VISIBLE_DEVICES": "0", "HPCDDP_ATTEMPT": "4",
    }  # fmt: skip
    for name, value in {**leaked, "SLURM_CONF": "/etc/x", "WANDB_MODE": "offline"}.items():
        monkeypatch.setenv(name, value)
    hpcddp("submit", "--cluster", "generic", "--name", "r")
    seen = environment_of_sbatch(fake_sbatch)
    assert not set(leaked) & set(seen)
    assert (seen["SLURM_CONF"], seen["WANDB_MODE"]) == ("/etc/x", "offline")


def test_slurms_input_variables_cannot_override_the_script(fake_sbatch, monkeypatch):
    monkeypatch.setenv("SBATCH_PARTITION", "other")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "5")
    monkeypatch.setenv("SBATCH_EXPORT", "ALL")
    left_out = ("ARRAY_INX", "WAIT", "ERROR", "GPUS", "GPUS_PER_TASK", "MEM_PER_CPU")
    for name in left_out:
        monkeypatch.setenv(f"SBATCH_{name}", "1")
    hpcddp(
        "submit", "--cluster", "generic", "--name", "r", "--partition", "typed", "resources.mem=1G"
    )
    assert "#SBATCH --partition=typed" in (fake_sbatch / "sbatch.script").read_text()
    seen = environment_of_sbatch(fake_sbatch)
    assert "SBATCH_PARTITION" not in seen
    assert "SBATCH_TIMELIMIT" not in seen
    assert not {f"SBATCH_{name}" for name in left_out} & set(seen)
    assert seen["SBATCH_EXPORT"] == "ALL"


def test_a_refusal_is_reported_and_leaves_no_run(fake_sbatch):
    (fake_sbatch / "refuse").touch()
    words = ["submit", "--cluster", "generic", "--name", "r"]
    result = subprocess.run(
        [sys.executable, "-m", "hpcddp", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert result.returncode == 1
    assert "not submitted" in result.stderr
    assert "Invalid account" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list((fake_sbatch / "runs").iterdir())


def test_an_existing_run_is_never_overwritten(fake_sbatch):
    words = ["submit", "--cluster", "generic", "--name", "r"]
    hpcddp(*words)
    before = sorted(path.stat().st_mtime_ns for path in (fake_sbatch / "runs/r").rglob("*"))
    with pytest.raises(HpcddpError, match="exists already"):
        hpcddp(*words)
    after = sorted(path.stat().st_mtime_ns for path in (fake_sbatch / "runs/r").rglob("*"))
    assert before == after


@pytest.mark.parametrize("verb", ["submit", "compare"])
def test_runs_without_a_name_of_their_own_never_collide(fake_sbatch, monkeypatch, verb):
    monkeypatch.setattr(time, "strftime", lambda *_: "20261130-110000")
    options = [] if verb == "submit" else ["--no-follow"]
    first, *others = [hpcddp(verb, "--cluster", "generic", *options).stdout for _ in range(3)]
    names = [run_dir.name for run_dir in sorted((fake_sbatch / "runs").iterdir())]
    assert names == [names[0], f"{names[0]}-2", f"{names[0]}-3"]
    assert names[0].endswith("-20261130-110000")
    assert f"Run {names[0]}: job" in first
    for name, said in zip(names[1:], others, strict=True):
        assert f"Run {name}: job" in said
        script = RunDir(fake_sbatch / "runs" / name).script.read_text()
        assert f"/{name}/logs/batch.log" in script
        assert f"/{names[0]}/" not in script


def test_of_many_who_take_one_name_at_once_each_gets_a_folder(workplace, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda *_: "20261130-110000")
    request = resolve_request(Request(cluster="generic"), os.environ)
    prepared = [prepare(request, None, os.environ) for _ in range(8)]  # all saw the name free
    with ThreadPoolExecutor(len(prepared)) as pool:
        written = list(pool.map(write_run_dir, prepared))
    assert len({submission.run_dir for submission in written}) == len(prepared)


def test_a_dry_run_shows_everything_and_writes_nothing(fake_sbatch):
    words = ["--cluster", "generic", "--name", "r", "train.seed=7"]
    result = hpcddp("submit", "--dry-run", *words)
    assert result.exit_code == 0
    assert "seed: 7  # command line" in result.stdout
    assert hpcddp("render", "--name", "r", "--cluster", "generic").stdout in result.stdout
    assert not (fake_sbatch / "runs").exists()
    assert "--test-only" in (fake_sbatch / "sbatch.args").read_text()


def test_what_slurm_accepts_and_a_user_regrets_is_said(fake_sbatch):
    no_requeue = "resources.sbatch.no_requeue=true"
    result = hpcddp("submit", "--cluster", "generic", "--name", "r", no_requeue)
    assert "Warning: " in result.stderr
    assert "requeue" in result.stderr
    script = (fake_sbatch / "sbatch.script").read_text().splitlines()
    assert "#SBATCH --no-requeue" in script
    assert "#SBATCH --requeue" not in script


@pytest.fixture
def no_slurm(workplace, monkeypatch):
    """A machine on which no program is found."""
    monkeypatch.setenv("PATH", str(workplace))


def test_render_and_a_dry_run_work_without_slurm(no_slurm):
    words = ["--cluster", "generic", "--name", "r"]
    script = hpcddp("render", *words).stdout
    assert script.startswith("#!/bin/bash\n#SBATCH --job-name=r\n")
    result = CliRunner().invoke(group, ["submit", "--dry-run", *words])
    assert result.exit_code == 0
    assert f"{script}\n# sbatch --test-only: not asked, no answer from Slurm here" in result.stdout


def test_auto_without_slurm_says_what_to_type(no_slurm):
    with pytest.raises(HpcddpError, match="--cluster local"):
        hpcddp("render", "--name", "r")


@pytest.mark.parametrize("name", ["with space", "qu'ote", 'dq"x', "a$b", "ü日本", "s;x", "b[1]"])
def test_run_names_that_work(name):
    assert check_run_name(name) == name


@pytest.mark.parametrize("name", ["a/b", "", " ", ".hidden", "-x", "50%", "a\\b", "a\nb", "\t"])
def test_run_names_that_are_refused_with_a_reason(name):
    with pytest.raises(HpcddpError) as caught:
        check_run_name(name)
    assert len(caught.value.message) > 30


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sbatch: error: Invalid account\nsbatch: error: Batch failed", "error: Invalid account"),
        ("Traceback\nthe end\n", "the end"),
        ("", "no message"),
    ],
)
def test_slurms_own_words_are_passed_on(text, words):
    assert last_words(text).startswith(words)


def test_a_missing_sbatch_is_a_failed_submission(workplace, monkeypatch):
    monkeypatch.setenv("PATH", str(workplace))
    with pytest.raises(SubmissionFailed):
        hpcddp("submit", "--cluster", "generic", "--name", "r")


def test_a_timeout_of_sbatch_does_not_pass_for_a_refusal(fake_sbatch):
    sbatch = fake_sbatch / "bin" / "sbatch"
    said = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    sbatch.write_text(f"#!/bin/bash\necho '{said}' >&2; exit 1\n")
    with pytest.raises(SubmissionFailed, match=r"taken the job all the same.*squeue --name=r"):
        hpcddp("submit", "--cluster", "generic", "--name", "r")


def no_answer(workplace):
    said = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    (workplace / "bin" / "sbatch").write_text(f"#!/bin/sh\necho '{said}' >&2; exit 1\n")


def test_a_job_that_slurm_took_without_an_answer_tells_its_id_itself(fake_sbatch):
    no_answer(fake_sbatch)
    with pytest.raises(SubmissionFailed):
        hpcddp("submit", "--cluster", "generic", "--name", "r")
    run_dir = RunDir(fake_sbatch / "runs" / "r")
    before = read_history(run_dir).submission
    assert (before["launcher"], before.get("job_id")) == ("slurm", None)
    run_dir.append_event("launched", attempt=0, job_id="4711")
    assert read_history(run_dir).submission["job_id"] == "4711"


def test_ctrl_c_while_slurm_takes_the_job_does_not_lose_its_id(fake_sbatch):
    program = fake_sbatch / "bin" / "sbatch"
    wait = "until [ -e typed ]; do sleep 0.1; done"
    program.write_text(f"#!/bin/sh\necho > asked\n{wait}\necho 4711\n")
    words = [sys.executable, "-m", "hpcddp", "submit", "--cluster", "generic", "--name", "r"]
    process = subprocess.Popen(words, start_new_session=True, stdout=subprocess.PIPE)
    wait_until((fake_sbatch / "asked").exists)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: all of its programs get it
    (fake_sbatch / "typed").touch()
    assert process.wait(timeout=120) == 130
    event = RunDir(fake_sbatch / "runs" / "r").read_events()[-1]
    assert (event["event"], event["job_id"]) == ("submitted", "4711")


@pytest.mark.parametrize(
    ("event", "options"),
    [
        ("finished", []),
        ("started", ["--dependency=afterok:38", "--kill-on-invalid-dep=yes"]),
    ],
)
def test_afterok_waits_for_a_run_that_goes_on(fake_sbatch, event, options):
    before = RunDir(fake_sbatch / "runs" / "before")
    before.path.mkdir(parents=True)
    before.append_event("submitted", launcher="slurm", job_id="38")
    before.append_event(event, attempt=0)
    (fake_sbatch / "bin" / "squeue").write_text("#!/bin/sh\n" + squeue_line("38", "RUNNING"))
    (fake_sbatch / "bin" / "squeue").chmod(0o755)
    hpcddp("submit", "--cluster", "generic", "--name", "r", "--afterok", "before")
    *_, script = words = (fake_sbatch / "sbatch.args").read_text().splitlines()
    assert words == ["--parsable", *options, script]


def test_a_name_that_slurm_has_refused_may_be_used_again(fake_sbatch):
    (fake_sbatch / "refuse").touch()
    for _ in range(2):
        with pytest.raises(SubmissionFailed):
            hpcddp("submit", "--cluster", "generic", "--name", "r", "optim.lr=0.5")
    (fake_sbatch / "refuse").unlink()
    hpcddp("submit", "--cluster", "generic", "--name", "r")
    run_dir = RunDir(fake_sbatch / "runs" / "r")
    assert [event["event"] for event in run_dir.read_events()] == ["submitted"]
    assert "lr: 0.5" not in run_dir.config.read_text()


def test_a_run_whose_job_may_be_queued_keeps_its_name(fake_sbatch):
    (fake_sbatch / "bin" / "sbatch").write_text("#!/bin/sh\necho 'Your job was taken. Enjoy!'\n")
    with pytest.raises(SubmissionFailed, match="a job id was expected"):
        hpcddp("submit", "--cluster", "generic", "--name", "r")
    with pytest.raises(HpcddpError, match="exists already"):
        hpcddp("submit", "--cluster", "generic", "--name", "r")


def test_a_job_whose_id_cannot_be_written_down_is_told(fake_sbatch, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunDir, "append_event", full)
    with pytest.raises(HpcddpError, match=r"Job 4711 was sent.*scancel 4711"):
        hpcddp("submit", "--cluster", "generic", "--name", "r")


def test_that_slurm_may_have_taken_a_job_is_told_on_a_full_disk(fake_sbatch, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    no_answer(fake_sbatch)
    monkeypatch.setattr(RunDir, "append_event", full)
    with pytest.raises(SubmissionFailed, match=r"squeue --name=r.*No space left") as caught:
        hpcddp("submit", "--cluster", "generic", "--name", "r")
    assert caught.value.maybe_sent


def squeue_line(job_id, state):
    values = [job_id, state, "main", "0", "0", "1", "1", "9999999999", "n1", "None"]
    return f"echo '{'|'.join(values)}'\n"


@pytest.mark.parametrize(
    ("event", "words", "said"),
    [
        ("failed", ["generic"], "might never end"),
        ("cancelled", ["generic"], "might never end"),
        ("started", ["local"], "only Slurm can let one job wait"),
        ("started", ["generic", "resources.sbatch.dependency=after:1"], "add afterok:38 there"),
    ],
)
def test_afterok_refuses_what_would_not_wait_for_the_end_of_the_run(
    fake_sbatch, event, words, said
):
    before = RunDir(fake_sbatch / "runs" / "before")
    before.path.mkdir(parents=True)
    before.append_event("submitted", launcher="slurm", job_id="38")
    before.append_event(event, attempt=0)
    (fake_sbatch / "bin" / "squeue").write_text(
        "#!/bin/sh\n" + (squeue_line("38", "RUNNING") if event == "started" else "exit 1\n")
    )
    (fake_sbatch / "bin" / "squeue").chmod(0o755)
    with pytest.raises(HpcddpError, match=said):
        hpcddp("submit", "--name", "r", "--afterok", "before", "--cluster", *words)
    assert not (fake_sbatch / "runs" / "r").exists()


@pytest.mark.parametrize(
    ("reason", "is_told"),
    [("PartitionNodeLimit", True), ("PartitionConfig", True), ("Resources", False)],
)
def test_a_job_that_slurm_takes_and_may_never_start_is_told_of_at_once(
    fake_sbatch, reason, is_told
):
    scontrol = fake_sbatch / "bin" / "scontrol"
    scontrol.write_text(f"#!/bin/sh\necho JobId=$3\necho JobState=PENDING Reason={reason}\n")
    result = hpcddp("submit", "--cluster", "generic-cpu", "--name", "r")
    assert (f"Warning: {reason}: it may never start" in result.stderr) == is_told
    assert ("Cancel it, ask for less: python -m hpcddp cancel r." in result.stderr) == is_told
    assert "Run r: job 4711" in result.stdout


def test_a_controller_that_falls_silent_once_it_has_the_job_holds_nobody_up(
    fake_sbatch, monkeypatch
):
    asked = []

    def show_job(job_id, timeout_s=scheduler._TIMEOUT_S):
        asked.append((job_id, timeout_s < scheduler._TIMEOUT_S))
        return scheduler.JobInfo(job_id, reason="timed out")

    monkeypatch.setattr(scheduler, "show_job", show_job)
    result = hpcddp("submit", "--cluster", "generic-cpu", "--name", "r")
    assert (result.exit_code, asked) == (0, [("4711", True)])


def test_a_folder_that_cannot_be_filled_does_not_occupy_the_name(fake_sbatch, monkeypatch):
    def is_full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hpcddp.launch.submission.record_code", is_full)
    with pytest.raises(HpcddpError, match="No space left"):
        hpcddp("submit", "--cluster", "generic", "--name", "r")
    assert not (fake_sbatch / "runs" / "r").exists()


def test_without_sbatch_a_job_is_not_sent_and_its_name_stays_free(workplace, monkeypatch):
    monkeypatch.setenv("PATH", str(workplace))
    for _ in range(2):
        with pytest.raises(SubmissionFailed, match=r"no `sbatch` on PATH.*--cluster local"):
            hpcddp("submit", "--cluster", "generic-cpu", "--name", "r")
