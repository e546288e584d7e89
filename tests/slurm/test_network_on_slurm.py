"""Which link the data of a job takes on real nodes, counted by the kernel on each of them.

Every node has eth0, a docker0 with the same address everywhere, and here also eth1: another link,
up, with an address, and slow.
"""

import json
import sys

import pytest
from hpcddp_user import SMALLEST

MIB = 1 << 20
SLOW = "10.99.0"  # inside the nodes' namespaces only
PROGRAM = """
import json, os, pathlib, sys, time
import torch
import torch.distributed as dist

def sent_bytes():
    links = pathlib.Path("/sys/class/net").iterdir()
    return {link.name: int((link / "statistics/tx_bytes").read_text()) for link in links}

dist.init_process_group("gloo")
rank, before = dist.get_rank(), sent_bytes()
for _ in range(4):
    dist.all_reduce(torch.ones(1 << 20))
sent = {name: count - before[name] for name, count in sent_bytes().items()}
place = pathlib.Path(sys.argv[1])
(place / f".{rank}").write_text(json.dumps(sent))
os.replace(place / f".{rank}", place / f"sent-{rank}.json")
while len(list(place.glob("sent-*.json"))) < 2:  # who leaves first would cut the other off
    time.sleep(0.1)
os._exit(0)
"""


@pytest.fixture(scope="module")
def slow_link(cluster):
    """A second network between the nodes, 200 Mbit/s each way, with names of its own."""
    lines = ["link add slow type bridge", "link set slow up"]
    for number, node in enumerate(cluster.nodes, start=1):
        pid = cluster.record["hosts"][node]["process"]["pid"]
        lines += [
            f"link add slow-{number} type veth peer name eth1 netns {pid}",
            f"link set slow-{number} master slow up",
        ]
    ip(cluster, "login", lines)
    for number, node in enumerate(cluster.nodes, start=1):
        ip(cluster, node, [f"address add {SLOW}.{number}/24 dev eth1", "link set eth1 up"])
        shape = "rate 200mbit burst 128kb latency 50ms"
        done = cluster.node_exec(node, f"tc qdisc add dev eth1 root tbf {shape}".split())
        assert done.returncode == 0, done.stderr
    hosts = cluster.state_dir / "etc" / "hosts"
    before = hosts.read_text()
    names = [f"{SLOW}.{at} {node}-slow" for at, node in enumerate(cluster.nodes, start=1)]
    hosts.write_text("\n".join([before, *names, ""]))  # in place: the nodes have it mounted
    yield
    hosts.write_text(before)
    ports = [f"link delete slow-{number}" for number in range(1, len(cluster.nodes) + 1)]
    ip(cluster, "login", [*ports, "link delete slow"])


def ip(cluster, node, lines):
    done = cluster.node_exec(node, ["ip", "-batch", "-"], input="\n".join(lines))
    assert done.returncode == 0, done.stderr


@pytest.fixture
def submit(hpcddp, cluster, tmp_path):
    """Return a function that runs the program on a profile of the test's own; its last status."""
    folder = tmp_path / "configs" / "clusters"
    folder.mkdir(parents=True)
    (tmp_path / "program.py").write_text(PROGRAM)

    def submit(profile="", state="finished", words=(), training=False, **exported):
        text = f"description: d\nextends: [testcluster]\n{profile}\n"
        (folder / "mine.yaml").write_text(text)
        env = {"HPCDDP_CONFIG_PATH": str(tmp_path / "configs"), **exported}
        hpcddp.env = hpcddp.env | env
        options = ["--name", "r", "--cluster", "mine", "--nodes", "2", *words]
        command = ["--", sys.executable, str(tmp_path / "program.py"), str(tmp_path)]
        done = hpcddp("submit", *options, *([] if training else command))
        assert done.returncode == 0, done.stderr
        hpcddp("wait", "r", timeout=300)
        status = hpcddp.status("r")
        assert status["state"] == state, status
        return status

    return submit


@pytest.fixture
def sent_mib(tmp_path):
    """Return a function: MiB that each node sent over each of its links, in rank order."""

    def sent_mib():
        texts = [(tmp_path / f"sent-{rank}.json").read_text() for rank in (0, 1)]
        return [{name: n / MIB for name, n in json.loads(text).items()} for text in texts]

    return sent_mib


def rule(value):
    return f'interface: {{value: "{value}", why: for this test}}'


def choices(hpcddp, host="gpu-01"):
    """What was written down of a node's choices, by its first process and no other."""
    told = {event["host"]: event["choices"] for event in hpcddp.events("r", "network")}
    assert set(told) == set(hpcddp.cluster.nodes[:2])
    return told[host]


