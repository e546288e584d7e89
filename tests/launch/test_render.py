"""`render` prints exactly what `submit` sends; golden files are compared whole.

A golden file is never written by a test run. After a change that is meant, make the new ones with
`python tests/launch/test_render.py` and read the difference.
"""

import subprocess
from pathlib import Path

import pytest

from hpcddp.cluster.profile import EnvSetting, load_profile
from hpcddp.config.load import Layer, command_line_layer, resolve
from hpcddp.errors import HpcddpError
from hpcddp.launch.place import Place
from hpcddp.launch.render import render_script
from hpcddp.run_dir import RunDir

GOLDEN = Path(__file__).parent / "golden"
CASES = {
    "generic_2n_4g": ("generic", ["resources.nodes=2", "resources.gpus_per_node=4"]),
    "generic_1n": ("generic", []),
    "generic_dp_4g": ("generic", ["resources.gpus_per_node=4", "train.replicas=dp"]),
    "generic_cpu_2n": ("generic-cpu", ["resources.nodes=2", "resources.processes_per_node=3"]),
    "testcluster_2n": ("testcluster", ["resources.nodes=2"]),
    "local_2n": ("local", ["resources.nodes=2"]),
    "all_options": (
        "generic",
        [
            "resources.nodes=3",
            "resources.gpus_per_node=8",
            "resources.cpus_per_process=12",
            "resources.time=1-02:30:00",
            "resources.partition=gpu,gpu-long",
            "resources.account=proj@h100",
            "resources.qos=qos_gpu-t3",
            "resources.constraint=a100&hbm80g",
            "resources.reservation=course",
            "resources.mem=0",
            "resources.warn_before_s=300",
            "resources.sbatch.comment=it's $5; ü",
            "resources.sbatch.exclusive=true",
            "resources.sbatch.mail_type=END,FAIL",
            "resources.srun.gpu_bind=none",
            "resources.srun.mpi=none",
        ],
    ),
    "odd_paths": ("generic", []),
    "own_command": (
        "generic",
        [
            "resources.nodes=2",
            "resources.gpus_per_node=4",
            "resources.processes_per_node=1",
            "resources.mem_per_cpu=2G",
        ],
    ),
}
ODD = 'it\'s "$5; ü"'
PLACES = {
    "odd_paths": {
        "run": f"/shared/{ODD}/run {ODD}",
        "work_dir": f"/home/{ODD}/work",
        "python": f"/opt/{ODD}/bin/python",
    },
    "own_command": {"command": ("python", "train.py", "--name", f"my {ODD}", "a=$HOME/*", "")},
}


def rendered(
    profile_name,
    words,
    *,
    run="/shared/runs/my run",
    work_dir="/home/me/work",
    python="/opt/env/bin/python",
    command=(),
    profile_changes=None,
):
    profile = load_profile(profile_name, {"HOME": "/nowhere"})
    for name, value in (profile_changes or {}).items():
        object.__setattr__(profile, name, value)
    length = Layer("test", {"train": {"max_steps": 10}})
    typed = Layer("typed", {"command": list(command)})
    resolved = resolve([profile.layer, length, command_line_layer(words), typed])
    place = Place(RunDir(Path(run)), python=python, work_dir=Path(work_dir))
    return render_script(resolved.config, profile, place)


def rendered_case(name):
    return rendered(*CASES[name], **PLACES.get(name, {}))


@pytest.mark.parametrize("name", CASES)
def test_the_script_is_unchanged(name):
    golden = (GOLDEN / f"{name}.sbatch").read_text(encoding="utf-8")
    assert rendered_case(name) == golden


@pytest.mark.parametrize("name", CASES)
def test_bash_accepts_every_script(name):
    check = subprocess.run(["bash", "-n"], input=rendered_case(name), text=True)
    assert check.returncode == 0


def test_a_profile_s_variables_carry_their_reason_and_yield_to_the_user(tmp_path):
    why = "eth0 is slow"
    changes = {
        "env": {"NCCL_SOCKET_IFNAME": EnvSetting("=ib 0", why)},
        "setup": ("true # module load cuda",),
    }
    script = rendered("generic", [], profile_changes=changes)
    assert f"# {why}\n" in script
    assert "true # module load cuda\n" in script
    line = next(line for line in script.splitlines() if "NCCL_SOCKET_IFNAME" in line)
    for before, after in (("", "=ib 0"), ("export NCCL_SOCKET_IFNAME=mine;", "mine")):
        words = ["bash", "-c", f'{before}{line}; printf %s "$NCCL_SOCKET_IFNAME"']
        environ = {"PATH": "/usr/bin:/bin"}
        seen = subprocess.run(words, env=environ, capture_output=True, text=True)
        assert seen.stdout == after


