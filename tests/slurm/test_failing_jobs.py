"""Jobs that cannot work on a real Slurm: they end at once, as failed, and say where to look."""

import sys
from pathlib import Path

import pytest
from ended import has_ended

HOLD = "resources.sbatch.hold=true"


@pytest.mark.parametrize(
    ("ending", "said", "code"),
    [
        ("raise ValueError('boom')", "ValueError: boom", "1"),
        ("os.kill(os.getpid(), 9)", "Killed", "137 (SIGKILL)"),
        ("os.abort()", "Aborted", "134 (SIGABRT)"),
    ],
    ids=["raises", "is_killed", "aborts"],
)
def test_when_one_process_of_a_program_fails_the_others_are_gone(
    hpcddp, cluster, tmp_path, ending, said, code
):
    # The others would run on for long; nobody fails before all have written their process ids.
    program = tmp_path / "program.py"
    program.write_text(
        "import os, pathlib, time\n"
        f"up = pathlib.Path({str(tmp_path)!r})\n"
        "(up / f\"pid-{os.environ['RANK']}\").write_text(str(os.getpid()))\n"
        "while len(list(up.glob('pid-*'))) < 4:\n    time.sleep(0.05)\n"
        f"if os.environ['RANK'] == '2':\n    {ending}\n"
        "time.sleep(600)\n"
    )
    words = ["resources.processes_per_node=2"]
    job_id = hpcddp.submit("r", *words, command=[sys.executable, str(program)])
    cluster.wait(job_id, "FAILED")
    pids = [path.read_text() for path in tmp_path.glob("pid-*")]
    assert len(pids) == 4
    assert not [pid for pid in pids if not has_ended(int(pid))]  # the nodes share this /proc
    status = hpcddp.status("r")
    assert (status["state"], status["attempt"]) == ("failed", 0)
    run_dir = hpcddp.run_dir("r")
    logs = run_dir.batch_log.read_text() + run_dir.rank_log(0, 2).read_text()
    assert said in logs
    assert "gpu-02: task 2" in logs  # srun names who was first
    told = f"exit code {code} of task 2 on gpu-02; see {run_dir.rank_log(0, 2)}"
    assert told in status["reason"]


def submit_held(hpcddp, name, **options):
    """A run that does not start before `release`."""
    return hpcddp.submit(name, HOLD, **options)


def release(hpcddp, cluster, name):
    """Let the run start; its status once it has failed."""
    job_id = hpcddp.status(name)["job_id"]
    assert cluster.run(["scontrol", "release", job_id]).returncode == 0
    cluster.wait(job_id, "FAILED")
    return hpcddp.wait_for(name, "failed")


def test_a_program_that_was_moved_away_before_the_job_starts_is_named(hpcddp, cluster, tmp_path):
    program = tmp_path / "train.py"
    program.touch()
    submit_held(hpcddp, "r", command=[sys.executable, str(program)], nodes=1)
    program.rename(tmp_path / "train_v2.py")
    assert release(hpcddp, cluster, "r")["exit_code"] == 2
    assert f"can't open file '{program}'" in hpcddp("logs", "r", "--rank", "0").stdout


def test_a_folder_that_is_gone_by_the_time_the_job_starts_is_named(hpcddp, cluster, tmp_path):
    place = tmp_path / "project"
    place.mkdir()
    words = ["submit", "--name", "r", "--cluster", "testcluster", HOLD, "--", "true"]
    assert hpcddp(*words, cwd=place).returncode == 0
    place.rmdir()
    assert release(hpcddp, cluster, "r")["exit_code"] == 1  # Slurm itself would run it in /tmp
    assert str(place) in hpcddp.run_dir("r").batch_log.read_text()


def test_a_python_that_the_nodes_do_not_have_is_named(hpcddp, cluster, tmp_path):
    venv = tmp_path / "venv"
    venv.symlink_to(Path(sys.executable).parents[1])
    hpcddp.python = venv / "bin" / Path(sys.executable).name
    job_id = submit_held(hpcddp, "r", command=["true"])
    venv.unlink()
    gone, hpcddp.python = hpcddp.python, sys.executable
    status = release(hpcddp, cluster, "r")
    batch_log = hpcddp.run_dir("r").batch_log
    assert status["exit_code"] == 127
    assert f"see {batch_log}" in status["reason"]
    assert f"{gone}: No such file or directory" in batch_log.read_text()
    assert cluster.show(job_id)["Restarts"] == "0"


@pytest.fixture
def unwritable(cluster):
    """Return a function that makes a folder read-only on one node, until the test is over."""
    changed = []

    def unwritable(folder):
        for words in (["--bind", folder], ["-o", "remount,bind,ro"]):
            cluster.node_exec("gpu-01", ["mount", *words, folder], check=True)
        changed.append(folder)

    yield unwritable
    for folder in changed:
        cluster.node_exec("gpu-01", ["umount", folder], check=True)


def test_a_run_directory_that_a_node_cannot_write_fails_the_job(hpcddp, cluster, unwritable):
    submit_held(hpcddp, "r", command=["true"])
    unwritable(hpcddp.run_dir("r").path)
    reason = release(hpcddp, cluster, "r")["reason"]
    assert f"gpu-01 could not open {hpcddp.run_dir('r').batch_log} (JobLaunchFailure)" in reason
    assert "; see " not in reason  # there is no log


def test_an_option_that_srun_does_not_know_fails_the_job(hpcddp, cluster):
    job_id = hpcddp.submit("r", "resources.srun.no-such-option=1", command=["true"])
    cluster.wait(job_id, "FAILED")
    status = hpcddp.wait_for("r", "failed")
    assert f"see {hpcddp.run_dir('r').batch_log}" in status["reason"]
    assert "unrecognized option '--no-such-option=1'" in hpcddp.run_dir("r").batch_log.read_text()


def test_what_slurm_refuses_is_said_in_its_words_with_what_there_is(hpcddp):
    words = ["--cluster", "testcluster", "--name", "r", "--partition", "urgnt", "--", "true"]
    done = hpcddp("submit", *words)
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert "invalid partition specified: urgnt" in said
    assert "Choose another --partition: urgent, " in said
    assert "Traceback" not in done.stderr
    assert not list(hpcddp.runs.iterdir())


def test_a_dry_run_passes_slurms_opinion_on(hpcddp):
    words = ["submit", "--dry-run", "--cluster", "testcluster", "--nodes"]
    good, bad = hpcddp(*words, "4", "--", "true"), hpcddp(*words, "5", "--", "true")
    assert (good.returncode, bad.returncode) == (0, 1)
    assert "gpu-[01-04]" in good.stdout.splitlines()[-1]
    assert "Requested node configuration is not available" in bad.stdout
    assert not hpcddp.runs.exists()


def test_a_process_that_fails_before_the_others_are_up_is_a_failure_too(hpcddp, cluster, tmp_path):
    """Slow nodes: srun ends rank 0 by SIGTERM while its Python is still starting."""
    late = "if env['SLURM_PROCID'] == '0': time.sleep(300)"
    hpcddp.begin_pythons_with(tmp_path / "site", late)
    job_id = hpcddp.submit("r", command=["bash", "-c", "exit 3"])
    cluster.wait_until(lambda: "" if hpcddp.run_dir("r").attempt_logs(0).exists() else "no", 120)
    cluster.wait(job_id, {"FAILED", "PENDING"})
    status = hpcddp.status("r")
    assert (status["state"], cluster.show(job_id)["Restarts"]) == ("failed", "0")