def check_only(link, sent):
    """All 16 MiB of each rank went over this link."""
    for node in sent:
        assert node.pop(link) > 15, sent
        assert max(node.values()) < 1, sent


def test_without_a_rule_the_link_to_the_master_is_used(slow_link, hpcddp, submit, sent_mib):
    submit()
    check_only("eth0", sent_mib())
    address = hpcddp.cluster.addresses["gpu-01"]
    assert choices(hpcddp) == [
        f"MASTER_ADDR=gpu-01 ({address}): rank 0 runs there",
        "GLOO_SOCKET_IFNAME=eth0: it has the address of gpu-01, where rank 0 is",
        "NCCL_SOCKET_IFNAME==eth0: it has the address of gpu-01, where rank 0 is",
    ]
    there = f"GLOO_SOCKET_IFNAME=eth0: it leads to gpu-01 ({address})"
    assert there in choices(hpcddp, "gpu-02")
    assert f"Network: {there}" in hpcddp.run_dir("r").rank_log(0, 1).read_text()


@pytest.mark.parametrize("value", ["eth1", "^docker0,eth0"])
def test_the_slow_link_is_used_where_the_profile_says_so(
    slow_link, hpcddp, submit, sent_mib, value
):
    submit(rule(value))
    check_only("eth1", sent_mib())
    assert f"GLOO_SOCKET_IFNAME=eth1: HPCDDP_INTERFACE={value}" in choices(hpcddp)


def test_the_slow_link_is_left_where_the_profile_says_so(slow_link, submit, sent_mib):
    submit(rule("^eth1"))
    check_only("eth0", sent_mib())


def test_without_the_network_that_the_profile_prefers_the_link_to_the_master_is_used(
    slow_link, hpcddp, submit, sent_mib
):
    submit(rule("infiniband,ib*,default-route"))
    check_only("eth0", sent_mib())
    said = "\n".join(choices(hpcddp, "gpu-02"))
    assert "nothing else of that is up with an address, and it leads to gpu-01" in said


def test_all_links_are_used_where_the_profile_says_so(slow_link, submit, sent_mib):
    submit(rule("all:eth*"))
    for node in sent_mib():
        assert min(node["eth0"], node["eth1"]) > 3
        assert node["docker0"] < 1


def test_what_the_user_has_exported_wins_over_the_profile(slow_link, hpcddp, submit, sent_mib):
    submit(rule("eth0"), GLOO_SOCKET_IFNAME="eth1")
    check_only("eth1", sent_mib())
    said = "GLOO_SOCKET_IFNAME=eth1: exported by you or set by the profile"
    assert said in choices(hpcddp)


def test_a_users_own_rule_wins_over_the_profiles_rule_and_names(slow_link, submit, sent_mib):
    names = [f"{lib}_SOCKET_IFNAME: {{value: eth0, why: w}}" for lib in ("GLOO", "NCCL")]
    submit(f"{rule('eth0')}\nenv: {{{', '.join(names)}}}", HPCDDP_INTERFACE="eth1")
    check_only("eth1", sent_mib())


def test_the_second_name_of_the_nodes_leads_over_their_second_link(
    slow_link, hpcddp, submit, sent_mib
):
    submit("host_suffix: {value: -slow, why: for this test}")
    check_only("eth1", sent_mib())
    [address, *_] = choices(hpcddp)
    assert address == f"MASTER_ADDR=gpu-01-slow ({SLOW}.1): HPCDDP_HOST_SUFFIX, and it resolves"


@pytest.mark.parametrize("launch", ["srun", "torchrun"])
def test_a_second_name_that_does_not_resolve_is_left_and_training_uses_the_first(
    hpcddp, submit, launch
):
    profile = f"host_suffix: {{value: -ib0, why: for this test}}\nlaunch: {launch}"
    submit(profile, training=True, words=SMALLEST)
    assert hpcddp.status("r")["step"] == 1
    if launch == "srun":
        assert "gpu-01-ib0 does not resolve (HPCDDP_HOST_SUFFIX)" in choices(hpcddp)[0]
    assert "GLOO_SOCKET_IFNAME=eth0: it has the address of gpu-01" in "\n".join(choices(hpcddp))
    assert "docker0" not in "\n".join(choices(hpcddp))