@pytest.mark.parametrize("key", ["host_suffix", "interface", "hca", "master_as"])
def test_rules_for_the_network_reach_the_nodes_and_yield_to_the_user(key):
    changes = {key: EnvSetting("all:^eth*, x", "eth0 is slow")}
    lines = rendered("generic", [], profile_changes=changes).splitlines()
    name = f"HPCDDP_{key.upper()}"
    [at] = [number for number, line in enumerate(lines) if name in line]
    assert lines[at - 1] == "# eth0 is slow"
    for before, after in (("", "all:^eth*, x"), (f"export {name}=;", ""), (f"{name}=a;", "a")):
        words = ["bash", "-c", f'{before}{lines[at]}; printf %s "${name}"']
        assert subprocess.run(words, capture_output=True, text=True, env={}).stdout == after


@pytest.mark.parametrize("shape", ["gres", "gpus-per-node"])
def test_gpus_are_asked_for_in_the_way_of_the_site(shape):
    words = ["resources.gpus_per_node=4"]
    script = rendered("generic", words, profile_changes={"gpu_request": shape})
    expected = {"gres": "#SBATCH --gres=gpu:4", "gpus-per-node": "#SBATCH --gpus-per-node=4"}
    assert expected[shape] in script.splitlines()


@pytest.mark.parametrize(
    ("words", "must_say"),
    [
        (["resources.sbatch.signal=B:USR2@60"], ["resources.sbatch.signal", "warn_before_s"]),
        (["resources.sbatch.ntasks=4"], ["resources.sbatch.ntasks", "resources.nodes"]),
        (["resources.sbatch.mem_per_cpu=4GB"], ["use resources.mem_per_cpu"]),
        (["resources.sbatch.N=3"], ["resources.sbatch.nodes", "use resources.nodes"]),
        (["resources.srun.c=3"], ["resources.srun.cpus-per-task"]),
        (["resources.sbatch.array=0-3"], ["array", "one run per element"]),
        (["resources.srun.output=x"], ["output"]),
        (["resources.srun.ntasks=1"], ["resources.srun.ntasks", "resources of the job"]),
        (["resources.srun.nodes=1"], ["resources.srun.nodes"]),
        (["resources.srun.ntasks_per_node=1"], ["resources.srun.ntasks-per-node"]),
        (["resources.srun.w=gpu-01"], ["resources.srun.nodelist"]),
        (["resources.srun.r=1"], ["resources.srun.relative"]),
        (["resources.mem=16GB", "resources.mem_per_cpu=1GB"], ["mem", "mem-per-cpu"]),
        (["resources.mem=16GiB"], ["16GiB"]),
        (["resources.time=1h"], ["1h"]),
        (["resources.time=2"], ["warn_before_s=120", "nothing would be trained"]),
        (["resources.gpus_per_node=0"], ["generic-cpu"]),
        (["resources.processes_per_node=2", "resources.gpus_per_node=4"], ["one process"]),
    ],
)
def test_what_slurm_would_refuse_or_ignore_is_refused_here(words, must_say):
    with pytest.raises(HpcddpError) as caught:
        rendered("generic", words)
    for text in must_say:
        assert text in caught.value.message


def test_an_option_of_value_0_is_an_option():
    words = ["resources.sbatch.core-spec=0", "resources.sbatch.nice=0", "resources.srun.wait=0"]
    off = ["resources.sbatch.contiguous=false", "resources.srun.exact=null"]
    script = rendered("generic", [*words, *off])
    assert "#SBATCH --core-spec=0\n#SBATCH --nice=0\n" in script
    assert " --wait=0 " in script
    assert "contiguous" not in script
    assert "exact" not in script


def test_a_short_option_becomes_its_long_one():
    script = rendered("generic", ["resources.sbatch.b=now+1hour", "resources.srun.m=cyclic"])
    assert "#SBATCH --begin=now+1hour\n" in script
    assert " --distribution=cyclic " in script


def test_gpus_on_a_profile_without_any_are_refused():
    with pytest.raises(HpcddpError, match=r"resources\.processes_per_node=2"):
        rendered("generic-cpu", ["resources.gpus_per_node=2"])


@pytest.mark.parametrize("profile", ["generic", "local"])
@pytest.mark.parametrize("bad", ["50%", "back\\slash", "new\nline"])
@pytest.mark.parametrize("place", ["run", "work_dir", "python"])
def test_paths_that_slurm_rewrites_are_refused(place, bad, profile):
    path = {place: f"/shared/{bad}/python"}
    if profile == "local" and bad.isprintable():
        is_named = place != "work_dir"  # a job of this machine begins where it was sent from
        assert (bad in rendered(profile, [], **path)) == is_named
        return
    with pytest.raises(HpcddpError) as caught:
        rendered(profile, [], **path)
    assert caught.value.code == "unsafe_path"


@pytest.mark.parametrize(("before", "after"), [("", "cpu"), ("export HPCDDP_DEVICE=cuda", "cuda")])
def test_a_device_that_the_user_asks_for_wins_over_a_profile_without_gpus(before, after):
    [line] = [each for each in rendered("generic-cpu", []).splitlines() if "DEVICE=cpu" in each]
    words = ["bash", "-c", f"{before}\n{line}\nprintf %s $HPCDDP_DEVICE"]
    assert subprocess.run(words, capture_output=True, text=True, env={}).stdout == after


if __name__ == "__main__":
    for case in CASES:
        (GOLDEN / f"{case}.sbatch").write_text(rendered_case(case), encoding="utf-8")
