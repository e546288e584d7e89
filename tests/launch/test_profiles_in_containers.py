"""Every shipped profile that knows a container's runtime starts the processes in it."""

import re
import subprocess
from pathlib import Path

import pytest

from hpcddp.cluster.profile import load_profile
from hpcddp.cluster.profile_file import list_profiles, read_merged
from hpcddp.launch.place import Place
from hpcddp.launch.render import render_script
from hpcddp.launch.request import Request, resolve_request
from hpcddp.run_dir import RunDir

HERE = {"HOME": "/nowhere"}
PLACE = Place(RunDir(Path("/shared/runs/r")), python="/py", work_dir=Path("/home/me"))
TYPED = ("resources.project=proj", "resources.account=acct", "resources.container=/img.sqsh")
RUNTIMES = {
    name: load_profile(name, HERE).container.runtime
    for name in list_profiles(HERE)
    if load_profile(name, HERE).container.runtime != "none"
}
INSIDE = {
    "apptainer": [r"^  apptainer exec .*--bind /shared/runs,/home/me /img\.sqsh \\$"],
    "wrap": [r"^  singularity exec .*--bind /shared/runs,/home/me /img\.sqsh \\$"],
    "shifter": [r"^#SBATCH --image=/img\.sqsh$", r"^  shifter \\$"],
    "environment": [r"^srun .* --environment=/img\.sqsh "],
    "pyxis": [
        r"^srun .* --container-image=/img\.sqsh ",
        r" --container-mounts=/shared/runs:/shared/runs,/home/me:/home/me[ ,]",
    ],
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """No configs folder of the place where the tests run."""
    monkeypatch.chdir(tmp_path)


def resolved(name, *words, nodes=2):
    asked = Request(cluster=name, resources={"nodes": nodes}, overrides=(*TYPED, *words))
    return resolve_request(asked, HERE)


def script_of(name, *words, nodes=2):
    request = resolved(name, *words, nodes=nodes)
    return render_script(request.config, request.profile, PLACE)


def choices(name):
    """No word, and one for each queue and each variant."""
    values = read_merged(name, HERE).values
    kinds = (("queue", "queues"), ("variant", "variants"))
    named = [(f"resources.{key}={one}",) for key, kind in kinds for one in values.get(kind, {})]
    return [(), *named]


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("name", RUNTIMES)
def test_every_queue_and_variant_starts_its_processes_in_the_container(name, nodes):
    for words in choices(name):
        script = script_of(name, *words, nodes=nodes)
        assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
        missing = [text for text in INSIDE[RUNTIMES[name]] if not re.search(text, script, re.M)]
        assert not missing, words
        python = load_profile(name, HERE).container.python
        assert f'  {python} -u -m hpcddp run --run-dir "$run_dir"\n' in script


def test_a_machine_s_topology_file_is_mounted_only_where_it_is_used():
    assert "/opt/microsoft/ndv5-topo.xml" in script_of("azure-ndv5")
    assert "topo.xml" not in script_of("azure-ndv5", "resources.variant=gb200")


def test_the_daemon_of_the_job_is_reached_from_inside_the_container():
    plugin, daemon = "/var/lib/tcpx/lib64", '"/run/tcpx-$SLURM_JOB_ID:/run/tcpx-$SLURM_JOB_ID"'
    assert f"/home/me:/home/me,{plugin}:{plugin},{daemon} " in script_of("gcp-a3-high")
    assert "tcpx-" not in script_of("gcp-a3-high", nodes=1)


def test_the_plugin_of_a_hook_is_forced_only_in_the_container_that_gets_it():
    forced = "export NCCL_NET='AWS Libfabric'\n"
    assert forced in script_of("clariden")
    assert "NCCL_NET=" not in script_of("clariden", "resources.container=null")
    assert "NCCL_NET=" not in script_of("clariden", nodes=1)
