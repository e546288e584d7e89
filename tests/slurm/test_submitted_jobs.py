"""Jobs that `submit` sends to a real Slurm, from odd places, and what their processes see."""

import sys
from pathlib import Path

import pytest

PYTHON = sys.executable


def environment_of_ranks(path):
    """Of both ranks of a run that wrote `env -0` to PATH-RANK."""
    found = []
    for rank in range(2):
        pairs = path.with_name(f"{path.name}-{rank}").read_text().split("\0")
        found.append(dict(pair.split("=", 1) for pair in pairs if "=" in pair))
    return found


PLACE = ("SLURM_", "SLURMD_", "SRUN_", "PMI", "TORCHELASTIC_", "HPCDDP_", "CUDA_", "SBATCH_")
PLACE_NAMES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "NODE_RANK", "GROUP_RANK"}
# They differ from job to job wherever it was sent from.
VOLATILE = (
    "JOB_ID", "JOBID", "JOB_NAME", "PORT", "HOST", "ADDR", "NODELIST", "NODENAME", "PID", "DIR",
    "TIME", "PROCESS_ID",
)  # fmt: skip


def place_of(environment):
    names = [n for n in environment if n.startswith(PLACE) or n in PLACE_NAMES]
    return {n: "" if n.endswith(VOLATILE) else environment[n] for n in names}


def test_a_job_sent_from_inside_a_step_inherits_nothing_of_its_place(hpcddp, cluster, tmp_path):
    write = 'env -0 > "$0-$RANK"'
    memory = "resources.mem_per_cpu=60M"  # which srun refuses beside --mem of the job around it
    hpcddp.submit("outer", memory, command=["bash", "-c", write, str(tmp_path / "outer")])
    inner = (
        f"-m hpcddp submit --cluster testcluster --nodes 2 --name inner {memory} -- "
        f"bash -c '{write}' {tmp_path}/inner"
    )
    script = (
        "#!/bin/bash\n"
        f"export HPCDDP_RUNS_DIR={hpcddp.runs} OMP_NUM_THREADS=1\n"
        "export RANK=3 WORLD_SIZE=8 LOCAL_RANK=3 MASTER_ADDR=nowhere MASTER_PORT=1 NODE_RANK=1\n"
        "export TORCHELASTIC_RUN_ID=x SRUN_CPUS_PER_TASK=2 HPCDDP_ATTEMPT=7 PMI_RANK=3\n"
        f"srun -n1 {PYTHON} {inner}\n"
    )
    parent = ["-N1", "-n2", "-c2", "--mem=200", "--gpus-per-node=1", "--array=5"]
    job_id = cluster.sbatch(script, *parent)
    cluster.wait(job_id, "COMPLETED")
    for name in ("outer", "inner"):
        hpcddp.wait_for(name, "finished")
    outer, inner = (environment_of_ranks(tmp_path / name) for name in ("outer", "inner"))
    for rank in range(2):
        assert place_of(inner[rank]) == place_of(outer[rank])
        assert inner[rank]["RANK"] == inner[rank]["SLURM_PROCID"] == str(rank)
        assert inner[rank]["MASTER_ADDR"] in cluster.nodes
        assert inner[rank]["SLURM_JOB_ID"] == hpcddp.status("inner")["job_id"] != job_id


def test_a_job_sent_from_a_job_of_one_node_chooses_its_own_network_and_threads(hpcddp, tmp_path):
    del hpcddp.env["OMP_NUM_THREADS"]
    write = 'env -0 > "$0-$RANK"'
    send = (
        f"{write}; [ $RANK != 0 ] || {PYTHON} -m hpcddp submit --cluster testcluster --nodes 2 "
        f"--name inner -- bash -c '{write}' {tmp_path}/inner"
    )
    words = ["resources.processes_per_node=2", "resources.cpus_per_process=2"]
    hpcddp.submit("outer", *words, nodes=1, command=["bash", "-c", send, str(tmp_path / "outer")])
    for name, chosen in {"outer": ("lo", "2"), "inner": ("eth0", "1")}.items():
        hpcddp.wait_for(name, "finished")
        for seen in environment_of_ranks(tmp_path / name):
            assert (seen["GLOO_SOCKET_IFNAME"], seen["OMP_NUM_THREADS"]) == chosen


@pytest.mark.parametrize("name", ["it's a $HOME; ü run", 'dq"x', "semi;touch PWNED", "b[1-2]"])
def test_unusual_names_work_from_end_to_end(hpcddp, tmp_path, name):
    """Names of the run, of the folders it runs and writes in, and of the one Python lies in."""
    odd = tmp_path / f"root {name}"
    hpcddp.runs, hpcddp.work_dir = odd / "runs", odd / "work"
    hpcddp.work_dir.mkdir(parents=True)
    (odd / "venv").symlink_to(Path(PYTHON).parents[1])
    hpcddp.python = odd / "venv" / "bin" / Path(PYTHON).name
    hpcddp.env["HPCDDP_RUNS_DIR"] = str(hpcddp.runs)
    value = "a 'b' \"c\" $HOME; ü"
    say = 'printf "%s|%s|%s" "$1" "$RANK" "$PWD"'
    hpcddp.submit(name, command=["bash", "-c", say, "x", value])
    hpcddp.wait_for(name, "finished")
    for rank in range(2):
        log = hpcddp.run_dir(name).rank_log(0, rank)
        said = log.read_text(encoding="utf-8").splitlines()  # after our own about the network
        assert said[-1] == f"{value}|{rank}|{hpcddp.work_dir}"
    assert not list(tmp_path.rglob("PWNED"))


