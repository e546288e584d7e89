"""The scripts `slurm/*.sbatch` on a real Slurm, edited as far as their users would: sbatch options
instead of #SBATCH lines, and the command.
"""

import json
import re
import shutil
import sys
import time

import pytest
from hpcddp_user import ROOT, losses

from hpcddp.config.write import read_config

SCRIPTS = sorted((ROOT / "slurm").glob("*.sbatch"))
COMMAND = re.compile(r"^command=\((.*?)\)$", re.M | re.S)
TRAIN = (
    "train.model=shufflenet_v2_x0_5 train.model_options.zero_init_residual=null train.device=cpu "
    "train.global_batch=4 data.name=synthetic data.synthetic_samples=16 data.image_size=8 "
    "log.every_steps=1 train.max_epochs=null train.eval_every_epochs=null"
)
SMALL = ("--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=1", "--cpus-per-task=1")
ONE = ("--nodes=1", *SMALL[1:])
# Says 75 when told to stop, and nothing else ever ends it.
STOPS = "bash -c 'trap \"exit 75\" TERM; echo starts; while :; do sleep 0.1; done'"
# What containers have inside them, to be found where their runtime is not.
SHIMS = {
    "apptainer": (
        'echo "apptainer $*"; until [ "$1" = image.sif ]; do shift; done; shift; exec "$@"'
    ),
    "pyxis": (
        'words=(); for word; do case "$word" in --container-*) echo "pyxis $word";; '
        f'*) words+=("$word");; esac; done; exec {shutil.which("srun")} "${{words[@]}}"'
    ),
}


class User:
    """Sends plain scripts from a folder of his own, in which `python` is that of the tests."""

    def __init__(self, cluster, hpcddp, home):
        self.cluster, self.home, self.tools = cluster, home, home / "bin"
        self.env = hpcddp.env | {"PATH": f"{self.tools}:{hpcddp.env['PATH']}"}
        del self.env["HPCDDP_RUNS_DIR"]  # the scripts say that runs lie below the folder
        self.tools.mkdir()
        for name in ("python", "python3"):
            self.tool(name, f'exec {sys.executable} "$@"')

    def tool(self, name, line):
        (self.tools / name).write_text(f"#!/bin/bash\n{line}\n")
        (self.tools / name).chmod(0o755)

    def send(self, name, command, *options):
        """Send a script with its command replaced; {} in it stands for the script's own."""
        text = (ROOT / "slurm" / f"{name}.sbatch").read_text()
        [own] = COMMAND.findall(text)
        (self.home / f"{name}.sbatch").write_text(
            COMMAND.sub(lambda _: f"command=({command.replace('{}', own)})", text)
        )
        words = ["sbatch", "--parsable", *options, f"{name}.sbatch"]
        done = self.cluster.run(words, env=self.env, cwd=self.home)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def complete(self, job_id):
        """Wait until a job has ended, which must have been a success; what it wrote."""
        ended = self.cluster.wait(job_id, {"COMPLETED", "FAILED"}, timeout=120)
        output = self.cluster.output(job_id)
        assert ended == "COMPLETED", output
        return output


@pytest.fixture
def user(cluster, hpcddp, tmp_path):
    return User(cluster, hpcddp, tmp_path)


def test_ddp_trains_on_two_nodes(user, cluster, hpcddp):
    job_id = user.send("ddp", f"{{}} {TRAIN} train.max_steps=2", *SMALL)
    user.complete(job_id)
    [started] = hpcddp.events("ddp", "started")
    assert (started["world_size"], len(started["hosts"])) == (2, 2)
    assert hpcddp.status("ddp")["state"] == "finished"


