"""Every shipped profile renders to a script that is known in full, on one node and on two.

A golden file is never written by a test run. After a change that is meant, make the new ones with
`python tests/launch/test_profiles_rendered.py` and read the difference.
"""

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from hpcddp.cluster.known_variables import KNOWN
from hpcddp.cluster.profile import ClusterProfile, load_profile, settle
from hpcddp.cluster.profile_file import list_profiles, read_merged
from hpcddp.cluster.variable_check import variable_warnings
from hpcddp.config.files import shipped_dir
from hpcddp.config.schema import Resources
from hpcddp.launch.place import Place
from hpcddp.launch.request import Request, resolve_request
from hpcddp.run_dir import RunDir

GOLDEN = Path(__file__).parent / "golden" / "profiles"
HERE = {"HOME": "/nowhere"}
NAMES = sorted(
    path.stem
    for path in (shipped_dir("configs") / "clusters").glob("*.yaml")
    if "." not in path.stem
)
CASES = [(name, nodes) for name in NAMES for nodes in (1, 2)]
RESOURCES = ("resources.project=proj",)
# Where the profile cannot know it: what somebody has to type.
TYPED = dict.fromkeys(
    ("berzelius", "deltaai", "fir", "leonardo", "narval", "perlmutter", "rorqual"),
    ("resources.account=acct",),
)
ONE_PROCESS = ("command=[echo]", "resources.processes_per_node=1")  # as `compare` sends it
NO_SHAPE = ("efa", "ethernet", "gpudirect-tcpx", "infiniband", "roce", "slingshot-amd")
SLINGSHOT = {
    name for name in NAMES if any("slingshot" in f.stem for f in load_profile(name, {}).files)
}
TYPED |= dict.fromkeys((*NO_SHAPE, "slingshot-nvidia"), ("resources.gpus_per_node=4",))
TYPED |= dict.fromkeys(
    ("nibi", "trillium"), ("resources.account=acct", "resources.gpus_per_node=1")
)
TYPED |= {"leonardo": ("resources.account=acct",), "della": ("resources.gpus_per_node=2",)}


def rendered(name, nodes, *words):
    from hpcddp.launch.render import render_script

    overrides = (*RESOURCES, *TYPED.get(name, ()), *words)
    asked = Request(cluster=name, resources={"nodes": nodes}, overrides=overrides)
    request = resolve_request(asked, HERE)
    run_dir = RunDir(Path("/shared/runs/run1"))
    place = Place(run_dir, python="/opt/env/bin/python", work_dir=Path("/home/me/work"))
    return render_script(request.config, request.profile, place)


