"""`cluster`: what it prints for people and for programs, and its exit codes."""

import json
import os
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from hpcddp.cli.cluster import command
from hpcddp.cluster.profile_file import list_profiles
from hpcddp.errors import HpcddpError

ORDER = "export CUDA_VISIBLE_DEVICES=3,2,1,0"


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Run `cluster WORDS` in an empty folder without Slurm; returns the result."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SBATCH_", "HPCDDP_", "NCCL_", "OMP_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))

    def run(*words):
        done = CliRunner().invoke(command, words)
        if isinstance(done.exception, HpcddpError):
            raise done.exception
        return done

    return run


def document(done):
    return json.loads(done.stdout)


def test_list_has_every_profile_with_its_state(cluster):
    records = {record["name"]: record for record in document(cluster("list", "--json"))}
    assert set(records) == set(list_profiles({}))
    assert records["puhti"]["status"] == "retired"
    lines = cluster("list").stdout.splitlines()
    assert len(lines) == len(records) + 1
    assert any(line.split()[:3] == ["lumi", "production", "2026-05"] for line in lines)


@pytest.mark.parametrize("broken", ["mine", "lumi.local"])
def test_list_shows_a_profile_that_cannot_be_read_with_what_is_wrong(cluster, tmp_path, broken):
    folder = tmp_path / ".config" / "hpcddp" / "clusters"
    folder.mkdir(parents=True)
    (folder / f"{broken}.yaml").write_text("description: d\ndefualt_queue: x\n")
    name = broken.removesuffix(".local")
    done = cluster("list")
    assert done.exit_code == 0
    (line,) = [line for line in done.stdout.splitlines() if line.split()[0] == name]
    assert line.split()[1] == "broken"
    assert f"{broken}.yaml: unknown key `defualt_queue`" in line
    records = document(cluster("list", "--json"))
    assert {record["name"] for record in records} == {*list_profiles({}), name}
    assert [record["name"] for record in records if record["error"]] == [name]


def test_show_tells_queues_limits_gaps_and_sources(cluster):
    text = cluster("show", "mila").stdout
    for part in ("long*", "partition=main-grace", "notice 120 s", "left open", "docs.mila.quebec"):
        assert part in text
    assert "8 x H200 141 GB, x86_64" in cluster("show", "delta").stdout
    isambard = cluster("show", "isambard-ai").stdout
    assert "163 GB/s bus bandwidth" in isambard
    assert "4 x GH200, 288 cores, aarch64" in isambard
    frontier = cluster("show", "frontier").stdout
    assert "discouraged       torchrun: the site" in frontier
    assert "queue of tests    debug" in frontier
    assert "time_min=01:00:00 time_max=7-00:00:00 whole" in cluster("show", "trillium").stdout
    assert "$SCRATCH, emptied after 14 days" in cluster("show", "clariden").stdout
    record = document(cluster("show", "frontier", "--json"))
    assert record["queues"]["batch"]["limits"]["time_by_nodes"]["91"] == "02:00:00"
    assert record["origins"]["env.NCCL_CROSS_NIC"] == "frontier"


def test_show_leaves_out_limits_that_were_taken_away(cluster, tmp_path):
    folder = tmp_path / ".config/hpcddp/clusters"
    folder.mkdir(parents=True)
    (folder / "vista.local.yaml").write_text("queues: {gh: {limits: null}}\n")
    (gh,) = [line for line in cluster("show", "vista").stdout.splitlines() if "  gh*" in line]
    (dev,) = [line for line in cluster("show", "lonestar6").stdout.splitlines() if "  dev " in line]
    assert "nodes_max" not in gh + dev
    assert "time_max" not in gh + dev


def test_show_and_explain_take_blocks_of_which_nothing_is_said(cluster, tmp_path):
    folder = tmp_path / ".config/hpcddp/clusters"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(
        "gpu_request: none\ndefault_queue: a\nnodes: {n: {node: }}\n"
        "queues: {a: {node_type: n, defaults: }, b: {defaults: {resources: }}}\n"
    )
    lines = [line.split() for line in cluster("show", "mine").stdout.splitlines()]
    assert ["a*", "n"] in lines
    assert ["b"] in lines
    assert cluster("explain", "mine", "resources.queue=b").stdout.startswith("mine, queue b")


