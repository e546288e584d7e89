"""`compare` on this machine: as a local job, its reports, and what it refuses before it sends."""

import csv
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from hpcddp.cli import compare as compare_verb
from hpcddp.cli import measuring
from hpcddp.cluster.layout import process_environment
from hpcddp.config.layout import ProcessLayout
from hpcddp.launch.watch import follow
from hpcddp.measure import node_comparison
from hpcddp.run_dir import RunDir

SMALL = [
    *("train.model=shufflenet_v2_x0_5", "train.model_options.zero_init_residual=null"),
    *("data.name=synthetic", "data.synthetic_samples=16", "train.global_batch=4"),
]
ONCE = ["--rounds", "1", "--steps", "2"]


@pytest.fixture
def compare(tmp_path):
    """Return a function that runs `compare` with these words in a place of its own."""
    foreign = ("SLURM_", "HPCDDP_", "SBATCH_")
    environ = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    environ |= {"HPCDDP_RUNS_DIR": str(tmp_path / "runs"), "OMP_NUM_THREADS": "1"}

    def compare(*words, **more):
        command = [sys.executable, "-m", "hpcddp", "compare", *words]
        options = {"capture_output": True, "text": True, "timeout": 500, "cwd": tmp_path}
        return subprocess.run(command, env=environ | more, **options)

    return compare


def test_a_local_job_compares_the_modes_and_leaves_its_reports(compare, tmp_path, browser):
    words = ["--cluster", "local", "--name", "c", "--devices", "1,2", "--json", *ONCE, *SMALL]
    done = compare(*words)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    cells = [(row["mode"], row["devices"]) for row in rows]
    assert cells == [("single", 1), ("dp", 1), ("ddp", 1), ("dp", 2), ("ddp", 2)]
    reports = tmp_path / "runs/c/reports"
    document = json.loads((reports / "compare.json").read_text())
    assert document["rows"] == rows
    assert document["label_of_dp"] == "DataParallel algorithm on CPU threads"
    assert (document["strong"], document["backend"], document["global_batch"]) == (True, "gloo", 4)
    assert document["verdict"]["confidence"] == "low"  # of one round
    assert document["not_measured"]
    assert [line["mode"] for line in csv.DictReader((reports / "compare.csv").open())] == [
        mode for mode, _ in cells
    ]
    for row in rows:
        assert row["n"] == 2
        assert row["images_per_s"] == pytest.approx(4 / row["step_s_median"], rel=1e-4)
        assert row["speedup"] == pytest.approx(
            rows[0]["step_s_median"] / row["step_s_median"], rel=1e-4
        )
        assert len(row["cpu_s_per_step_per_process"]) == (
            2 if cells[-1] == (row["mode"], row["devices"]) else 1
        )
    assert (rows[-1]["exposed_comm_fraction"] > 0, rows[0]["exposed_comm_fraction"]) == (True, 0)
    assert rows[-1]["buckets"]
    assert [row["label"] for row in rows if row["mode"] == "dp"] == [document["label_of_dp"]] * 2
    visit = browser.open(reports / "compare.html")
    assert (visit.requests, visit.complaints) == ([], [])
    assert visit.dom.count("<svg") == 3  # throughput, step, buckets; no memory without a GPU
    assert "Buckets of one step: ddp, 2 devices" in visit.dom


def test_a_sweep_prints_each_value_with_total_and_exposed_communication(compare, tmp_path):
    sweep = ["--nodes", "2", "--sweep", "ddp.bucket_cap_mib=1,25,25"]  # the last shows the noise
    done = compare("--cluster", "local", "--name", "s", "--follow", *sweep, *ONCE, *SMALL)
    assert done.returncode == 0, done.stderr
    assert "settings of DistributedDataParallel: shufflenet_v2_x0_5" in done.stdout
    assert "\n2 processes, 1 per node; 2 x " in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    measured = [line for line in lines if line[:1] and line[0].startswith("bucket_cap_mib=")]
    values = [line[0].removeprefix("bucket_cap_mib=") for line in measured[:3]]
    assert values == ["1", "25", "25"]
    rows = json.loads((tmp_path / "runs/s/reports/compare.json").read_text())["rows"]
    assert [row["setting"]["ddp.bucket_cap_mib"] for row in rows] == [1, 25, 25]
    assert rows[1]["speedup"] == 1.0 != rows[2]["speedup"]  # 25 is what the run is set to
    assert len(rows[0]["buckets"]) > 1  # of 1.4 MB
    assert {row["devices"] for row in rows} == {2}
    assert {row["comm_bytes_per_step"] for row in rows} == {
        sum(b["bytes"] for b in rows[0]["buckets"])
    }


