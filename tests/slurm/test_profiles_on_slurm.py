"""Profiles at work on a real cluster: recognised, checked, written, and with all their hooks."""

import json
import re
import shutil

import pytest


@pytest.fixture
def site(hpcddp, tmp_path):
    """A user with a home of his own, in which `site(name, text)` writes profiles."""
    folder = tmp_path / "home" / ".config" / "hpcddp" / "clusters"
    folder.mkdir(parents=True)
    hpcddp.env = hpcddp.env | {"HOME": str(tmp_path / "home")}

    def write(name, text):
        (folder / f"{name}.yaml").write_text(f"description: d\n{text}\n")

    write.folder = folder
    return write


def findings(done):
    return json.loads(done.stdout)["findings"]


def submit(hpcddp, name, cluster, *words, shell):
    """Send a command of one's own to two nodes."""
    options = ["--name", name, "--nodes", "2", *(["--cluster", cluster] if cluster else [])]
    done = hpcddp("submit", *options, *words, "--", "bash", "-c", shell)
    assert done.returncode == 0, done.stderr
    return done


def test_auto_recognises_the_cluster_by_the_name_slurm_has_for_it(hpcddp, site, cluster):
    said = hpcddp("cluster", "detect").stdout
    assert said == f"testcluster: {cluster.conf}: ClusterName=testcluster\n"
    done = submit(hpcddp, "auto", None, shell="true")
    assert "on cluster testcluster, 2 nodes" in done.stdout
    hpcddp.wait_for("auto", "finished")


def test_check_agrees_with_the_shipped_profile_and_notices_every_change(hpcddp, site):
    done = hpcddp("cluster", "check", "--json")
    assert done.returncode == 0, done.stdout
    assert {finding["level"] for finding in findings(done)} == {"ok"}
    site(
        "testcluster.local",
        "queues: {main: {limits: {time_max: '2-00:00:00'}}, urgent: {preempt: {possible: true}},\n"
        " grace: {preempt: {grace_s: 30}}, new: {defaults: {resources: {partition: new}}}}",
    )
    done = hpcddp("cluster", "check", "--json")
    assert done.returncode == 1
    differ = {finding["what"] for finding in findings(done) if finding["level"] == "drift"}
    assert differ == {
        "queue main: longest time",
        "queue urgent: preemption",
        "queue grace: notice",
        "queue new: partition",
    }


GPUS = """
extends: [testcluster]
gpu_request: gpus-per-node
node: {gpus: 2}
defaults: {resources: {gpus_per_node: 2, processes_per_node: 2}}
"""


@pytest.mark.parametrize("option", ["gpu-bind=map_gpu:1,0", "gpus-per-task=1"])
def test_a_program_sees_the_gpus_that_slurm_shows_it(hpcddp, site, cluster, tmp_path, option):
    site("gpus", GPUS)
    tell = "grep -z _VISIBLE_DEVICES /proc/self/environ"
    words = ["-N1", "-n2", "--gpus-per-node=2", f"--{option}"]
    plain = cluster.srun(*words, "bash", "-c", f"{tell} >{tmp_path}/plain-$SLURM_PROCID")
    assert plain == []
    options = ["--name", "g", "--cluster", "gpus", f"resources.srun.{option}"]
    done = hpcddp("submit", *options, "--", "bash", "-c", f"{tell} >{tmp_path}/ours-$RANK")
    assert done.returncode == 0, done.stderr
    hpcddp.wait_for("g", "finished")
    plain, ours = ([(tmp_path / f"{n}-{r}").read_text() for r in (0, 1)] for n in ("plain", "ours"))
    assert ours == plain
    assert plain[0] != plain[1]  # each its own


def test_check_looks_at_a_node_by_a_short_job(hpcddp, site):
    env = "env: {{NCCL_SOCKET_IFNAME: {{value: {}, why: the link of the nodes}}}}"
    for value, level in (("eth", "ok"), ("ib", "drift")):
        site("here", f"extends: [testcluster]\n{env.format(value)}")
        done = hpcddp("cluster", "check", "here", "--job", "--json")
        (found,) = [part for part in findings(done) if "NCCL_SOCKET_IFNAME" in part["what"]]
        assert found["level"] == level
        assert "eth0" in found["live"]


def test_check_asks_for_a_node_as_the_profile_does_and_repeats_what_slurm_refuses(hpcddp, site):
    queue = "queues: {main: {defaults: {resources: {constraint: no-such-feature}}}}"
    site("here", f"extends: [testcluster]\n{queue}")
    done = hpcddp("cluster", "check", "here", "--job", "--json")
    (found,) = [part for part in findings(done) if part["what"] == "node"]
    assert found["level"] == "untested"
    assert "Invalid feature specification" in found["live"]


def test_a_written_profile_can_be_checked_explained_and_used(hpcddp, site, cluster):
    done = hpcddp("cluster", "detect", "--write", "--name", "fresh")
    assert done.returncode == 0, done.stderr
    text = (site.folder / "fresh.yaml").read_text()
    assert text in done.stdout
    for part in ("extends: [ethernet]", "node: {gpus: 2,", "grace_s: 20", "eth0 198.1"):
        assert part in text
    assert hpcddp("cluster", "check", "fresh").returncode == 0
    answer = json.loads(hpcddp("cluster", "explain", "fresh", "--nodes", "2", "--json").stdout)
    assert answer["processes_per_node"] == 2
    submit(hpcddp, "f", "fresh", shell='echo "gpus $CUDA_VISIBLE_DEVICES"')
    hpcddp.wait_for("f", "finished")
    logs = sorted((hpcddp.runs / "f/logs/attempt-000").glob("rank-*.log"))
    assert len(logs) == 4
    assert all("gpus 0,1" in log.read_text() for log in logs)
    again = hpcddp("cluster", "detect", "--write", "--name", "fresh")
    assert again.returncode == 2
    assert (site.folder / "fresh.yaml").read_text() == text