def golden(name, nodes):
    return GOLDEN / f"{name}_{nodes}n.sbatch"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """No configs folder of the place where the tests run."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("name", "nodes"), CASES)
def test_the_script_of_a_profile_is_unchanged(name, nodes):
    assert rendered(name, nodes) == golden(name, nodes).read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "nodes"), CASES)
def test_bash_accepts_the_script_of_every_profile(name, nodes):
    assert subprocess.run(["bash", "-n", golden(name, nodes)]).returncode == 0


def test_no_golden_script_is_left_over():
    assert sorted(GOLDEN.glob("*")) == sorted(golden(name, nodes) for name, nodes in CASES)


@functools.cache
def all_settled(name) -> list[ClusterProfile]:
    """The profile in every queue, with every variant, on one node and on two."""
    merged = read_merged(name, HERE)
    values = merged.values
    queues, variants = [None, *values.get("queues", {})], [None, *values.get("variants", {})]
    return [
        settle(merged, Resources(nodes=nodes, queue=queue, variant=variant), HERE)
        for nodes in (1, 2)
        for queue in queues
        for variant in variants
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_queue_and_variant_of_a_profile_renders(name):
    values = read_merged(name, HERE).values
    given = TYPED.get(name, ("resources.account=acct",))
    for key, kind in (("queue", "queues"), ("variant", "variants")):
        for choice in values.get(kind, {}):
            account = () if "resources.account=acct" in given else ("resources.account=acct",)
            script = rendered(name, 2, f"resources.{key}={choice}", *account)
            assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


@pytest.mark.parametrize(
    "words", [("train.replicas=dp",), ("resources.launch=torchrun",), ONE_PROCESS]
)
@pytest.mark.parametrize(("name", "option"), [("lumi", "--cpu-bind="), ("frontier", "--gpu-bind=")])
def test_one_process_or_torchrun_with_a_whole_node_is_not_tied_to_the_share_of_one_gpu(
    name, option, words
):
    assert option in rendered(name, 1)
    script = rendered(name, 1, *words)
    assert option not in script
    assert "--gpus-per-task=1" not in script
    assert "--cpus-per-task=56 " in script


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_says_where_it_is_from_and_why(name):
    profile = load_profile(name, HERE)
    assert profile.description
    assert profile.status != "personal"
    assert profile.verified_on.startswith("20")
    assert profile.sources
    for settled in all_settled(name):
        rules = {name: setting for _, name, setting in settled.network}
        settings = {**settled.env, **settled.caches, **settled.sbatch, **settled.srun, **rules}
        assert all(len(setting.why) > 15 for setting in settings.values())


@pytest.mark.parametrize("name", NAMES)
def test_no_profile_sets_a_variable_that_nobody_reads_or_that_does_harm(name):
    for settled in all_settled(name):
        both = {**settled.env, **settled.caches}
        assert variable_warnings({key: part.value for key, part in both.items()}) == ()


@pytest.mark.parametrize("name", sorted(SLINGSHOT))
def test_sockets_on_slingshot_need_no_plugin_and_leave_nothing_of_it_set(name):
    for settled in all_settled(name):
        is_asked_for = settled.variants_on[-1:] == ("sockets",)
        of_plugin = {key for key in settled.env if key.startswith(("FI_", "NCCL_NET_GDR"))}
        if is_asked_for:
            assert settled.env["NCCL_NET"].value == "Socket"
            assert not of_plugin | set(settled.sbatch)
            assert settled.env["NCCL_SOCKET_IFNAME"].value.startswith("hsn")
        assert is_asked_for or of_plugin
    assert any("sockets" in settled.variants_on for settled in all_settled(name))


@pytest.mark.parametrize("name", NAMES)
def test_what_a_profile_leaves_unset_it_does_not_set(name):
    profile = load_profile(name, HERE)
    left = {key for key in profile.unset if key.startswith(tuple(KNOWN))}
    assert not left & set(profile.env)


@pytest.mark.parametrize("name", NAMES)
def test_no_shipped_profile_hits_its_own_limits(name):
    from hpcddp.launch.limits import limit_warnings
    from hpcddp.launch.request import processes_per_node

    if load_profile(name, HERE).status == "retired":
        return
    overrides = (*RESOURCES, *TYPED.get(name, ()))
    request = resolve_request(Request(cluster=name, overrides=overrides), HERE)
    processes = processes_per_node(request.config, request.profile)
    assert limit_warnings(request.config.resources, request.profile, processes) == ()


@pytest.mark.parametrize("name", [name for name in NAMES if load_profile(name, {}).test_queue])
def test_one_node_of_the_queue_of_tests_can_be_had_for_the_time_that_its_profile_asks(name):
    overrides = (*RESOURCES, *TYPED.get(name, ()))
    request = resolve_request(Request(cluster=name, overrides=overrides, is_test=True), HERE)
    assert request.config.resources.queue == request.profile.test_queue


def test_the_families_are_there():
    families = {name for name in list_profiles(HERE) if load_profile(name, HERE).status == "family"}
    assert families == {*NO_SHAPE, "slingshot-nvidia"}


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.glob("*.sbatch"):
        old.unlink()
    for case in CASES:
        golden(*case).write_text(rendered(*case), encoding="utf-8")
    sys.stderr.write(f"{len(CASES)} scripts in {GOLDEN}\n")
