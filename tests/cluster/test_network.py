"""Which interfaces, adapters and address a process uses: all cases of the table; the readers."""

import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from hpcddp.cluster import adapters, interfaces, names, network
from hpcddp.cluster.drift import compare_node
from hpcddp.cluster.interfaces import Host, Interface, Route
from hpcddp.cluster.layout import layout_from_environ
from hpcddp.cluster.profile import parse_profile
from hpcddp.config.layout import ProcessLayout
from hpcddp.errors import HpcddpError

TABLE = yaml.safe_load(
    (Path(__file__).parents[1] / "cases" / "networks.yaml").read_text(encoding="utf-8")
)
VARIABLES = {"rule": "HPCDDP_INTERFACE", "suffix": "HPCDDP_HOST_SUFFIX"}


def picture(name, host_name):
    """The host of the table as the reader would have seen it."""
    known = dict(TABLE["hosts"][name])
    routes = tuple(Route(to, network) for network, to in known.pop("routes").items())
    nccl_conf = frozenset(known.pop("nccl_conf", ()))
    seen = [
        Interface(
            key,
            tuple(facts.get("addresses", ())),
            is_up=facts.get("up", True),
            kind=facts.get("kind", "ethernet"),
            speed_mbit_per_s=facts.get("speed"),
        )
        for key, facts in known.items()
    ]
    return Host(host_name, tuple(seen), routes, nccl_conf)


def settle(case):
    rank, nodes = case.get("rank", 1), case.get("nodes", 2)
    hosts = ("gpu-01", "gpu-02")[:nodes]
    suffix = case.get("suffix", "") if case.get("launcher", "slurm") == "slurm" else ""
    layout = ProcessLayout(
        global_rank=rank,
        world_size=2,
        node_rank=rank,
        num_nodes=nodes,
        hosts=hosts,
        master_addr=case.get("master_addr", f"gpu-01{suffix}"),
        launcher=case.get("launcher", "slurm"),
        device_index=0 if case.get("gpu") else None,
    )
    environ = {VARIABLES[key]: case[key] for key in VARIABLES if key in case}
    known = {name: tuple(found) for name, found in case.get("names", {}).items()}
    return network.settle_network(
        layout,
        environ | case.get("environ", {}),
        uses_gloo=case.get("uses_gloo", True),
        read=lambda _: picture(case["host"], hosts[min(rank, nodes - 1)]),
        resolve=lambda name: (name,) if name[0].isdigit() else known.get(name, ()),
    )


@pytest.fixture(autouse=True)
def no_patience(monkeypatch):
    """Names that do not resolve are not asked for again."""
    monkeypatch.setattr(names, "_PAUSE_S", 0.0)
    monkeypatch.setattr(names, "monotonic", iter(range(0, 10**6, 100)).__next__)


@pytest.mark.parametrize("name", TABLE["cases"])
def test_what_is_chosen_on_a_host(name):
    case = TABLE["cases"][name]
    if "error" in case:
        with pytest.raises(HpcddpError) as caught:
            settle(case)
        assert caught.value.code == case["error"]
        said = caught.value.message
    else:
        settled = settle(case)
        assert settled.variables.get("GLOO_SOCKET_IFNAME") == case["gloo"]
        assert settled.variables.get("NCCL_SOCKET_IFNAME") == case["nccl"]
        assert settled.master_addr == case.get("master", settled.master_addr)
        assert settled.reasons
        said = "".join(f"{line}\n" for line in settled.reasons)
    assert [part for part in case.get("says", ()) if part not in said] == [], said


PATTERNS = TABLE["patterns"]


@pytest.mark.parametrize("case", PATTERNS["nccl"].values(), ids=PATTERNS["nccl"])
def test_what_nccl_selects_by_a_pattern(case):
    found = [name for name in PATTERNS["interfaces"] if network.nccl_fits(case["value"], [name])]
    assert found == case["selects"]
    assert network.nccl_fits(case["value"], PATTERNS["interfaces"]) == bool(found)


