"""Slurm's own answers: read, compared with a profile, and turned into a new one."""

import dataclasses
from pathlib import Path

import pytest

from hpcddp.cluster.drift import compare, compare_node
from hpcddp.cluster.live import LiveQos, ask_preemption, gpus_of, nodes_of, read_live, run_tool
from hpcddp.cluster.network import gloo_missing, nccl_fits
from hpcddp.cluster.node_facts import node_facts
from hpcddp.cluster.profile import load_profile, parse_profile
from hpcddp.cluster.survey import family_of, probe_node, survey_text, way_to, write_profile
from hpcddp.config.yaml_text import load_yaml_mapping, parse_yaml

TABLE = load_yaml_mapping(Path(__file__).parents[1] / "cases" / "slurm_cluster.yaml")


def answer(words):
    """What Slurm would print."""
    keys = {"sinfo": "sinfo", "sacctmgr": "qos"}
    key = keys.get(words[0]) or {"config": "config", "partition": "partitions"}[words[2]]
    return TABLE[key]


def newcluster():
    return read_live(answer)


@pytest.mark.parametrize("case", TABLE["gres"].values(), ids=TABLE["gres"])
def test_gpus_are_read_from_gres(case):
    assert gpus_of(case["text"]) == (case["gpus"], case["type"])


@pytest.mark.parametrize(
    ("partition", "count"), [(None, 4), ("gpu", 12), ("main", 4), ("main,gpu", 12), ("none", None)]
)
def test_the_nodes_of_a_partition_are_counted(partition, count):
    assert nodes_of(partition, lambda words: "main*|4\ngpu|12\n") == count


def test_where_slurm_does_not_answer_no_number_of_nodes_is_known():
    assert nodes_of(None, lambda words: "") is None


def test_partitions_nodes_and_qos_are_read():
    live = newcluster()
    assert (live.name, live.version, set(live.partitions)) == (
        "newcluster", "23.11.4", {"cpu", "gpu"},
    )  # fmt: skip
    gpu, cpu = live.partitions["gpu"], live.partitions["cpu"]
    assert (gpu.time_max, gpu.nodes_max, gpu.nodes_min, gpu.grace_s) == ("2-00:00:00", 16, 2, 120)
    assert (cpu.time_max, cpu.nodes_max, cpu.is_default) == (None, None, True)
    assert [shape.cpus for shape in gpu.nodes] == [128, 96]
    assert set(live.qos) == {"normal", "short", "long", "spare", "owners"}
    assert live.qos["normal"] == LiveQos(preempt_mode="CLUSTER")
    assert live.qos["long"] == LiveQos("7-00:00:00", True, preempt_mode="CLUSTER")
    assert (live.qos["spare"].preempt_mode, live.qos["spare"].grace_s) == ("REQUEUE", 120)
    assert live.qos["owners"].preempts == ("spare", "normal")


def test_no_slurm_is_no_cluster_and_no_accounting_is_no_qos():
    assert read_live(lambda words: "") is None
    quiet = read_live(lambda words: "" if words[0] == "sacctmgr" else answer(words))
    assert quiet.qos is None
    values = {"defaults": {"resources": {"qos": "x", "partition": "gpu"}}}
    assert [f.level for f in compare(values, quiet) if "QOS" in f.what] == ["untested"]


def test_a_higher_partition_that_is_not_shown_to_the_user_takes_nodes_all_the_same():
    """Slurm leaves out what is hidden or closed to a group, unless it is asked for all."""
    low, top = (
        f"PartitionName={name} PriorityTier={tier} PreemptMode=REQUEUE State=UP\n"
        for name, tier in (("low", 1), ("top", 9))
    )

    def ask(words):
        if "config" in words:
            return "PreemptMode = REQUEUE\nPreemptType = preempt/partition_prio\n"
        return (low + top if "--all" in words else low) if "partition" in words else ""

    taken = [ask_preemption(name, "", ask) for name in ("low", "top", "gone")]
    assert taken == [("REQUEUE", 0), ("OFF", 0), None]
    live = read_live(ask)
    assert {name: part.preempt_mode for name, part in live.partitions.items()} == {"low": "REQUEUE"}