def test_preemptible_stops_comes_back_and_finishes(user, cluster, hpcddp):
    words = f"{{}} {TRAIN} train.max_steps=400"
    job_id = user.send("preemptible", words, *ONE, "--partition=preempt-grace")
    cluster.wait_for_output(job_id, "step 2/400", 1, timeout=120)
    cluster.preempt(job_id)
    cluster.wait_until(lambda: "" if cluster.show(job_id)["Restarts"] == "1" else "no restart", 120)
    user.complete(job_id)
    [stopped], [resumed] = (hpcddp.events("preemptible", kind) for kind in ("stopped", "resumed"))
    assert 2 <= stopped["step"] == resumed["step"] < 400
    assert cluster.show(job_id)["Restarts"] == "1"
    assert sorted(losses(hpcddp.run_dir("preemptible"))) == list(range(1, 401))
    assert len(hpcddp.events("preemptible", "submitted")) == 1
    status = hpcddp.status("preemptible")
    assert [attempt["end"] for attempt in status["attempts"]] == ["preempted", "finished"]
    assert all(attempt["ended_time"] for attempt in status["attempts"])
    assert status["cluster"] == "testcluster"


def test_preemptible_leaves_alone_what_is_cancelled_or_has_failed(user, cluster):
    cancelled = user.send("preemptible", STOPS, *ONE)
    failing = user.send("preemptible", "bash -c 'exit 3'", *ONE)
    cluster.wait_for_output(cancelled, "starts", 1)
    cluster.cancel(cancelled)
    cluster.wait(cancelled, "CANCELLED")
    cluster.wait(failing, "FAILED")
    assert cluster.show(failing)["ExitCode"] == "3:0"
    time.sleep(2)
    for job_id, state in {cancelled: "CANCELLED", failing: "FAILED"}.items():
        seen = cluster.show(job_id)
        assert (seen["JobState"], seen["Restarts"]) == (state, "0")


def test_preemptible_stays_cancelled_just_before_it_orders_its_requeue(user, cluster, tmp_path):
    late = "trap '' TERM; scancel $SLURM_JOB_ID; touch ordered"
    line = f'PATH="${{PATH#*:}}"; [ "$1" = requeue ] && {{ {late}; }}; exec scontrol "$@"'
    user.tool("scontrol", line)
    job_id = user.send("preemptible", STOPS, *ONE)
    cluster.wait_for_output(job_id, "starts", 1)
    cluster.run(["scancel", "--signal=TERM", job_id])  # to the processes only
    cluster.wait_until(lambda: "" if (tmp_path / "ordered").exists() else "no order", 120)
    assert cluster.wait(job_id, {"CANCELLED", "PENDING"}) == "CANCELLED"
    assert cluster.show(job_id)["Restarts"] == "0"


FAILS_AT_ONCE = """
    from hpcddp.launch import job
    def fail(*arguments, **options):
        raise RuntimeError("broken")
    if env["SLURM_PROCID"] == "1":
        job.with_network = fail
"""


def test_preemptible_does_not_take_a_failure_for_a_stop(user, cluster, hpcddp, tmp_path):
    """srun ends the other process for it, by the signal that also means a preemption."""
    hpcddp.begin_pythons_with(tmp_path / "site", FAILS_AT_ONCE)
    user.env["PYTHONPATH"] = hpcddp.env["PYTHONPATH"]
    job_id = user.send("preemptible", f"{{}} {TRAIN} train.max_steps=2", *SMALL)
    cluster.wait(job_id, {"FAILED", "COMPLETED"}, timeout=120)
    shown = cluster.show(job_id)
    assert (shown["JobState"], shown["Restarts"], shown["ExitCode"]) == ("FAILED", "0", "1:0")
    assert "before training" in cluster.output(job_id)


def test_preemptible_brings_back_programs_of_any_kind(user, cluster):
    """One that says 75 on both of its nodes, and one that knows no signal and is simply killed."""
    once = '[ -n "$SLURM_RESTART_COUNT" ] && exit'
    polite = STOPS.replace("echo starts;", f"echo starts; {once};")
    deaf = f"bash -c 'echo starts; {once}; sleep 600'"
    kinds = {polite: (SMALL, 2), deaf: (ONE, 1)}
    jobs = {}
    for command, (sizes, count) in kinds.items():
        job_id = user.send("preemptible", command, *sizes, "--partition=preempt-grace")
        jobs[job_id] = count
    for job_id, count in jobs.items():
        cluster.wait_for_output(job_id, "starts", count)
    for job_id in jobs:
        cluster.preempt(job_id)
    for job_id, count in jobs.items():
        assert user.complete(job_id).count("starts") == 2 * count
        assert cluster.show(job_id)["Restarts"] == "1"


