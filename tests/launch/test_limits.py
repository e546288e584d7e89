"""What a site allows, compared with what is asked for, before the queue."""

import pytest
from sites import GPUS, LIMITS, PLACE

from hpcddp.launch.limits import longest_time
from hpcddp.launch.render import option_warnings


@pytest.mark.parametrize(
    ("nodes", "words", "must_say"),
    [
        (2, [], []),
        (3, [], []),
        (5, ["resources.gpus_per_node=2"], ["5 nodes", "at most 4"]),
        (1, [], ["at least 2"]),
        (4, [], ["16 GPUs", "12"]),
        (2, ["resources.time=180"], ["--time 180", "02:00:00"]),
        (2, ["resources.time=5"], ["00:10:00 is needed"]),
        (2, ["resources.gpus_per_node=8"], ["a node has 4"]),
        (1, ["train.replicas=dp", "resources.cpus_per_process=16"], ["at least 2", "makes 64"]),
        (2, ["resources.cpus_per_process=16"], ["makes 64", "at most 32", "use 8"]),
    ],
)
def test_what_is_beyond_the_limits_is_said_before_the_queue(asked, nodes, words, must_say):
    request = asked(GPUS + LIMITS, *words, nodes=nodes)
    said = " ".join(option_warnings(request.config, request.profile, PLACE))
    assert bool(said) == bool(must_say)
    assert all(text in said for text in must_say)
    assert not said or "site, queue day: " in said


@pytest.mark.parametrize(
    ("rule", "gpus", "nodes", "must_say"),
    [
        ("required", 4, 2, ""),
        ("required", 2, 2, "2 GPUs per node, but nodes are given whole: use 4"),
        ("required", 8, 1, "8 GPUs per node, but a node has 4"),
        ("or_one_gpu", 1, 1, ""),
        ("or_one_gpu", 4, 2, ""),
        (
            "or_one_gpu",
            2,
            1,
            "2 GPUs on 1 node(s), but a job has one or whole nodes: use 1, or 4",
        ),
        ("or_one_gpu", 1, 2, "1 GPUs on 2 node(s), but a job has one or whole nodes"),
    ],
)
def test_a_part_of_a_node_is_warned_of_where_nodes_are_whole(asked, rule, gpus, nodes, must_say):
    text = GPUS + f"limits: {{whole_node: {rule}}}"
    request = asked(text, "resources.cpus_per_process=4", nodes=nodes, gpus_per_node=gpus)
    said = option_warnings(request.config, request.profile, PLACE)
    assert len(said) == bool(must_say)
    assert must_say in "".join(said)


@pytest.mark.parametrize(
    ("words", "must_say"),
    [
        (["resources.cpus_per_process=4"], ""),
        ([], "64 CPUs, but a job may have 32: use resources.cpus_per_process=4"),
        (["train.replicas=dp"], "64 CPUs, but a job may have 32: use resources.cpus_per_process=4"),
        (["resources.cpus_per_process=4", "resources.mem=24G"], ""),
        (["resources.cpus_per_process=4", "resources.mem=24577M"], "use resources.mem=24576M"),
        (["resources.cpus_per_process=4", "resources.mem_per_gpu=12G"], "96 GB of memory, but"),
        (["resources.cpus_per_process=4", "resources.mem_per_cpu=1G"], ""),
        (
            ["resources.cpus_per_process=4", "resources.mem_per_cpu=2G"],
            "resources.mem_per_cpu=1536M",
        ),
        (["resources.cpus_per_process=4", "resources.mem=0"], ""),
    ],
)
def test_cpus_and_memory_of_the_whole_job_are_held_against_the_limits(asked, words, must_say):
    request = asked(GPUS + "limits: {cpus_max: 32, memory_max_gb: 48}", *words)
    said = option_warnings(request.config, request.profile, PLACE)
    assert len(said) == bool(must_say)
    assert must_say in "".join(said)


def test_where_the_size_of_a_node_is_not_known_the_way_to_say_it_is_named(asked):
    text = "limits: {whole_node: or_one_gpu}"
    request = asked(text, nodes=1, gpus_per_node=4)
    (said,) = option_warnings(request.config, request.profile, PLACE)
    assert "use 1, or all of a node (`node: {gpus: N}` in clusters/site.local.yaml)" in said


@pytest.mark.parametrize(
    ("nodes", "time"), [(1, "02:00:00"), (91, "02:00:00"), (92, "06:00:00"), (184, "12:00:00")]
)
def test_the_longest_time_may_depend_on_the_nodes(asked, nodes, time):
    bins = "limits: {time_by_nodes: {91: '02:00:00', 183: '06:00:00', 9999: '12:00:00'}}"
    assert longest_time(asked(GPUS + bins).profile.limits, nodes) == time


def test_a_limit_in_node_hours_is_shared_by_the_nodes(asked):
    limits = asked(GPUS + "limits: {node_hours: 1.5, time_max: '24:00:00'}").profile.limits
    assert (longest_time(limits, 1), longest_time(limits, 3)) == ("90", "30")
    assert longest_time(limits, 91) == "1"  # Slurm knows no shorter time