HOOKS = """
extends: [testcluster]
defaults: {resources: {processes_per_node: 2, cpus_per_process: 2}}
setup: ['export FROM_BATCH="$SLURM_JOB_ID"']
setup_node:
  - 'echo "$SLURM_NODEID" >"PLACE/node-$(hostname)"'
  - 'scontrol show step "$SLURM_JOB_ID.$SLURM_STEP_ID" >>"PLACE/node-$(hostname)"'
setup_task: ['export FROM_TASK="$SLURM_PROCID"']
env:
  PLAIN: {value: a b, why: a value with a blank}
  OF_NODE: {value: '$SLURMD_NODENAME-x', why: filled in on the node}
caches:
  TRITON_CACHE_DIR: {value: 'PLACE/triton-$SLURMD_NODENAME-$SLURM_LOCALID', why: one each}
"""


def test_hooks_run_once_per_node_and_in_every_process(hpcddp, site, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    site("hooks", HOOKS.replace("PLACE", str(place)))
    echo = 'echo "$PLAIN|$OF_NODE|$FROM_BATCH|$FROM_TASK|$RANK|cores $SRUN_CPUS_PER_TASK|"'
    shell = f'{echo}; test -d "$TRITON_CACHE_DIR" || exit 9'
    submit(hpcddp, "h", "hooks", shell=shell)
    hpcddp.wait_for("h", "finished")
    job_id = hpcddp.status("h")["job_id"]
    logs = sorted((hpcddp.runs / "h/logs/attempt-000").glob("rank-*.log"))
    for rank, log in enumerate(logs):
        node = rank // 2 + 1
        assert f"a b|gpu-0{node}-x|{job_id}|{rank}|{rank}|cores 2|" in log.read_text()
    told = {path.name: path.read_text() for path in place.glob("node-*")}
    assert {name: text.split()[0] for name, text in told.items()} == {
        "node-gpu-01": "0",
        "node-gpu-02": "1",
    }
    assert all("CPUs=8 Tasks=2 " in text for text in told.values()), told
    assert len(list(place.glob("triton-*"))) == 4


def test_a_line_for_each_node_that_fails_ends_the_attempt_before_any_process(hpcddp, site):
    site("bad", "extends: [testcluster]\nsetup_node: ['exit 3']")
    submit(hpcddp, "b", "bad", shell="echo started")
    status = hpcddp.wait_for("b", "failed")
    assert "exit code 3" in status["reason"]
    assert not list((hpcddp.runs / "b/logs/attempt-000").glob("rank-*.log"))


TORCHRUN = (
    "extends: [testcluster]\nlaunch: torchrun\ndefaults: {resources: {processes_per_node: 2}}"
)


def test_one_torchrun_per_node_makes_one_world(hpcddp, site):
    site("elastic", TORCHRUN)
    submit(hpcddp, "t", "elastic", shell='echo "$RANK of $WORLD_SIZE at $MASTER_ADDR"; hostname')
    hpcddp.wait_for("t", "finished", timeout=120)
    folder = hpcddp.runs / "t/logs/attempt-000"
    said = [(folder / f"rank-000{rank}.log").read_text() for rank in range(4)]
    for rank, text in enumerate(said):
        assert f"{rank} of 4 at gpu-01" in text
        assert re.search(rf"^gpu-0{rank // 2 + 1}$", text, re.MULTILINE)


@pytest.mark.parametrize("partition", ["main", "preempt-grace"], ids=["USR2", "preempted"])
def test_a_stopped_torchrun_job_is_requeued_and_goes_on(hpcddp, site, cluster, tmp_path, partition):
    site("elastic", TORCHRUN)
    shell = (
        f'test "$HPCDDP_ATTEMPT" = 0 || exit 0; trap "exit 75" USR2 TERM; '
        f'touch "{tmp_path}/ready-$RANK"; while :; do sleep 0.2; done'
    )
    submit(hpcddp, "s", "elastic", f"resources.partition={partition}", shell=shell)
    job_id = hpcddp.status("s")["job_id"]
    wanted = {f"ready-{rank}" for rank in range(4)}
    cluster.wait_until(
        lambda: "" if wanted <= {path.name for path in tmp_path.glob("ready-*")} else "not ready",
        120,
    )
    if partition == "main":
        cluster.run(["scancel", "--signal=USR2", job_id])
    else:
        cluster.preempt(job_id)
    status = hpcddp.wait_for("s", "finished", timeout=180)
    ends = ["signalled" if partition == "main" else "preempted", "finished"]
    assert [attempt["end"] for attempt in status["attempts"]] == ends
    assert hpcddp.events("s", "requeued")[0]["exit_code"] == 75  # of the processes


def test_where_nodes_have_no_tools_of_slurm_a_stop_is_told_with_what_to_type(
    hpcddp, site, tmp_path
):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "date", "grep", "mkdir", "sh", "srun"):
        (tools / name).symlink_to(shutil.which(name))
    site("bare", f"extends: [testcluster]\nsetup: ['export PATH={tools}']")
    submit(hpcddp, "b", "bare", shell="exit 75")
    status = hpcddp.wait_for("b", "failed")
    lack = "gpu-01 has no scontrol and no sbatch to requeue with"
    assert f"{lack}; `python -m hpcddp resume b` goes on" in status["reason"]
    assert hpcddp.events("b", "requeued") == []
    assert hpcddp("wait", "b").returncode == 75
    assert "scontrol: " not in hpcddp.run_dir("b").batch_log.read_text()  # nor does the script try
    site("bare", "extends: [testcluster]")
    assert hpcddp("resume", "b").returncode == 0
