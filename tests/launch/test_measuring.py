"""A verb that measures knows whether it is in a job, and what it would send if it is not."""

import json
import subprocess
import sys

import pytest

from hpcddp.config.layout import EXIT_FAILED
from hpcddp.errors import HpcddpError
from hpcddp.launch.failure import exit_code_of
from hpcddp.launch.measuring import is_in_job, prepare_measuring, read_report, write_report
from hpcddp.launch.request import Request
from hpcddp.run_dir import RunDir

TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "WORLD_SIZE": "1"}
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
MEASURE = """
import os, sys
from pathlib import Path
from hpcddp.errors import HpcddpError
from hpcddp.launch.measuring import measure_here
from hpcddp.run_dir import RunDir

def work(layout):
    raise eval(sys.argv[1])

run_dir = RunDir(Path(sys.argv[2])) if sys.argv[2:] else None
measure_here(work, run_dir, {"HPCDDP_LAUNCHER": "single"} | os.environ)
"""


def measure(*words, **environ):
    command = [sys.executable, "-c", MEASURE, *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, False),
        (TORCHRUN, True),
        (STEP, True),
        ({"HPCDDP_GLOBAL_RANK": "0"}, True),
        ({"HPCDDP_LAUNCHER": "single"}, True),
    ],
)
def test_only_what_a_launcher_has_started_measures_by_itself(environ, expected):
    assert is_in_job(environ, "bench allreduce") is expected


def test_in_a_salloc_shell_the_line_to_type_is_said():
    with pytest.raises(HpcddpError, match=r"srun .*python -m hpcddp bench allreduce`"):
        is_in_job({"SLURM_JOB_ID": "7"}, "bench allreduce")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("HpcddpError('m', 'wrong_sum')", 1),
        ("HpcddpError('m', 'rendezvous')", 1),
        ("HpcddpError('m')", 2),
        ("ValueError('m')", 1),
        ("KeyboardInterrupt()", 130),
    ],
)
def test_a_failure_ends_alike_with_and_without_a_run(tmp_path, error, code):
    without, within = measure(error), measure(error, str(tmp_path))
    assert (without.returncode, within.returncode) == (code, code)
    [event] = RunDir(tmp_path).read_events()
    assert (event["event"], event["exit_code"]) == ("failed", code)
    assert without.stderr == within.stderr
    assert ("Traceback" in without.stderr) == error.startswith("ValueError")
    assert ("Error: m" in without.stderr) == (code != 130)


def test_what_is_odd_about_the_layout_is_logged():
    one_task = {"SLURM_STEP_NODELIST": "a", "SLURM_STEP_TASKS_PER_NODE": "1", **STEP}
    done = measure("ValueError()", HPCDDP_LAUNCHER="slurm", MASTER_PORT="29511", **one_task)
    assert "MASTER_PORT=29511 is ignored" in done.stderr


def test_the_job_starts_the_verb_on_its_own_run_directory(workplace):
    request = Request(cluster="local", overrides=("train.micro_batch=4",))
    submission = prepare_measuring(["compare", "--weak"], request, "c", {})
    command = submission.request.config.command
    assert command[1:5] == ("-m", "hpcddp", "compare", "--weak")
    assert command[5:] == ("--run-dir", str(workplace / "runs" / "c"))
    assert submission.request.config.train.micro_batch == 4  # for the verb to read
    assert not (workplace / "runs").exists()
    named = prepare_measuring(["bench", "allreduce", "--x"], request, None, {}).run_dir.name
    assert named.startswith("bench-allreduce-2")


@pytest.mark.parametrize(
    "verb", ["submit", "rehearse", "compare --devices 1,2", "bench allreduce --nodes 2"]
)
def test_every_verb_that_sends_says_what_looks_odd_about_its_job(fake_sbatch, monkeypatch, verb):
    (fake_sbatch / "refuse").touch()  # so that nobody waits for it
    monkeypatch.setenv("NCCL_IB_DISABLE", "1")
    command = [sys.executable, "-m", "hpcddp", *verb.split(), "--cluster", "generic-cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.count("All nodes must see the runs") == 1
    assert done.stderr.count("NCCL_IB_DISABLE") == 1


def test_in_a_container_the_containers_python_runs_the_verb(workplace):
    folder = workplace / "configs" / "clusters"
    folder.mkdir(parents=True)
    (folder / "boxes.yaml").write_text(
        "description: d\nextends: [generic-cpu]\n"
        "container: {runtime: apptainer, python: /opt/box/python}\n"
    )
    request = Request(cluster="boxes", overrides=("resources.container=/images/t.sif",))
    environ = {"HPCDDP_CONFIG_PATH": str(workplace / "configs")}
    command = prepare_measuring(["compare"], request, "c", environ).request.config.command
    assert command[:4] == ("/opt/box/python", "-m", "hpcddp", "compare")


def test_a_report_is_read_back_and_a_missing_or_damaged_one_is_said(tmp_path):
    run_dir = RunDir(tmp_path / "r")
    with pytest.raises(HpcddpError, match=r"no report compare\.json.*hpcddp logs r"):
        read_report(run_dir, "compare")
    write_report(run_dir, "compare", {"rows": [1]})
    assert read_report(run_dir, "compare") == {"rows": [1]}
    for text, said in (('{"rows": [1', "damaged"), (json.dumps([1]), "found a list")):
        (run_dir.reports / "compare.json").write_text(text)
        with pytest.raises(HpcddpError, match=said):
            read_report(run_dir, "compare")


def test_a_report_that_cannot_be_kept_is_one_sentence_and_not_the_users_fault(tmp_path):
    run_dir = RunDir(tmp_path / "run")
    run_dir.path.mkdir()
    run_dir.reports.touch()  # a file where the folder should be
    with pytest.raises(HpcddpError, match="was printed and cannot be kept in") as caught:
        write_report(run_dir, "compare", {})
    assert exit_code_of(caught.value) == EXIT_FAILED