def test_of_an_array_each_element_is_a_run_and_comes_back_alone(user, cluster, hpcddp):
    once = "[ $SLURM_ARRAY_TASK_ID$SLURM_RESTART_COUNT != 1 ] || exit 75"
    job_id = user.send("array", f"{{}} -- bash -c '{once}'", *ONE, "--array=1-2")
    cluster.wait(job_id, "COMPLETED", timeout=120)
    elements = {job["ArrayTaskId"]: job["Restarts"] for job in cluster.show_all(job_id)}
    assert elements == {"1": "1", "2": "0"}
    assert sorted(path.name for path in hpcddp.runs.iterdir()) == ["sweep-1", "sweep-2"]
    rates = [read_config(hpcddp.run_dir(f"sweep-{n}")).optim.lr for n in (1, 2)]
    assert rates == [0.1, 0.2]
    assert [e["attempt"] for e in hpcddp.events("sweep-1", "started")] == [0, 1]
    assert [e["attempt"] for e in hpcddp.events("sweep-2", "started")] == [0]


def test_torchrun_starts_the_processes_of_each_node(user, hpcddp):
    sizes = ("--nodes=2", "--gpus-per-node=2", "--cpus-per-task=2")
    tell = "--no-python python -m hpcddp env --json"
    output = user.complete(user.send("torchrun", tell, *sizes))
    places = [json.loads(text) for text in re.findall(r"^\{.*?^\}", output, re.M | re.S)]
    assert sorted(place["global_rank"] for place in places) == [0, 1, 2, 3], output
    assert {(place["world_size"], place["num_nodes"]) for place in places} == {(4, 2)}
    assert len({(place["node_rank"], place["local_rank"]) for place in places}) == 4


def test_torchrun_without_gpus_says_so_before_it_divides_by_their_number(user, cluster):
    user.env.pop("OMP_NUM_THREADS", None)  # else nothing is divided
    job_id = user.send("torchrun", "{}", "--nodes=1", "--gpus-per-node=0", "--cpus-per-task=1")
    cluster.wait(job_id, "FAILED")
    assert "SLURM_GPUS_ON_NODE: none" in cluster.output(job_id)
    assert "division by 0" not in cluster.output(job_id)


def test_dp_against_ddp_measures_all_modes_in_one_task(user, hpcddp):
    words = f"{{}} {TRAIN} train.max_steps=1 --rounds 1 --steps 1 --devices 1,2"
    sizes = ("--gpus-per-node=2", "--cpus-per-task=2")
    output = user.complete(user.send("dp-against-ddp", words, *sizes))
    document = json.loads((hpcddp.run_dir("dp-against-ddp").reports / "compare.json").read_text())
    measured = [(row["mode"], row["devices"]) for row in document["rows"]]
    assert measured == [("single", 1), ("dp", 1), ("ddp", 1), ("dp", 2), ("ddp", 2)]
    assert document["verdict"]["words"] in output


@pytest.mark.parametrize("name", ["apptainer", "pyxis"])
def test_every_process_is_started_in_the_image(user, name):
    user.tool("srun" if name == "pyxis" else name, SHIMS[name])
    job_id = user.send(name, "{} -- bash -c 'echo rank $RANK of $WORLD_SIZE'", *SMALL)
    output = user.complete(job_id)
    assert sorted(re.findall(r"^rank .*", output, re.M)) == ["rank 0 of 2", "rank 1 of 2"]
    into = {
        "apptainer": [f"apptainer exec --nv --bind {user.home} image.sif python3 -u -m hpcddp"],
        "pyxis": [
            f"pyxis --container-image={user.home}/image.sqsh",
            f"pyxis --container-mounts={user.home}:{user.home}",
            f"pyxis --container-workdir={user.home}",
        ],
    }
    for line in into[name]:
        assert output.count(line) == (2 if name == "apptainer" else 1)


@pytest.fixture(scope="module")
def large_nodes(new_cluster):
    return new_cluster("plain", "--nodes", "2", "--cpus", "32", "--gpus", "4")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_sbatch_takes_every_plain_script_as_it_is(large_nodes, path):
    answer = large_nodes.run(["sbatch", "--test-only", path])
    assert answer.returncode == 0, answer.stderr
    assert " to start at " in answer.stderr
