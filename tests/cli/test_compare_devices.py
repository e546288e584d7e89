"""How many devices `compare` takes where nobody says it, and the job that it asks for."""

import dataclasses

import pytest

from hpcddp.cli.compare import _one_process
from hpcddp.cluster.profile_schema import NodeShape
from hpcddp.launch.request import Request, resolve_request

NOTHING = {"modes": None, "devices": None, "weak": False, "rounds": 1, "steps": 1}


def asked_for(cluster, gpus_of_node, devices=None, resources=None, overrides=()):
    """The GPUs that the job of `compare` asks for; None where that stays as it is."""
    request = Request(cluster=cluster, resources=resources or {}, overrides=overrides)
    resolved = resolve_request(request, {})
    profile = dataclasses.replace(resolved.profile, node=NodeShape(gpus=gpus_of_node))
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