def warnings(answer):
    """All but the one about the age of the profile, which comes with time."""
    return [text for text in answer["warnings"] if "months ago" not in text]


def row(rows, name):
    (found,) = [row for row in rows if row["name"] == name]
    return found


def test_explain_gives_each_value_its_layer_and_reason(cluster):
    words = ("explain", "frontier", "--nodes", "2", "resources.project=p", "--json")
    answer = document(cluster(*words))
    assert (answer["queue"], answer["processes_per_node"]) == ("batch", 8)
    assert row(answer["sbatch"], "--nodes")["layer"] == "command line"
    assert row(answer["sbatch"], "--partition")["layer"] == "frontier: queues.batch"
    assert row(answer["sbatch"], "--account")["layer"] == "frontier: account template"
    assert "alt_read" in row(answer["sbatch"], "--network")["why"]
    net = row(answer["env"], "NCCL_NET")
    assert (net["value"], net["layer"]) == ("OFI", "frontier: variants.multi_node")
    assert row(answer["env"], "GLOO_SOCKET_IFNAME")["layer"] == "slingshot-amd"
    threads = row(answer["env"], "OMP_NUM_THREADS")
    assert (threads["value"], threads["layer"]) == ("7", "hpcddp")
    assert row(answer["launch"], "srun")["why"] == "one task per process"
    assert set(answer["documents"]) == {"frontier", "slingshot-amd"}
    assert "https://docs.olcf.ornl.gov" in answer["documents"]["frontier"][0]
    assert warnings(answer) == []


def test_explain_shows_the_other_variant_on_one_node(cluster):
    answer = document(cluster("explain", "frontier", "--json"))
    assert row(answer["env"], "NCCL_NET")["value"] == "Socket"


def test_explain_shows_what_the_user_s_environment_and_words_change(cluster, monkeypatch):
    monkeypatch.setenv("NCCL_CROSS_NIC", "0")
    monkeypatch.setenv("NCCL_IB_DISABLE", "1")
    monkeypatch.setenv("HPCDDP_INTERFACE_OF_NOBODY", "1")
    words = ["resources.sbatch.network=null", "resources.sbatch.comment=hi", "resources.time=30"]
    answer = document(cluster("explain", "frontier", "--nodes", "2", *words, "--json"))
    nic = row(answer["env"], "NCCL_CROSS_NIC")
    assert (nic["value"], nic["layer"]) == ("0", "your environment")
    assert "wins over 1 of frontier" in nic["why"]
    assert row(answer["env"], "NCCL_IB_DISABLE")["layer"] == "your environment"
    assert "HPCDDP_INTERFACE_OF_NOBODY" not in {part["name"] for part in answer["env"]}
    assert row(answer["env"], "FI_CXI_RDZV_PROTO")["value"] == "(not set)"
    assert row(answer["sbatch"], "--comment")["layer"] == "command line"
    assert row(answer["sbatch"], "--time")["layer"] == "command line"
    said = " ".join(answer["warnings"])
    for part in ("wants an account", "needs --network=disable_rdzv_get", "NCCL_IB_DISABLE=1"):
        assert part in said


def test_explain_tells_what_starts_the_processes_and_no_option_of_what_does_not(cluster):
    vista = document(cluster("explain", "vista", "--json"))
    assert vista["srun"] == []
    assert vista["launch"][0]["name"].startswith("mpirun --map-by ppr:1:node")
    assert "torchrun" in vista["launch"][0]["why"]
    words = ("resources.container=img.sif", "resources.launch=srun", "--json")
    inside = document(cluster("explain", "isambard-ai", *words))
    assert "apptainer exec --nv" in inside["launch"][1]["name"]
    assert "apptainer-multi-node" in str(inside["setup"])
    gpus = row(document(cluster("explain", "perlmutter", "--json"))["setup"], ORDER)
    assert "GPUs are numbered against the cores" in gpus["why"]