def test_without_follow_the_job_is_only_sent(compare, tmp_path):
    one = ["--modes", "single", "--devices", "1"]
    done = compare("--cluster", "local", "--no-follow", "--name", "c", *one, *ONCE, *SMALL)
    assert done.returncode == 0, done.stderr
    assert "hpcddp status c" in done.stdout
    assert "STEP ms" not in done.stdout


def test_what_fails_in_a_process_reaches_the_shell(compare, tmp_path):
    words = ["--modes", "ddp", "--devices", "2", *ONCE, *SMALL, "train.model=nonsense"]
    done = compare("--cluster", "local", "--name", "c", *words)
    assert done.returncode == 2
    assert "ddp x 2: train.model=nonsense: torchvision has no such model" in done.stdout
    assert not (tmp_path / "runs/c/reports").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes", "2"], "DataParallel knows no other. Leave --nodes out"),
        (["--modes", "dp,fsdp"], "`fsdp` is no mode"),
        (["--devices", "0"], "for example 1,2,4"),
        (["--devices", "1,3"], "Set train.global_batch to 30 or 33"),
        (["--modes", "single", "--devices", "2"], "Add 1 to --devices"),
        (["--sweep", "train.seed=1,2"], "varies options of DistributedDataParallel only"),
        (["--sweep", "ddp.bucket_cap_mib=1,2"], "Use --nodes 2"),
        (["--sweep", "ddp.bucket_cap_mib=1,2", "--modes", "dp"], "only ddp has such settings"),
        (["--sweep", "ddp.bucket_cap_mib=1,2", "--devices", "2"], "without --devices"),
        (["--nodes", "2", "--sweep", "ddp.bucket_cap_mib=1,a"], "needs a whole number such as 2"),
        (["--rounds", "0"], "--rounds"),
        (["train.devices=3"], "unknown key `train.devices`"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_sent(compare, tmp_path, words, said):
    done = compare("--cluster", "local", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_more_devices_than_the_job_has_gpus_are_refused(compare):
    words = ["--cluster", "generic", "--gpus-per-node", "2", "resources.cpus_per_process=null"]
    done = compare(*words, "--devices", "1,4")
    assert done.returncode == 2
    assert "Use --gpus-per-node 4, or fewer --devices." in done.stderr
    assert "Profile `generic` does not say how many CPUs" in done.stderr


def test_several_processes_are_too_many(compare):
    second = process_environment({}, nodes=1, processes_per_node=2, global_rank=1)
    done = compare("--run-dir", "nowhere", *ONCE, **second)
    assert done.returncode == 2
    assert "config.yaml" in done.stderr
    first = process_environment({}, nodes=1, processes_per_node=2, global_rank=0)
    done = compare("--name", "c", *ONCE, *SMALL, **first)
    assert done.returncode == 2
    assert "Use one task with all devices of the node" in done.stderr


@pytest.mark.parametrize("has_kept", [True, False])
def test_a_job_that_ends_early_is_followed_to_what_it_has_kept(
    tmp_path, monkeypatch, capsys, has_kept
):
    run = RunDir(tmp_path / "r")
    run.reports.mkdir(parents=True)
    if has_kept:
        (run.reports / "compare.json").write_text("{}")
    submission = SimpleNamespace(run_dir=run)
    monkeypatch.setattr(measuring, "send", lambda submission: (submission, "1"))
    monkeypatch.setattr(measuring, "announce", lambda *said, err: None)
    monkeypatch.setattr(follow, "follow", lambda run_dir, out: 1)
    show = measuring.show_report_of_job
    with pytest.raises(SystemExit) as left:
        show(submission, "compare", print, follows=True, as_json=False)
    assert left.value.code == 1
    assert ("python -m hpcddp report r\n" in capsys.readouterr().err) is has_kept


@pytest.mark.parametrize("has_room", [True, False])
def test_what_was_measured_before_a_job_ends_is_kept(tmp_path, monkeypatch, capsys, has_room):
    def ends_early(node, config, wanted, environ, keep):
        keep({"rows": []})
        raise KeyboardInterrupt

    run = RunDir(tmp_path)
    run.config.write_text("train: {max_steps: 1, device: cpu}\n")
    if not has_room:
        run.reports.write_text("no folder")
    monkeypatch.setattr(node_comparison, "compare_on", ends_early)
    typed = {"sweeps": (), "modes": None, "devices": "1", "weak": False, "rounds": 2, "steps": 1}
    with pytest.raises(KeyboardInterrupt):
        compare_verb._measure(ProcessLayout(), run, typed, as_json=False)
    kept = {path.name for path in tmp_path.glob("reports/compare.*")}
    assert kept == ({"compare.json", "compare.csv"} if has_room else set())
    said = f"Of the rounds so far: The report cannot be kept in {run.reports}"
    assert (said in capsys.readouterr().err) is not has_room