def test_an_interface_that_no_node_has_fails_the_job_and_names_host_and_key(
    hpcddp, cluster, submit
):
    status = submit(rule("nosuch*"), state="failed")
    assert cluster.show(status["job_id"])["JobState"] == "FAILED"
    failure = hpcddp.events("r", "failed")[0]
    # The first rank to fail makes srun end the other, maybe before that one has said anything.
    said = hpcddp.run_dir("r").rank_log(0, failure["global_rank"]).read_text()
    assert f"HPCDDP_INTERFACE=nosuch*: no interface of {failure['host']}" in failure["error"]
    assert f"eth0 (up, 10000 Mbit/s, {cluster.addresses[failure['host']]})" in said
    assert "If you have exported HPCDDP_INTERFACE, unset it or export another one" in said
    assert "no interface of gpu-0" in status["reason"]


def test_a_master_whose_name_is_loopback_on_another_node_fails_the_job(
    hpcddp, cluster, submit, tmp_path
):
    hosts = (cluster.state_dir / "etc" / "hosts").read_text()
    own = tmp_path / "hosts"
    own.write_text(hosts.replace(f"{cluster.addresses['gpu-01']} gpu-01", "127.0.1.1 gpu-01"))
    mount = ["mount", "--bind", own, "/etc/hosts"]
    assert cluster.node_exec("gpu-02", mount).returncode == 0
    try:
        submit(state="failed")
    finally:
        cluster.node_exec("gpu-02", ["umount", "/etc/hosts"])
    said = hpcddp.run_dir("r").rank_log(0, 1).read_text()
    assert "gpu-01, means gpu-02 itself (127.0.1.1)" in said


@pytest.fixture
def renamed(cluster):
    """Two nodes whose own host name is another one than Slurm calls them by, as in a cloud."""
    for number, node in enumerate(cluster.nodes[:2]):
        assert cluster.node_exec(node, ["hostname", f"ip-10-0-0-{number}"]).returncode == 0
    yield
    for node in cluster.nodes[:2]:
        cluster.node_exec(node, ["hostname", node])


def test_slurms_name_of_a_node_is_used_and_its_address_where_nobody_knows_that_name(
    renamed, hpcddp, cluster
):
    hosts = cluster.state_dir / "etc" / "hosts"
    before, address = hosts.read_text(), cluster.addresses["gpu-01"]
    say = ["bash", "-c", "echo $MASTER_ADDR $GLOO_SOCKET_IFNAME"]
    hpcddp.submit("known", command=say)
    hpcddp.wait_for("known", "finished")
    hosts.write_text(before.replace(f"{address} gpu-01\n", ""))
    try:
        hpcddp.submit("lost", "requeue.max_failures=0", command=say)
        hpcddp.env = hpcddp.env | {"HPCDDP_MASTER_ADDR": address}
        hpcddp.submit("found", command=say)
        reason = hpcddp.wait_for("lost", "failed")["reason"]
        hpcddp.wait_for("found", "finished")
    finally:
        hosts.write_text(before)
    assert "gpu-01: no address is known on ip-10-0-0-" in reason
    said = hpcddp("logs", "lost", "--rank", "1").stdout
    assert "export HPCDDP_MASTER_ADDR=ADDRESS (`scontrol show node gpu-01` prints" in said
    for name, master in {"known": "gpu-01", "found": address}.items():
        logs = [hpcddp.run_dir(name).rank_log(0, rank).read_text() for rank in (0, 1)]
        assert [log.splitlines()[-1] for log in logs] == [f"{master} eth0"] * 2


def test_nodes_with_names_of_their_own_meet_at_an_address_of_ipv6(
    renamed, hpcddp, cluster, submit, sent_mib
):
    for number, node in enumerate(cluster.nodes[:2], start=1):
        ip(cluster, node, [f"address add fd00:99::{number}/64 dev eth0 nodad"])
    try:
        submit(HPCDDP_MASTER_ADDR="fd00:99::1")
    finally:
        for number, node in enumerate(cluster.nodes[:2], start=1):
            ip(cluster, node, [f"address del fd00:99::{number}/64 dev eth0"])
    check_only("eth0", sent_mib())
    told = {event["host"]: event["choices"][0] for event in hpcddp.events("r", "network")}
    said = "MASTER_ADDR=fd00:99::1: HPCDDP_MASTER_ADDR"
    assert told == {"ip-10-0-0-0": said, "ip-10-0-0-1": said}


def test_the_address_instead_of_the_name_reaches_a_users_own_program(hpcddp, cluster, tmp_path):
    hpcddp.env = hpcddp.env | {"HPCDDP_MASTER_AS": "address"}
    command = ["bash", "-c", f'echo "$MASTER_ADDR $GLOO_SOCKET_IFNAME" > {tmp_path}/$RANK']
    hpcddp.submit("r", command=command)
    hpcddp.wait_for("r", "finished", timeout=120)
    told = {(tmp_path / str(rank)).read_text() for rank in (0, 1)}
    assert told == {f"{cluster.addresses['gpu-01']} eth0\n"}
