"""Who am I, asked of every task in steps of every shape that Slurm makes. Nothing is trained."""

import itertools
import json
import shutil
import sys
from collections import defaultdict

import pytest

PYTHON = sys.executable
SRUN = shutil.which("srun")
# The host's own name comes first: a witness that knows nothing of Slurm's variables.
TELL = f"/bin/bash -c 'echo $(</proc/sys/kernel/hostname); exec {PYTHON} -m hpcddp env --json'"


@pytest.fixture
def ask(cluster, tmp_path):
    """Return a function that runs a job and gives each of its steps as a list of answers.

    In its script `srun OPTIONS {ask}` asks all tasks of a step. Steps come in their order, of
    several jobs (array elements) one after the other; answers in the order of the tasks. The
    job's id, as sbatch printed it, is `ask.job_id` then.
    """
    answers = tmp_path / "answers"
    answers.mkdir()
    options_of_step = f"--output={answers}/%J.%t --error={answers}/%J.%t.log {TELL}"

    def ask(script, *sbatch_options):
        text = "#!/bin/bash\n" + script.replace("{ask}", options_of_step)
        log = tmp_path / "batch.log"
        job_id = cluster.sbatch(text, f"--output={log}", "--open-mode=append", *sbatch_options)
        cluster.wait(job_id, {"COMPLETED", "FAILED"})
        ask.job_id = job_id
        steps = defaultdict(list)
        for path in answers.glob("*[0-9]"):
            *step, task = map(int, path.name.split("."))
            host, _, answer = path.read_text().partition("\n")
            steps[tuple(step)].append((task, {"host": host, **json.loads(answer)}))
        assert steps, log.read_text()
        in_order = [sorted(steps[step], key=lambda pair: pair[0]) for step in sorted(steps)]
        return [[answer for _, answer in step] for step in in_order]

    return ask


def assert_one_world(answers, world_size):
    """All tasks agree on their world, and where each says it is, there it is."""
    assert [answer.get("global_rank") for answer in answers] == list(range(world_size)), answers
    for key in ("world_size", "master_addr", "master_port", "num_nodes", "hosts"):
        assert len({json.dumps(answer[key]) for answer in answers}) == 1, key
    first = answers[0]
    assert (first["world_size"], first["launcher"]) == (world_size, "slurm")
    assert first["master_addr"] == first["host"]
    assert first["num_nodes"] == len(first["hosts"]) == len({a["host"] for a in answers})
    assert [a["hosts"][a["node_rank"]] for a in answers] == [a["host"] for a in answers]
    for host in first["hosts"]:
        members = [answer for answer in answers if answer["host"] == host]
        assert sorted(a["local_rank"] for a in members) == list(range(len(members)))
        assert {a["local_world_size"] for a in members} == {len(members)}


@pytest.mark.parametrize(
    ("options", "srun_options", "world_size"),
    [
        ("-N2 --ntasks-per-node=2", "", 4),
        ("-N3 -n5", "", 5),
        ("-N3 -n5", "--distribution=cyclic", 5),
        ("-N3 -n5", "--distribution=plane=2", 5),
        ("-N3 -n11 --ntasks-per-node=4", "", 11),
        ("-N2", "", 2),
        ("-N3 --ntasks-per-node=1", "-N1 -n1 -w gpu-02", 1),
        ("-N3 --ntasks-per-node=2", "-N2 -n3 -w gpu-03,gpu-01", 3),
        ("-N2 --export=NONE", "", 2),
        ("-N2 --job-name=bash", "", 2),
        ("-N2 -n3 --export=ALL,PATH=/nowhere", "", 3),
    ],
    ids=[
        "even",
        "uneven",
        "cyclic",
        "plane",
        "fewer_than_per_node_says",
        "no_number_of_tasks",
        "one_node_of_three",
        "two_nodes_of_three",
        "export_none",
        "named_like_a_shell",
        "without_slurms_tools",
    ],
)
def test_all_tasks_agree_on_their_world(ask, options, srun_options, world_size):
    [answers] = ask(f"{SRUN} {srun_options} {{ask}}\n", *options.split())
    assert_one_world(answers, world_size)


