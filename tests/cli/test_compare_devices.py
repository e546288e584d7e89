"""How many devices `compare` takes where nobody says it, and the job that it asks for."""

import dataclasses

import pytest

from hpcddp.cli.compare import _cpus_unknown, _one_process
from hpcddp.cluster.profile_schema import NodeShape
from hpcddp.launch.request import Request, resolve_request

NOTHING = {"modes": None, "devices": None, "weak": False, "rounds": 1, "steps": 1}


def asked_for(cluster, gpus_of_node, devices=None, resources=None, overrides=(), cpus=None):
    """The GPUs that the job of `compare` asks for; None where that stays as it is."""
    request = Request(cluster=cluster, resources=resources or {}, overrides=overrides)
    resolved = resolve_request(request, {})
    profile = dataclasses.replace(resolved.profile, node=NodeShape(gpus=gpus_of_node, cpus=cpus))
    resolved = dataclasses.replace(resolved, profile=profile)
    settings = dict(
        setting.split("=") for setting in _one_process(NOTHING | {"devices": devices}, resolved)
    )
    return settings.get("resources.gpus_per_node"), settings.get("resources.cpus_per_process")


@pytest.mark.parametrize(
    ("given", "gpus"),
    [
        ({"gpus_of_node": 4}, "4"),  # though a job of this profile has one by default
        ({"gpus_of_node": None}, None),
        ({"gpus_of_node": None, "devices": "1,2"}, "2"),
        ({"gpus_of_node": 4, "resources": {"gpus_per_node": 2}}, None),  # the user's word
        ({"gpus_of_node": 4, "overrides": ("resources.gpus_per_node=2",)}, None),
    ],
)
def test_without_a_word_it_is_all_gpus_of_a_node_where_the_profile_knows_them(given, gpus):
    assert asked_for("generic", **given) == (gpus, None)


def test_without_gpus_it_is_two_shares_of_the_cpus():
    assert asked_for("generic-cpu", None) == (None, "2")


UNSAID = "resources.cpus_per_process=null"


@pytest.mark.parametrize(
    ("cpus", "words", "expected"),
    [
        (96, [UNSAID], "12"),  # all of the node, which the job holds
        (96, [UNSAID, "resources.gpus_per_node=2"], "48"),
        (96, [UNSAID, "resources.gpus_per_node=2", "resources.sbatch.exclusive=false"], "12"),
        (6, [UNSAID], "1"),
        (96, [], None),  # the profile's own
        (96, ["resources.cpus_per_process=3"], None),
        (None, [UNSAID], None),
    ],
)
def test_a_job_with_gpus_asks_for_the_cpus_that_the_node_has(cpus, words, expected):
    assert asked_for("generic", 8, overrides=tuple(words), cpus=cpus)[1] == expected


@pytest.mark.parametrize(
    ("cluster", "words", "is_said"),
    [
        ("generic", [UNSAID], True),
        ("generic", [], False),
        ("generic", [UNSAID, "resources.sbatch.cpus-per-gpu=8"], False),
        ("generic-cpu", [UNSAID], False),
    ],
)
def test_where_nothing_says_how_many_cpus_there_are_that_is_said_before_the_queue(
    cluster, words, is_said
):
    resolved = resolve_request(Request(cluster=cluster, resources={}, overrides=tuple(words)), {})
    said = _cpus_unknown(resolved)
    assert ["resources.cpus_per_process=8" in sentence for sentence in said] == [True] * is_said