@pytest.mark.parametrize(
    ("printed", "mode"),
    [("GANG,REQUEUE", "REQUEUE"), ("GANG", "OFF"), ("SUSPEND", "SUSPEND"), ("", "")],
)
def test_a_cluster_that_also_shares_nodes_in_turn_takes_them_as_it_says_beside_that(printed, mode):
    """Slurm prints the whole cluster's mode, GANG included, for a partition without one."""

    def ask(words):
        if "config" in words:
            return f"PreemptMode = {printed}\nPreemptType = preempt/partition_prio\n"
        names = {"low": f"PriorityTier=1 PreemptMode={printed}", "top": "PriorityTier=9"}
        lines = [f"PartitionName={name} {rest} State=UP\n" for name, rest in names.items()]
        return "".join(lines) if "partition" in words else ""

    live = read_live(ask)
    taken = live.preemption_of(live.partitions["low"], None)
    assert taken == ask_preemption("low", "", ask) == (mode or "OFF", 0)
    assert ("suspended" in survey_text(live, {}, "2026-11-30", "--no-job")) is (mode == "SUSPEND")


def test_a_rule_that_slurm_does_not_tell_is_named_as_not_compared():
    values = {"limits": {"gpus_max": 8, "node_hours": 12.5, "time_min": "1:00:00"}}
    rules = [f for f in compare(values, newcluster()) if f.level == "untested"]
    assert {(f.what, f.profile) for f in rules} == {
        ("cluster: most GPUs", "8"),
        ("cluster: node hours", "12.5"),
        ("cluster: least time", "1:00:00"),
    }


@pytest.mark.parametrize("case", TABLE["drift"].values(), ids=TABLE["drift"])
def test_what_differs_is_reported_and_nothing_else(case):
    live = newcluster()
    live = dataclasses.replace(live, config={**live.config, **case.get("config", {})})
    findings = compare(case["profile"], live)
    assert findings
    differ = [f.what.partition(": ")[2] for f in findings if f.level == "drift"]
    assert differ == case["differ"]


@pytest.mark.parametrize("case", TABLE["interfaces"].values(), ids=TABLE["interfaces"])
def test_an_interface_fits_as_nccl_and_gloo_read_it(case):
    pattern, names = case["pattern"], case["names"]
    fits = not gloo_missing(pattern, names) if case["whole"] else nccl_fits(pattern, names)
    assert fits == case["fits"]


NODE = {
    "host": "n1", "arch": "x86_64", "cpus": 64, "gpus": ["GPU 0: NVIDIA H100"], "rdma": {},
    "interfaces": {
        "lo": {"addresses": ["127.0.0.1"], "speed_mbit_per_s": 0},
        "hsn0": {"addresses": ["10.0.0.1"], "speed_mbit_per_s": 200_000},
        "podman1": {"addresses": ["10.88.0.1"], "speed_mbit_per_s": 10_000},
        "hsn1": {"addresses": [], "speed_mbit_per_s": 200_000},
    },
}  # fmt: skip


def test_a_node_is_compared_with_the_interfaces_of_the_profile():
    profile = load_profile("slingshot-nvidia", {"HOME": "/nowhere"})
    assert {f.level for f in compare_node(profile, NODE, "")} == {"ok"}
    without = {**NODE, "interfaces": {"eth0": NODE["interfaces"]["hsn0"]}}
    differ = {f.what for f in compare_node(profile, without, "") if f.level == "drift"}
    assert differ == {"node n1: NCCL_SOCKET_IFNAME", "node n1: GLOO_SOCKET_IFNAME"}
    assert [f.level for f in compare_node(profile, {}, "--no-job")] == ["untested"]


@pytest.mark.parametrize(
    ("facts", "family"),
    [
        (NODE, "slingshot-nvidia"),
        ({**NODE, "gpus": ["GPU[0]: Card series: AMD Instinct"]}, "slingshot-amd"),
        ({"interfaces": {"eth0": {}}, "rdma": {"mlx5_0": "InfiniBand"}}, "infiniband"),
        ({"interfaces": {"eth0": {}}, "rdma": {"mlx5_0": "Ethernet"}}, "roce"),
        ({"interfaces": {"eth0": {}}, "rdma": {"rdmap0s6": "Unspecified"}}, "efa"),
        ({"interfaces": {"eth0": {}}, "rdma": {}}, "ethernet"),
        ({}, ""),
    ],
)
def test_the_family_follows_from_what_the_node_has(facts, family):
    assert family_of(facts)[0] == family


