"""Facts about hosts, read from made-up files, networks and libraries."""

import os
from pathlib import Path

import pytest

from hpcddp.cluster import filesystems
from hpcddp.cluster.filesystems import Mount, existing_part, mount_of, sharing_warning
from hpcddp.cluster.interfaces import Host, Interface, Route
from hpcddp.config.layout import ProcessLayout
from hpcddp.config.yaml_text import load_yaml_mapping
from hpcddp.doctor.counters import Counters, read_counters
from hpcddp.doctor.host_facts import (
    host_name,
    interface_facts,
    name_facts,
    read_data,
    resolve_all,
    way_facts,
    with_node_facts,
)
from hpcddp.doctor.login_facts import read_login_facts
from hpcddp.doctor.quota import parse_quota, read_quota

TABLE = load_yaml_mapping(Path(__file__).parents[1] / "cases" / "doctor_cases.yaml")


@pytest.mark.parametrize("case", TABLE["mounts"]["cases"], ids=lambda case: case["path"])
def test_the_file_system_of_a_path_is_told_from_the_list_of_mounts(case, tmp_path, monkeypatch):
    monkeypatch.setattr(filesystems, "existing_part", lambda path: path)
    mounts = tmp_path / "mountinfo"
    mounts.write_text(TABLE["mounts"]["text"])
    mount = mount_of(Path(case["path"]), mounts)
    assert (mount.kind, mount.reach) == (case["kind"], case["reach"])


def test_a_folder_that_does_not_exist_yet_is_on_the_file_system_of_the_one_above(tmp_path):
    assert existing_part(tmp_path / "a" / "b") == tmp_path.resolve()
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / {tmp_path} rw - nfs4 n:/ rw\n")
    assert mount_of(tmp_path / "a" / "b", mounts).kind == "nfs4"


def test_a_folder_that_is_closed_to_us_is_on_the_file_system_of_the_one_above(
    tmp_path, monkeypatch
):
    real = os.stat

    def refuse(path, **more):
        if str(path).startswith(f"{tmp_path}/closed/"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **more)

    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "stat", refuse)
    assert existing_part(tmp_path / "closed" / "runs") == tmp_path / "closed"


def test_a_link_leads_to_the_file_system_it_points_to(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        f"1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / {tmp_path}/real rw - lustre fs rw\n"
    )
    assert mount_of(tmp_path / "link" / "runs", mounts).kind == "lustre"
    assert mount_of(tmp_path, tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("mount", "said"),
    [
        (Mount("/s", "nfs4", "nas:/s"), None),
        (Mount("/", "ext4", "/dev/sda1"), "a disk of this host"),
        (Mount("/", "tmpfs", "tmpfs"), "memory of this host"),
        (Mount("/", "odd", "x"), "whether it is shared is not known"),
        (None, "unknown kind"),
    ],
)
def test_submit_warns_where_nodes_may_not_see_the_runs(mount, said):
    sentence = sharing_warning(Path("/x/runs"), mount)
    if said is None:
        assert sentence is None
    else:
        assert said in sentence
        assert "doctor --nodes 2" in sentence


@pytest.mark.parametrize("case", TABLE["quotas"], ids=lambda case: case["id"])
def test_what_is_used_of_a_quota_is_read(case):
    assert parse_quota(case["text"], case["point"]) == case["found"]


def test_lustre_is_asked_with_its_own_command():
    asked = []
    assert read_quota(Mount("/s", "lustre"), "me", lambda words: asked.append(words) or "") is None
    assert asked == [["lfs", "quota", "-q", "-u", "me", "/s"]]
    assert read_quota(None, "me", pytest.fail) is None


def test_who_is_over_a_limit_is_told_although_the_command_fails(tmp_path, monkeypatch):
    quota = tmp_path / "quota"
    quota.write_text("#!/bin/sh\necho 'nas:/home /home 95* 80 100 6days 1 0 0 0'\nexit 1\n")
    quota.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    [space, _] = read_quota(Mount("/home", "nfs4"), "me")
    assert space["is_marked"]
    monkeypatch.setenv("PATH", "/nowhere")
    assert read_quota(Mount("/home", "nfs4"), "me") is None