def test_a_failing_program_is_a_failed_job(hpcddp, cluster):
    job_id = hpcddp.submit("r", "--nodes", "1", command=["bash", "-c", "exit 7"])
    hpcddp.wait_for("r", "failed")
    assert cluster.wait(job_id, {"FAILED"}) == "FAILED"
    assert cluster.show(job_id)["ExitCode"] == "7:0"
    assert hpcddp("wait", "r").returncode == 7


def test_slurms_input_variables_change_nothing_that_is_decided(hpcddp, cluster, tmp_path):
    """Those of partition and time limit are read as the user's wishes, and typed ones win."""
    wishes = {"PARTITION": "urgent", "TIMELIMIT": "7", "COMMENT": "kept"}
    contradict = {
        "ARRAY_INX": "1-3", "WAIT": "1", "JOB_NAME": "other", "OUTPUT": f"{tmp_path}/elsewhere",
        "ERROR": f"{tmp_path}/elsewhere", "OPEN_MODE": "truncate", "SIGNAL": "B:HUP@5",
        "NO_REQUEUE": "1", "GPUS_PER_NODE": "1", "GPUS": "1", "MEM_PER_CPU": "10", "EXPORT": "NONE",
    }  # fmt: skip
    hpcddp.env |= {f"SBATCH_{name}": value for name, value in (wishes | contradict).items()}
    held = ["--partition", "main", "resources.sbatch.hold=true", "resources.mem=100M"]
    job_id = hpcddp.submit("r", *held, command=["true"])
    job = cluster.show(job_id)
    assert "ArrayJobId" not in job
    assert (job["JobName"], job["Partition"], job["TimeLimit"]) == ("r", "main", "00:07:00")
    assert (job["Requeue"], job["MinMemoryNode"]) == ("1", "100M")
    assert job["StdOut"] == job["StdErr"] == str(hpcddp.run_dir("r").batch_log)
    assert "gpu" not in str(job)
    cluster.run(["scontrol", "release", job_id])
    hpcddp.wait_for("r", "finished")


def test_a_job_without_the_users_environment_has_its_own(hpcddp, tmp_path):
    hpcddp.env["MINE"] = "1"
    write = 'echo "$RANK $WORLD_SIZE $PYTHONUTF8 ${MINE-none}" > "$0-$RANK"'
    words = ["resources.sbatch.export=NONE"]
    hpcddp.submit("r", *words, command=["bash", "-c", write, str(tmp_path / "seen")])
    hpcddp.wait_for("r", "finished")
    seen = [(tmp_path / f"seen-{rank}").read_text() for rank in range(2)]
    assert seen == ["0 2 1 none\n", "1 2 1 none\n"]


def test_a_secret_reaches_the_processes_and_none_of_the_runs_files(hpcddp):
    hpcddp.env["HF_TOKEN"] = secret = "hf_" + "aSecretThatNobodyMayRead"
    has_it = '[ "${#HF_TOKEN}" = "$1" ]'
    command = ["bash", "-c", has_it, "x", str(len(secret))]
    hpcddp.submit("r", command=command)
    hpcddp.wait_for("r", "finished")
    files = [path for path in (hpcddp.runs / "r").rglob("*") if path.is_file()]
    assert {"job.sbatch", "config.yaml", "batch.log", "rank-0000.log"} <= {f.name for f in files}
    assert [path for path in files if secret.encode() in path.read_bytes()] == []


def test_processes_get_the_cpus_and_further_options_that_were_asked_for(hpcddp, cluster, tmp_path):
    words = [
        "resources.cpus_per_process=2",
        "resources.processes_per_node=2",
        'resources.sbatch.comment=it\'s "mine"; $HOME',
        "resources.srun.cpu-bind=none",
        "resources.srun.distribution=cyclic",
        "resources.srun.exact=true",  # without --cpus-per-task a step of 22.05 gets 1 per task
    ]
    ask = 'echo "$SLURM_CPUS_ON_NODE $OMP_NUM_THREADS $LOCAL_RANK $MASTER_ADDR" > "$0-$RANK"'
    del hpcddp.env["OMP_NUM_THREADS"]
    job_id = hpcddp.submit("r", *words, command=["bash", "-c", ask, str(tmp_path / "seen")])
    hpcddp.wait_for("r", "finished")
    seen = [(tmp_path / f"seen-{rank}").read_text().split() for rank in range(4)]
    assert [local_rank for *_, local_rank, _ in seen] == ["0", "0", "1", "1"]
    assert {(cpus, threads, address) for cpus, threads, _, address in seen} == {
        ("4", "2", "gpu-01")
    }
    job = cluster.show(job_id)
    assert (job["NumCPUs"], job["CPUs/Task"]) == ("8", "2")
    assert 'Comment=it\'s "mine"; $HOME' in cluster.run(["scontrol", "show", "job", job_id]).stdout