@pytest.mark.parametrize("case", PATTERNS["gloo"].values(), ids=PATTERNS["gloo"])
def test_what_gloo_would_not_find(case):
    assert network.gloo_missing(case["value"], PATTERNS["interfaces"]) == case["missing"]


def test_a_process_by_itself_looks_at_nothing():
    def unwanted(*_):
        raise AssertionError

    settled = network.settle_network(ProcessLayout(), {}, read=unwanted, resolve=unwanted)
    assert settled == network.Network("127.0.0.1")


def test_only_exact_names_and_whole_words_go_to_gloo_and_only_usable_ones_to_anybody():
    for case in TABLE["cases"].values():
        if case.get("gloo") and case.get("nodes", 2) > 1 and case.get("launcher") != "local":
            chosen = settle(case).variables["GLOO_SOCKET_IFNAME"].split(",")
            assert all(picture(case["host"], "x").named(name).is_usable for name in chosen)


# The readers.

ROUTE = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth1\t00800A0A\t00000000\t0001\t0\t0\t7\t00C0FFFF\t0\t0\t0
*\t0000FEA9\t00000000\t0200\t0\t0\t0\t0000FFFF\t0\t0\t0
"""
IPV6_ROUTE = (
    "fd010000000000000000000000000000 40 00000000000000000000000000000000 00 "
    "00000000000000000000000000000000 00000400 00000001 00000000 00000001     eth1\n"
    "00000000000000000000000000000000 00 00000000000000000000000000000000 00 "
    "00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo\n"
)


@pytest.mark.skipif(sys.byteorder != "little", reason="the sample is in the byte order of x86-64")
def test_the_kernels_tables_are_read(tmp_path):
    (tmp_path / "route").write_text(ROUTE)
    (tmp_path / "ipv6_route").write_text(IPV6_ROUTE)
    assert list(interfaces.read_routes(tmp_path)) == [
        Route("eth0", "0.0.0.0/0", 100),
        Route("eth1", "10.10.128.0/18", 7),
        Route("eth1", "fd01::/64", 1024),
    ]


def test_without_tables_there_are_no_routes(tmp_path):
    assert list(interfaces.read_routes(tmp_path / "nowhere")) == []


def test_of_two_routes_as_long_the_one_with_the_least_metric_counts():
    seen = (Interface("a", ("10.0.0.2",)), Interface("b", ("10.0.0.3",)))
    routes = (Route("a", "10.0.0.0/24", 200), Route("b", "10.0.0.0/24", 100))
    assert Host("h", seen, routes).towards("10.0.0.9").name == "b"


def test_this_host_is_seen_as_it_is():
    host = interfaces.read_host({})
    loopback = host.named("lo")
    assert "127.0.0.1" in loopback.addresses
    assert loopback.kind == "loopback"
    assert loopback not in host.usable
    assert {each.name for each in host.interfaces} == set(psutil.net_if_addrs())


def test_a_kind_is_what_sysfs_says(tmp_path):
    for name in psutil.net_if_addrs():
        (tmp_path / "class/net" / name).mkdir(parents=True)
        (tmp_path / "class/net" / name / "type").write_text("32\n")
    assert {each.kind for each in interfaces.read_host({}, sys_root=tmp_path).interfaces} == {
        "infiniband"
    }


def test_names_are_asked_for_again_until_one_resolves():
    answers = iter([(), (), (), ("10.0.0.1",)])
    asked = []

    def resolve(name):
        asked.append(name)
        return next(answers)

    found = names.first_that_resolves(("n-ib", "n"), resolve, patience_s=10**6)
    assert found == ("n", ("10.0.0.1",))
    assert asked == ["n-ib", "n", "n-ib", "n"]


def test_a_resolver_gives_addresses_or_nothing():
    assert "127.0.0.1" in names.resolve_name("localhost")
    assert names.resolve_name("10.0.0.1") == ("10.0.0.1",)
    assert names.resolve_name("no such name") == ()
    assert names.resolve_name("x" * 300) == ()


# Adapters, in a made-up /sys.

ADAPTERS = {  # name: place, NUMA node, link layer, state
    "mlx5_0": ("pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0", 0, "InfiniBand", "4: ACTIVE"),
    "mlx5_1": ("pci0000:20/0000:20:01.0/0000:21:00.0/0000:22:00.0", 0, "InfiniBand", "4: ACTIVE"),
    "mlx5_2": ("pci0000:80/0000:80:01.0/0000:81:00.0", 1, "InfiniBand", "1: DOWN"),
    "mlx5_3": ("pci0000:90/0000:90:01.0/0000:91:00.0", 1, "Ethernet", "4: ACTIVE"),
}
GPUS = (
    ("pci0000:10/0000:10:01.0/0000:11:00.0/0000:13:00.0", 0),
    ("pci0000:20/0000:20:01.0/0000:21:00.0/0000:23:00.0", 0),
    ("pci0000:a0/0000:a0:01.0/0000:a1:00.0", 1),
)


def device(root, place, numa_node):
    folder = root / "devices" / place
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(f"{numa_node}\n")
    return folder


@pytest.fixture
def sysfs(tmp_path):
    for name, (place, numa_node, link_layer, state) in ADAPTERS.items():
        port = tmp_path / "class/infiniband" / name / "ports/1"
        port.mkdir(parents=True)
        (port / "link_layer").write_text(f"{link_layer}\n")
        (port / "state").write_text(f"{state}\n")
        (port.parents[1] / "device").symlink_to(device(tmp_path, place, numa_node))
    driver = tmp_path / "bus/pci/drivers/nvidia"
    driver.mkdir(parents=True)
    for place, numa_node in GPUS:
        (driver / place.rpartition("/")[2]).symlink_to(device(tmp_path, place, numa_node))
    (driver / "bind").touch()
    return adapters.read_adapters(tmp_path)


def chosen(found, rule, device_index=0, **environ):
    layout = ProcessLayout(device_index=device_index)
    return adapters.choose_adapters(rule, found, layout, environ, "gpu-02")


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("infiniband", "=mlx5_0:1,mlx5_1:1"),
        ("ethernet", "=mlx5_3:1"),
        ("mlx5_1", "=mlx5_1:1"),
        ("mlx5_[13]", "=mlx5_1:1,mlx5_3:1"),
        ("^mlx5_0,ethernet", "=mlx5_1:1"),
    ],
)
def test_active_adapters_that_fit_are_taken(sysfs, rule, value):
    assert chosen(sysfs, rule) == (value, f"HPCDDP_HCA={rule}")


@pytest.mark.parametrize(
    ("device_index", "environ", "value"),
    [
        (0, {}, "=mlx5_0:1"),
        (1, {}, "=mlx5_1:1"),
        (2, {}, "=mlx5_3:1"),  # the one below another bridge, but of the same processor
        (0, {"CUDA_VISIBLE_DEVICES": "1,0"}, "=mlx5_1:1"),
        (1, {"CUDA_VISIBLE_DEVICES": "1,0", "SLURM_STEP_GPUS": "0,1"}, "=mlx5_0:1"),
        # Where control groups hide the others, CUDA counts the granted ones from 0.
        (0, {"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": "1"}, "=mlx5_1:1"),
        (0, {"SLURM_STEP_GPUS": "1,2"}, "=mlx5_1:1"),
    ],
)
def test_the_nearest_adapter_is_that_of_the_processes_gpu(sysfs, device_index, environ, value):
    assert chosen(sysfs, "nearest", device_index, **environ)[0] == value


@pytest.mark.parametrize(
    ("device_index", "environ"),
    [
        (None, {}),
        (5, {}),
        (0, {"CUDA_VISIBLE_DEVICES": "GPU-0123"}),
        (0, {"CUDA_VISIBLE_DEVICES": "MIG-0123", "SLURM_STEP_GPUS": "0"}),
    ],
)
def test_what_sysfs_does_not_tell_is_left_to_nccl(sysfs, device_index, environ):
    value, why = chosen(sysfs, "nearest", device_index, **environ)
    assert (value, "does not tell" in why) == ("", True)


def test_an_adapter_that_is_not_there_is_an_error_that_lists_what_is(sysfs):
    with pytest.raises(HpcddpError) as caught:
        chosen(sysfs, "mlx5_2")
    for part in ("HPCDDP_HCA=mlx5_2", "gpu-02", "mlx5_2:1 (infiniband, down)", "`hca`"):
        assert part in caught.value.message


def test_without_adapters_a_rule_is_an_error(tmp_path):
    with pytest.raises(HpcddpError, match="no adapter"):
        chosen(adapters.read_adapters(tmp_path), "infiniband")


def test_the_rule_reaches_nccl_unless_its_variable_is_exported(sysfs):
    case = {"host": "plain", "names": {"gpu-01": ["10.0.0.1"]}}
    layout = ProcessLayout(1, 2, node_rank=1, num_nodes=2, hosts=("a", "b"), master_addr="10.0.0.1")
    for exported, expected in (({}, "=mlx5_3:1"), ({"NCCL_IB_HCA": "mlx5"}, None)):
        settled = network.settle_network(
            layout,
            {"HPCDDP_HCA": "ethernet", **exported},
            read=lambda _: picture(case["host"], "b"),
            resolve=lambda name: (name,),
            adapters=lambda: sysfs,
        )
        assert settled.variables.get("NCCL_IB_HCA") == expected
        assert any(line.startswith("NCCL_IB_HCA=") for line in settled.reasons)


def test_ten_thousand_nodes_find_layout_and_network_in_fifty_milliseconds_of_cpu():
    environ = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "gpu-[00001-10000]",
        "SLURM_JOB_NODELIST": "gpu-[00001-10000]",
        "SLURM_STEP_TASKS_PER_NODE": "8(x10000)",
        "SLURM_STEP_NUM_TASKS": "80000",
        "SLURM_PROCID": "79999",
        "SLURM_NODEID": "9999",
        "SLURM_LOCALID": "7",
        "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
        "HPCDDP_INTERFACE": "^docker0",
    }

    def seconds():
        start = time.process_time()
        layout = layout_from_environ(environ)
        network.settle_network(layout, environ, resolve=lambda name: ("10.0.0.1",))
        return time.process_time() - start

    best_s = min(seconds() for _ in range(7))
    assert layout_from_environ(environ).world_size == 80_000
    assert best_s < 0.050, f"{best_s * 1000:.1f} ms"


def checked(rule, kind):
    """What `cluster check --job` finds on a node with one interface of this kind."""
    values = {"description": "d", "interface": {"value": rule, "why": "w"}}
    profile = parse_profile(Path("p.yaml"), values)
    seen = {"ib0": {"addresses": ["10.1.0.2"], "kind": kind}, "docker0": {"addresses": ["1.2.3.4"]}}
    return compare_node(profile, {"host": "gpu-02", "interfaces": seen}, "")


@pytest.mark.parametrize(("kind", "level"), [("infiniband", "ok"), ("ethernet", "drift")])
def test_cluster_check_reads_a_rule_as_the_processes_do(kind, level):
    [finding] = checked("all:infiniband,x*", kind)
    assert (finding.what, finding.level) == ("node gpu-02: interface", level)


def test_cluster_check_cannot_contradict_a_rule_with_a_fallback():
    assert checked("infiniband,default-route", "ethernet") == ()


def test_what_nccl_reads_of_a_file_is_known(tmp_path):
    (tmp_path / "nccl.conf").write_bytes(
        "# Zürich\nNCCL_SOCKET_IFNAME=eth0\nNCCL_IB_HCA = =mlx5_0\n".encode("latin-1")
    )
    own = tmp_path / "own.conf"
    own.write_text("NCCL_DEBUG=WARN\nno line\n")
    environ = {"NCCL_CONF_FILE": str(own)}
    found = interfaces.read_nccl_conf(environ, tmp_path)
    assert found == {"NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_DEBUG"}
    assert interfaces.read_nccl_conf(environ, tmp_path / "none") == {"NCCL_DEBUG"}