def test_a_step_typed_on_the_login_node_meets_on_a_compute_node(cluster):
    lines = cluster.srun("-N2", "-n2", PYTHON, "-m", "hpcddp", "env")
    addresses = [line.split()[1] for line in lines if line.startswith("master_addr ")]
    assert addresses == ["gpu-01"] * 2


def test_two_steps_at_once_do_not_meet(ask):
    first, second = ask(2 * "srun --exact -N2 -n2 {ask} &\n" + "wait\n", "-N2", "-n4")
    assert_one_world(first, 2)
    assert_one_world(second, 2)
    assert first[0]["master_port"] != second[0]["master_port"]


@pytest.mark.parametrize("groups", ["0,1", "1"])
def test_groups_of_a_heterogeneous_job_are_counted_in_their_own_order(ask, groups):
    # Slurm lists the hosts of such a step by name, but numbers its nodes by group.
    lines = "#SBATCH -N1 -n1 -w gpu-04\n#SBATCH hetjob\n#SBATCH -N2 -n4 -w gpu-01,gpu-03\n"
    components = ask(f"{lines}srun --het-group={groups} {{ask}}\n")
    answers = list(itertools.chain(*components))
    assert_one_world(answers, 5 if groups == "0,1" else 4)
    assert answers[0]["host"] == ("gpu-04" if groups == "0,1" else "gpu-01")
    # Slurm knows each group by a number of its own, but requeues only the whole.
    assert {answer["requeue_target"] for answer in answers} == {ask.job_id}