def surveyed(facts, tmp_path):
    text = survey_text(newcluster(), facts, "2026-11-29", "")
    return text, parse_yaml(text, str(tmp_path))


@pytest.mark.parametrize("facts", [NODE, {}], ids=["with-node", "without"])
def test_the_written_profile_is_one_and_says_what_slurm_said(facts, tmp_path):
    text, values = surveyed(facts, tmp_path)
    profile = parse_profile(tmp_path / "newcluster.yaml", {**values, "extends": []})
    assert (profile.queue, profile.account_required) == ("gpu", True)
    assert (profile.node.gpus, profile.node.cpus) == (4, 128)
    assert (profile.limits.time_max, profile.limits.nodes_min) == ("2-00:00:00", 2)
    assert profile.preempt.possible
    assert profile.preempt.grace_s == 120
    assert values.get("extends", []) == (["slingshot-nvidia"] if facts else [])
    assert ("hsn0 10.0.0.1" in text) == bool(facts)
    assert "podman1" not in text
    assert "# and gpu_type: a100, if the site wants the type named" in text
    differ = [f for f in compare(values, newcluster()) if f.level == "drift"]
    assert differ == []


def test_a_profile_that_exists_is_never_overwritten(tmp_path):
    path = tmp_path / "clusters" / "mine.yaml"
    write_profile("a: 1\n", path)
    with pytest.raises(FileExistsError):
        write_profile("a: 2\n", path)
    assert path.read_text() == "a: 1\n"


def test_a_node_is_looked_at_by_a_short_job_with_the_options_of_its_partition():
    seen = []

    def run(words):
        seen.append(words)
        return '{"host": "n1"}', ""

    gpu, cpu = (newcluster().partitions[name] for name in ("gpu", "cpu"))
    mine = {"SBATCH_ACCOUNT": "me", "SBATCH_QOS": ""}
    assert probe_node(way_to(gpu, mine), run) == ({"host": "n1"}, "")
    asked = {"--partition=gpu", "--gres=gpu:1", "--account=me", "--nodes=1", "--time=2"}
    assert asked <= set(seen[0])
    assert way_to(cpu, {}) == ("--partition=cpu",)


def test_a_node_that_could_not_be_looked_at_is_reported_with_the_words_of_srun():
    facts, unseen = probe_node((), lambda words: ("", "srun: error: Invalid account"))
    assert facts == {}
    (finding,) = compare_node(load_profile("generic", {}), facts, unseen)
    assert finding.level == "untested"
    assert finding.live == "no node was looked at: srun: error: Invalid account"
    assert finding.live in survey_text(newcluster(), facts, "2026-11-29", unseen)
    assert probe_node((), lambda words: ("Welcome!", ""))[1] == "the job printed no facts"


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        ("echo good", ("good\n", "")),
        ("echo half; echo first >&2; echo why >&2; exit 3", ("", "why")),
        ("echo why >&2; echo srun: n1: Exited with exit code 1 >&2; exit 1", ("", "why")),
        ("exit 3", ("", "sh: exit code 3")),
    ],
)
def test_a_tool_that_fails_leaves_the_last_line_that_says_why(script, answer):
    assert run_tool(["sh", "-c", script]) == answer


def test_a_tool_that_is_missing_or_does_not_answer_is_named():
    assert run_tool(["/nowhere/srun"])[1] == "/nowhere/srun: No such file or directory"
    assert run_tool(["sleep", "600"], timeout_s=0.1)[1] == "sleep: no answer within 0.1 s"


def test_the_facts_of_this_machine_have_its_interfaces_and_devices(tmp_path):
    port = tmp_path / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "link_layer").write_text("InfiniBand\n")
    facts = node_facts(rdma=tmp_path)
    assert facts["rdma"] == {"mlx5_0": "InfiniBand"}
    assert "127.0.0.1" in facts["interfaces"]["lo"]["addresses"]
    assert facts["cpus"] >= 1
