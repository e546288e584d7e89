"""Training that users start by srun or torchrun lines of their own, in jobs on a real Slurm."""

import json
import sys

import pytest
from hpcddp_user import take_port

from hpcddp.cluster.ports import choose_ports

SETTINGS = (
    "train.model=shufflenet_v2_x0_5 train.model_options.zero_init_residual=null train.device=cpu "
    "train.global_batch=12 train.max_steps=2 data.name=synthetic data.synthetic_samples=24 "
)
RUN = f"{sys.executable} -m hpcddp run --name r {SETTINGS}"


@pytest.fixture
def send(hpcddp, cluster):
    """Return a function that sends a script whose processes write runs where `hpcddp` looks."""
    place = f"--export=ALL,HPCDDP_RUNS_DIR={hpcddp.runs},OMP_NUM_THREADS=1"

    def send(script, *options):
        return cluster.sbatch(f"#!/bin/bash\n{script}\n", place, *options)

    return send


def world_of(hpcddp):
    """World size and hosts of the run, once it has trained to its end."""
    [started] = hpcddp.events("r", "started")
    [finished] = hpcddp.events("r", "finished")
    assert finished["step"] == 2
    return started["world_size"], started["hosts"]


def test_an_uneven_step_on_part_of_a_job_trains_although_its_port_is_taken(hpcddp, cluster, send):
    step = f"srun -N2 -n3 -w gpu-02,gpu-03 --kill-on-bad-exit=1 {RUN}"
    job_id = send(step, "-N3", "--ntasks-per-node=2", "--hold")
    port, second = choose_ports(f"{job_id}.0", 0)[:2]
    take_port(cluster, "gpu-02", port)
    cluster.run(["scontrol", "release", job_id])
    cluster.wait(job_id, {"COMPLETED", "FAILED"}, timeout=300)
    output = cluster.output(job_id)
    assert f"Rendezvous at port {second}; not free: {port} (Address already in use" in output
    assert world_of(hpcddp) == (3, ["gpu-02", "gpu-03"])


def test_under_torchrun_on_two_nodes_its_ranks_count_and_the_processes_meet(
    hpcddp, cluster, send, tmp_path
):
    tell = f"{sys.executable} -m hpcddp env --json > {tmp_path}/$RANK; exec {RUN}"
    (tmp_path / "worker.sh").write_text(f"{tell}\n")
    job_id = send(
        f"srun {sys.executable} -m torch.distributed.run --nnodes=2 --nproc-per-node=2 "
        "--rdzv-backend=c10d --rdzv-endpoint=gpu-02:29400 --rdzv-id=$SLURM_JOB_ID "
        f"--no-python bash {tmp_path}/worker.sh",
        *("-w", "gpu-02,gpu-03", "--ntasks-per-node=1"),
    )
    cluster.wait(job_id, {"COMPLETED", "FAILED"}, timeout=300)
    assert world_of(hpcddp) == (4, ["gpu-02", "gpu-03"]), cluster.output(job_id)
    answers = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(4)]
    assert [answer["global_rank"] for answer in answers] == [0, 1, 2, 3]
    assert [answer["local_rank"] for answer in answers] == [0, 1, 0, 1]
    assert [answer["node_rank"] for answer in answers] == [0, 0, 1, 1]
    for key, value in {"world_size": 4, "launcher": "torchrun", "requeue_target": job_id}.items():
        assert {answer[key] for answer in answers} == {value}
    [master] = {answer["master_addr"] for answer in answers}
    assert master in ("gpu-02", "gpu-03", cluster.addresses["gpu-02"], cluster.addresses["gpu-03"])


def test_one_torchrun_for_each_task_is_refused(cluster):
    line = f"{sys.executable} -m hpcddp env --json"
    torchrun = f"{sys.executable} -m torch.distributed.run --standalone --no-python {line}"
    done = cluster.run(["srun", "-N1", "-n2", *torchrun.split()])
    assert done.returncode != 0
    assert done.stdout.count('"error": "inconsistent"') == 2
    assert "srun started 2 torchruns on one node" in done.stdout
