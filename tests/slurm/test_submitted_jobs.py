"""Who am I, in steps of every shape Slurm can make; no training, so a step takes seconds."""

import json
import sys

import pytest

ENV = f"{sys.executable} -m hpcddp env --json"
ONE_LINE = f"bash -c '{ENV} | tr -d \"\\n\"; echo'"  # so that the tasks' answers do not mix


def layouts(cluster, srun_line, *sbatch_options):
    """What every task of one step in a job says of itself, by global rank."""
    script = f"#!/bin/bash\n{srun_line} {ONE_LINE} 2>/dev/null\n"
    job_id = cluster.sbatch(script, *sbatch_options)
    cluster.wait(job_id, {"COMPLETED"})
    records = [json.loads(line) for line in cluster.output(job_id).splitlines() if line]
    return sorted(records, key=lambda record: record["global_rank"])


def assert_one_world(records, world_size):
    assert [record["global_rank"] for record in records] == list(range(world_size))
    for key in ("world_size", "master_addr", "master_port", "num_nodes", "hosts"):
        assert len({json.dumps(record[key]) for record in records}) == 1, key
    assert records[0]["world_size"] == world_size
    assert records[0]["master_addr"] == records[0]["hosts"][0]
    by_node = {}
    for record in records:
        by_node.setdefault(record["node_rank"], []).append(record)
    for members in by_node.values():
        places = sorted(record["local_rank"] for record in members)
        assert places == list(range(len(members)))
        assert {record["local_world_size"] for record in members} == {len(members)}


@pytest.mark.parametrize(
    ("options", "srun_line", "world_size"),
    [
        (["-N2", "--ntasks-per-node=2"], "srun", 4),
        (["-N3", "-n5"], "srun", 5),
        (["-N3", "-n5"], "srun --distribution=cyclic", 5),
        (["-N3", "--ntasks-per-node=1"], "srun -N1 -n1 -w gpu-02", 1),
        (["-N3", "--ntasks-per-node=2"], "srun -N2 -n3", 3),
    ],
    ids=["even", "uneven", "cyclic", "one_node_of_three", "smaller_step"],
)
def test_all_ranks_agree_on_their_world(cluster, options, srun_line, world_size):
    assert_one_world(layouts(cluster, srun_line, *options), world_size)


def test_array_elements_are_worlds_of_their_own(cluster):
    script = f"#!/bin/bash\nsrun {ONE_LINE}\n"
    job_id = cluster.sbatch(script, "--array=1-2", "-N1", "-n2", "--output=array-%a.out")
    cluster.wait(job_id, {"COMPLETED"})
    ports, targets = set(), set()
    for index in (1, 2):
        lines = (cluster.work_dir / f"array-{index}.out").read_text().splitlines()
        records = sorted(map(json.loads, filter(None, lines)), key=lambda r: r["global_rank"])
        assert_one_world(records, 2)
        ports.add(records[0]["master_port"])
        targets.add(records[0]["requeue_target"])
    assert len(ports) == 2
    assert targets == {f"{job_id}_1", f"{job_id}_2"}


def test_python_in_the_batch_script_is_told_to_use_srun(cluster):
    script = f"#!/bin/bash\n{ENV}\necho code $?\n{sys.executable} -m hpcddp env\necho code $?\n"
    job_id = cluster.sbatch(script, "-N2", "--ntasks-per-node=2")
    cluster.wait(job_id, {"COMPLETED"})
    output = cluster.output(job_id)
    assert '"error": "not_in_step"' in output
    assert "srun" in output
    assert output.count("code 2") == 2
    assert "Traceback" not in output


def test_a_job_sent_from_inside_a_job_does_not_inherit_its_place(hpcddp, cluster):
    inner = [
        "submit", "--cluster", "testcluster", "--nodes", "2", "--name", "inner", "--",
        "bash", "-c", "env > env-$RANK.txt",
    ]  # fmt: skip
    words = " ".join(f"'{word}'" for word in inner)
    script = f"#!/bin/bash\nsrun -n1 {sys.executable} -m hpcddp {words}\n"
    options = [
        "-N1",
        "-n4",
        "--mem=100",
        "--array=5",
        f"--export=ALL,HPCDDP_RUNS_DIR={hpcddp.runs}",
    ]
    job_id = cluster.sbatch(script, *options)
    cluster.wait(job_id, {"COMPLETED"})
    hpcddp.wait_for("inner", "finished")
    for rank in range(2):
        text = (cluster.work_dir / f"env-{rank}.txt").read_text()
        seen = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        assert "SLURM_ARRAY_TASK_ID" not in seen
        assert (seen["SLURM_NTASKS"], seen["RANK"], seen["WORLD_SIZE"]) == ("2", str(rank), "2")
        assert seen["SLURM_JOB_ID"] != job_id


@pytest.mark.parametrize("name", ["it's a $HOME; ü run", 'dq"x', "semi;touch PWNED", "b[1-2]"])
def test_unusual_names_work_from_end_to_end(hpcddp, tmp_path, name):
    hpcddp.runs = tmp_path / f"root {name}"
    hpcddp.env["HPCDDP_RUNS_DIR"] = str(hpcddp.runs)
    value = "a 'b' \"c\" $HOME; ü"
    hpcddp.submit(name, command=["bash", "-c", 'printf "%s|%s" "$1" "$RANK"', "x", value])
    hpcddp.wait_for(name, "finished")
    for rank in range(2):
        log = hpcddp.run_dir(name).rank_log(0, rank)
        assert log.read_text(encoding="utf-8") == f"{value}|{rank}"
    assert not list(tmp_path.rglob("PWNED"))


def test_a_failing_program_is_a_failed_job(hpcddp, cluster):
    job_id = hpcddp.submit("r", "--nodes", "1", command=["bash", "-c", "exit 7"])
    hpcddp.wait_for("r", "failed")
    assert cluster.wait(job_id, {"FAILED"}) == "FAILED"
    assert cluster.show(job_id)["ExitCode"] == "7:0"
    assert hpcddp("wait", "r").returncode == 7