def test_tasks_placed_by_a_host_file_need_to_be_told_where_rank_0_is(ask, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("gpu-03\ngpu-01\n")
    step = f"SLURM_HOSTFILE={hosts} srun -n2 --distribution=arbitrary {{ask}}\n"
    untold, told = ask(f"{step}export HPCDDP_MASTER_ADDR=gpu-03\n{step}", "-N3", "-n3")
    assert [answer["error"] for answer in untold] == ["inconsistent"] * 2
    assert "HPCDDP_MASTER_ADDR" in untold[0]["message"]
    assert_one_world(told, 2)


@pytest.mark.parametrize(
    ("options", "srun_options", "devices"),
    [
        ("-N2 --ntasks-per-node=2 --gpus-per-node=2", "", [0, 1, 0, 1]),
        ("-N2 --ntasks-per-node=2 --gpus-per-node=a100:2", "--distribution=cyclic", [0, 0, 1, 1]),
        ("-N1 --ntasks-per-node=2 --gpus-per-task=1", "", [0, 0]),
        ("-N1 --ntasks-per-node=2 --gpus-per-node=2", "--gpu-bind=single:1", [0, 0]),
        ("-N1 --ntasks-per-node=2 --gpus-per-node=2", "--gpu-bind=map_gpu:1,0", [0, 0]),
        ("-N2 -n4 --gpus=3", "", ["gpu_mismatch"] * 3 + [0]),
        ("-N2 --ntasks-per-node=2 --gres=gpu:a100:2", "--gres=gpu:a100:2", [0, 1, 0, 1]),
        ("-N1 -n4 --gres=gpu:a100:2", "--gres=gpu:a100:2", ["gpu_mismatch"] * 4),
    ],
    ids=[
        "per_node",
        "typed_and_cyclic",
        "per_task",
        "bound",
        "mapped",
        "spread",
        "gres",
        "gres_too_few",
    ],
)
def test_the_device_is_counted_among_those_a_task_sees(ask, options, srun_options, devices):
    [answers] = ask(f"srun {srun_options} {{ask}}\n", *options.split())
    assert [a.get("error", a.get("device_index")) for a in answers] == devices


def test_devices_that_a_script_claims_and_slurm_never_granted_are_told(cluster):
    claim = ["env", "CUDA_VISIBLE_DEVICES=0,1,2,3"]
    asked = [*claim, PYTHON, "-m", "hpcddp", "env"]
    lines = cluster.srun("-N1", "-n2", "--gpus-per-node=2", "--label", *asked)
    told = [line for line in lines if "CUDA_VISIBLE_DEVICES lists 4 devices" in line]
    assert [line[0] for line in sorted(told)] == ["0", "1"]
    assert all("Slurm granted 2" in line for line in told)


def test_array_elements_are_worlds_of_their_own(ask):
    worlds = ask("srun {ask}\n", "--array=1-2", "-N1", "-n2")
    for answers in worlds:
        assert_one_world(answers, 2)
    first, second = [answers[0] for answers in worlds]
    assert first["master_port"] != second["master_port"]
    # Slurm gives the last element the array's own job id; alone it would mean all of them.
    targets = {answers[0]["requeue_target"].partition("_")[::2] for answers in worlds}
    assert {index for _, index in targets} == {"1", "2"}
    assert len({job for job, _ in targets}) == 1


# Outside a step


def assert_sent_to_srun(output, size):
    *_, said = output.splitlines()
    assert "not_in_step" in output or said.startswith("Error: ")
    assert f"srun {size} " in output
    assert "Traceback" not in output


def test_python_in_a_batch_script_is_told_to_use_srun(cluster, hpcddp, tmp_path):
    words = {"json": "env --json", "text": "env", "run": "run --name r", "own": "run -- true"}
    lines = [
        f"{PYTHON} -m hpcddp {verb} > {tmp_path}/{name} 2>&1; echo $?"
        for name, verb in words.items()
    ]
    script = "\n".join(["#!/bin/bash", f"export HPCDDP_RUNS_DIR={hpcddp.runs}", *lines, ""])
    job_id = cluster.sbatch(script, "-N2", "--ntasks-per-node=2")
    cluster.wait(job_id, "COMPLETED")
    assert cluster.output(job_id).split() == ["2"] * 4
    for name in words:
        assert_sent_to_srun((tmp_path / name).read_text(), "--ntasks=4")
    answer = json.loads((tmp_path / "json").read_text())
    assert (answer["error"], list(answer)) == ("not_in_step", ["error", "message"])
    assert not hpcddp.runs.exists()


def test_a_shell_of_salloc_is_no_step_but_srun_in_it_makes_one(cluster):
    lines = f"{PYTHON} -m hpcddp env --json; echo; srun -n3 --label {PYTHON} -m hpcddp env --json"
    done = cluster.run(["salloc", "-N2", "--ntasks-per-node=2", "bash", "-c", lines])
    assert done.returncode == 0, done.stderr
    shell, _, step = done.stdout.partition("\n\n")
    assert_sent_to_srun(shell, "--ntasks=4")
    assert step.count('"world_size": 3') == 3


def test_a_shell_that_srun_started_is_one_process_and_srun_in_it_makes_a_world(cluster):
    ask = f"{PYTHON} -m hpcddp env --json | tr -d '\\n'; echo"
    lines = f'{ask}; srun --overlap -N2 -n3 bash -c "{ask}"'
    done = cluster.run(["salloc", "-N2", "-n4", "srun", "-N1", "-n1", "bash", "-c", lines])
    assert done.returncode == 0, done.stderr
    shell, *step = map(json.loads, done.stdout.splitlines())
    assert (shell["world_size"], shell["master_addr"]) == (1, "gpu-01")
    assert sorted(answer["global_rank"] for answer in step) == [0, 1, 2]
    assert {(answer["world_size"], answer["num_nodes"]) for answer in step} == {(3, 2)}


def test_a_login_that_was_put_into_a_job_is_no_step(cluster):
    # What pam_slurm_adopt leaves an ssh session with.
    place = [f"SLURM_CONF={cluster.conf}", "SLURM_JOB_ID=77", "SLURM_JOBID=77"]
    done = cluster.node_exec("gpu-02", ["env", *place, PYTHON, "-m", "hpcddp", "env", "--json"])
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"] == "not_in_step"