def sysfs(folder, eth0, ib):
    for path, count in (
        ("class/net/eth0/statistics/tx_bytes", eth0),
        ("class/net/lo/statistics/tx_bytes", 99),
        ("class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", ib),
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(f"{count}\n")
    return read_counters(folder)


def test_counters_of_interfaces_and_adapters_tell_what_was_sent_over_which(tmp_path):
    before = sysfs(tmp_path, eth0=1000, ib=50)
    after = sysfs(tmp_path, eth0=5000, ib=50)
    assert after.since(before) == Counters({"eth0": 4000}, {}, {"mlx5_0:1": 0})
    words = sysfs(tmp_path, eth0=5000, ib=60)  # of four bytes
    assert words.since(after) == Counters({"eth0": 0}, {}, {"mlx5_0:1": 40})
    assert read_counters(tmp_path / "nothing") == Counters()
    assert sysfs(tmp_path, eth0=10, ib=60).since(words).interfaces == {"eth0": 0}  # began anew


def test_what_goes_over_ipoib_is_told_apart_and_efa_counts_bytes(tmp_path):
    for path, text in (
        ("class/net/ib0/type", "32"),
        ("class/net/ib0/statistics/tx_bytes", "700"),
        ("class/net/eth0/type", "1"),
        ("class/net/eth0/statistics/tx_bytes", "30"),
        ("class/infiniband/efa_0/ports/1/hw_counters/tx_bytes", "500"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")
    now = read_counters(tmp_path)
    assert now == Counters({"eth0": 30}, {"ib0": 700}, {"efa_0:1": 500})
    assert now.since(now).over_infiniband == {"ib0": 0}


def test_cards_of_slingshot_are_named_beside_what_their_interfaces_send(tmp_path):
    (tmp_path / "class/cxi/cxi1").mkdir(parents=True)
    (tmp_path / "class/cxi/cxi0").mkdir()
    (tmp_path / "class/net/hsn0/statistics").mkdir(parents=True)
    (tmp_path / "class/net/hsn0/statistics/tx_bytes").write_text("700\n")
    now = read_counters(tmp_path)
    assert now == Counters({"hsn0": 700}, slingshot=("cxi0", "cxi1"))
    assert now.since(now).slingshot == ("cxi0", "cxi1")


def test_nodes_are_asked_for_by_the_names_that_training_tries():
    known = {"a-ib": ("10.1.0.1",), "b": ("10.0.0.2",)}
    environ = {"HPCDDP_HOST_SUFFIX": "-ib"}
    found = resolve_all(["a", "b"], environ, lambda name: known.get(name, ()))
    assert found == {"a": ["10.1.0.1"], "b": ["10.0.0.2"]}


def test_a_name_without_an_address_is_asked_for_again():
    answers = {"a": [("10.0.0.1",)], "b": [(), (), ("10.0.0.2",)]}
    found = resolve_all(["a", "b"], {}, lambda name: answers[name].pop(0), patience_s=60)
    assert found == {"a": ["10.0.0.1"], "b": ["10.0.0.2"]}
    assert resolve_all(["c"], {}, lambda name: (), patience_s=0.01) == {"c": []}
    assert resolve_all(["a"], {}, lambda name: (), patience_s=0) == {"a": None}


def test_there_are_two_ways_to_rank_0_only_in_its_own_subnet():
    seen = (Interface("eth0", ("10.0.0.2",)), Interface("eth1", ("10.0.0.3",)), Interface("ib0"))
    near, wide, all_others = "10.0.0.0/24", "10.8.0.0/16", "0.0.0.0/0"
    routes = (
        *(Route("eth0", near, 200), Route("eth1", near, 100)),
        *(Route("eth0", wide), Route("ib0", wide)),  # as by two routers
        *(Route("eth1", all_others, 200), Route("eth0", all_others, 100)),
    )
    host = Host("h", seen, routes)
    assert way_facts(host, ["10.0.0.9"]) == {"is_here": False, "over": ["eth1", "eth0"]}
    assert way_facts(host, ["10.8.9.9"])["over"] == ["eth0"]
    assert way_facts(host, ["::9", "10.9.9.9"])["over"] == ["eth0"]


def test_a_way_that_nobody_knows_is_not_this_host():
    host = Host("h", (Interface("eth0", ("10.0.0.2",)),))
    unknown = {"is_here": False, "over": []}
    assert way_facts(host, []) == way_facts(host, ["::9"]) == unknown
    assert way_facts(host, ["10.0.0.2"]) == way_facts(host, ["127.0.1.1"])
    assert way_facts(host, ["10.0.0.2"])["is_here"]


def test_the_chosen_interface_is_told_with_a_faster_one():
    slow = Interface("eth0", ("10.0.0.1",), speed_mbit_per_s=1000)
    fast = Interface("ib0", ("10.1.0.1",), kind="infiniband", speed_mbit_per_s=100_000)
    host = Host("n", (slow, fast))
    facts = interface_facts(host, {"GLOO_SOCKET_IFNAME": "eth0"})
    assert (facts["name"], facts["speed_mbit_per_s"], facts["faster_name"]) == ("eth0", 1000, "ib0")
    assert interface_facts(host, {"GLOO_SOCKET_IFNAME": "ib0"})["faster"] == ""
    found = interface_facts(host, {})
    assert found["name"] == ""
    assert "ib0 (up, 100000 Mbit/s" in found["there"]


def test_files_of_the_data_are_opened_and_a_missing_folder_is_told(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    for number in range(3):
        (tmp_path / "a" / "b" / f"{number}.jpg").write_bytes(b"x")
    found = read_data(tmp_path)
    assert found["files"] == 3
    assert found["open_s"] > 0
    assert read_data(tmp_path / "a" / "b" / "0.jpg")["files"] == 1
    (tmp_path / "empty").mkdir()
    assert read_data(tmp_path / "empty") == {
        "path": str(tmp_path / "empty"), "files": 0, "open_s": None,
    }  # fmt: skip
    assert "No such file" in read_data(tmp_path / "nothing")["error"]


def test_every_process_has_what_the_first_one_of_its_node_has_read():
    processes = [{"host": host, "versions": {"torch": "2.14"}} for host in ("n1", "n1", "n2")]
    nodes = [{"driver": "570.1", "rdma": ["mlx5_0"]}, None, {"driver": "", "rdma": []}]
    first, second, third = with_node_facts(processes, nodes)
    assert first == second
    assert second["versions"] == {"torch": "2.14", "driver": "570.1"}
    assert second["rdma"] == ["mlx5_0"]
    assert (third["versions"], third["rdma"]) == ({"torch": "2.14"}, [])


def test_a_node_tells_of_the_names_that_are_odd_and_no_more():
    found = {"me": ["127.0.1.1"], "a": ["10.0.0.1"], "b": [], "c": ["127.0.0.1", "::1"], "d": None}
    assert name_facts(found, "me") == {
        "others": 4, "unasked": 1, "num_odd": 2, "missing": ["b"], "own": ["c"],
    }  # fmt: skip
    many = [f"n{number}" for number in range(10_000)]
    told = name_facts({name: [] for name in many}, "n1")
    assert (told["num_odd"], len(told["missing"])) == (9_999, 8)
    assert len(str(name_facts({name: ["10.0.0.1"] for name in many}, "n1"))) < 100


def test_emulated_nodes_keep_their_names():
    layout = ProcessLayout(node_rank=1, hosts=("node0", "node1"), launcher="local")
    assert host_name(layout) == "node1"


def test_a_login_node_without_slurm_is_described_and_no_secret_is_told(tmp_path):
    environ = {
        "PATH": str(tmp_path), "HOME": str(tmp_path), "HF_TOKEN": "hush", "SLURM_JWT": "x",
        "NCCL_IB_DISABLE": "1", "HF_HOME": "/dev/null/x",
    }  # fmt: skip
    before = os.umask(0o027)
    try:
        facts = read_login_facts(environ, "generic", tmp_path / "runs", lambda words: "")
        assert os.umask(0o027) == 0o027  # reading the mask leaves it alone
    finally:
        os.umask(before)
    assert facts["umask"] == 0o027
    assert facts["secrets"] == ["HF_TOKEN"]
    assert "hush" not in str(facts)
    assert facts["commands"]["sbatch"] is None
    assert facts["slurm_version"] == ""
    assert [text.split("=")[0] for text in facts["variables"]] == ["NCCL_IB_DISABLE"]
    assert not facts["caches"]["HF_HOME"]["writable"]
    assert facts["space"]["bytes"] > 0
    assert facts["profile"]["why"] == "--cluster generic"
    assert facts["runs"] == {"path": str(tmp_path / "runs"), "writable": True}
    unknown = read_login_facts(environ, "nosuchcluster", Path("/dev/null/runs"), lambda words: "")
    assert not unknown["runs"]["writable"]
    assert "nosuchcluster" in unknown["profile"]["error"]


@pytest.mark.parametrize(("machine", "other"), [("x86_64", "aarch64"), ("aarch64", "")])
def test_the_processors_of_the_nodes_are_told_beside_those_here(
    machine, other, tmp_path, monkeypatch
):
    monkeypatch.setattr("platform.machine", lambda: machine)
    environ = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    facts = read_login_facts(environ, "vista", tmp_path / "runs", lambda words: "")
    told = facts["profile"]
    assert (facts["machine"], told["arch"], told["other_arch"]) == (machine, "aarch64", other)