def test_explain_says_that_a_rule_of_the_user_s_wins_over_names_of_the_profile(
    cluster, monkeypatch
):
    monkeypatch.setenv("HPCDDP_INTERFACE", "eth0")
    answer = document(cluster("explain", "frontier", "--json"))
    gloo = row(answer["env"], "GLOO_SOCKET_IFNAME")
    assert gloo["value"] == "(not set)"
    assert "your HPCDDP_INTERFACE decides" in gloo["why"]


@pytest.mark.parametrize("name", ["perlmutter", "frontier", "kempner"])
def test_loading_and_explaining_a_profile_takes_less_than_three_tenths_of_a_second(cluster, name):
    def seconds():
        start = time.process_time()
        assert cluster("explain", name, "--nodes", "2").exit_code == 0
        return time.process_time() - start

    assert min(seconds() for _ in range(3)) < 0.3


def test_explain_refuses_an_unknown_name_with_the_nearest_one(cluster):
    with pytest.raises(HpcddpError, match="Did you mean `frontier`"):
        cluster("explain", "fronteer")


def test_detect_says_which_and_why_or_what_to_type(cluster, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = cluster("detect")
    assert done.exit_code == 1
    assert "no Slurm here: type this on a login node" in done.stdout
    (tmp_path / "scontrol").touch(0o755)
    assert "detect --write" in cluster("detect").stdout
    monkeypatch.setenv("CC_CLUSTER", "narval")
    assert cluster("detect").stdout == "narval: CC_CLUSTER=narval\n"
    (match,) = document(cluster("detect", "--json"))["matches"]
    assert match == {"name": "narval", "reason": "CC_CLUSTER=narval"}


@pytest.mark.parametrize("name", ["../x", "a/b", ".x", "", "a b", "auto", "mine.local"])
def test_detect_writes_no_profile_that_nobody_could_name(cluster, name):
    with pytest.raises(HpcddpError, match="becomes the file clusters/NAME"):
        cluster("detect", "--write", "--name", name)


@pytest.mark.parametrize("words", [("check", "lumi"), ("detect", "--write")])
def test_without_slurm_there_is_nothing_to_compare_or_to_write(cluster, words, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(HpcddpError, match="run this on a login node"):
        cluster(*words)


@pytest.mark.parametrize("name", sorted(list_profiles({})))
def test_every_profile_can_be_shown_and_explained(cluster, name):
    assert cluster("show", name).exit_code == 0
    words = () if name in ("generic-cpu", "local", "testcluster") else ("--gpus-per-node", "1")
    done = cluster("explain", name, "--nodes", "2", *words, "--json")
    assert done.exit_code == 0, done.exception
    answer = document(done)
    rows = [row for key in ("sbatch", "srun", "launch", "env") for row in answer[key]]
    assert [row["name"] for row in rows if not (row["why"] and row["layer"])] == []
    assert cluster("explain", name, "--nodes", "2", *words).stdout


def test_explaining_loads_no_torch_and_no_template_engine(tmp_path):
    probe = (
        "import sys; from hpcddp.cli import main\n"
        "sys.argv = ['hpcddp', 'cluster', 'explain', 'frontier', '--nodes', '2']\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert not {'torch', 'numpy', 'submitit', 'jinja2'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_work_of_one_explanation_does_not_grow_with_the_number_of_profiles(cluster, monkeypatch):
    from hpcddp.cluster import profile_file

    read = []
    load = profile_file.load_yaml_mapping
    monkeypatch.setattr(
        profile_file, "load_yaml_mapping", lambda path: read.append(path) or load(path)
    )
    cluster("explain", "frontier", "--nodes", "2")
    assert {path.stem for path in read} == {"frontier", "slingshot-amd"}


def test_explain_tells_how_nodes_are_taken_away_and_how_old_that_is(cluster):
    answer = document(cluster("explain", "mila", "resources.queue=long_grace", "--json"))
    assert answer["preemption"].startswith("preemptible, notice 120 s: SIGTERM")
    assert warnings(answer) == []
    old = document(cluster("explain", "della", "--json"))
    assert "months ago (2025-03)" in old["warnings"][0]
