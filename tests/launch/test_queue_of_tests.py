"""A job that only proves something goes into the queue that the profile keeps for that."""

import sys

import pytest
from click.testing import CliRunner

from hpcddp.cli import bench as bench_module
from hpcddp.cli import doctor as doctor_module
from hpcddp.launch.request import Request, resolve_request

PROFILE = """
description: d
launcher: local
gpu_request: none
nodes: {small: {node: {cpus: 8}}, large: {node: {cpus: 9}}}
default_queue: day
test_queue: quick
queues:
  day: {node_type: small, defaults: {resources: {partition: p}}}
  quick: {node_type: small, defaults: {resources: {partition: q, qos: t}}, limits: {nodes_max: 2}}
  night: {node_type: large, defaults: {resources: {partition: n}}}
"""


@pytest.fixture
def asked(workplace):
    """The answer for a profile `mine`, to which `own` adds what a user has written down."""
    folder = workplace / "configs/clusters"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(PROFILE)

    def resolve(own="", environ=None, is_test=True, **options):
        (folder / "mine.local.yaml").write_text(own)
        request = Request(cluster="mine", is_test=is_test, **options)
        return resolve_request(request, environ or {})

    return resolve


def test_a_test_goes_into_the_queue_of_tests_and_says_why(asked):
    answer = asked()
    resources = answer.config.resources
    assert (resources.queue, resources.partition, resources.qos) == ("quick", "q", "t")
    assert answer.queue_said == (
        "Queue quick: the test queue of mine, as nobody has named a queue, partition, QOS or "
        "reservation; the usual one is resources.queue=day."
    )
    usual = asked(is_test=False)
    assert (usual.profile.queue, usual.queue_said) == ("day", "")


@pytest.mark.parametrize(
    ("given", "queue"),
    [
        ({"overrides": ("resources.queue=night",)}, "night"),
        ({"resources": {"partition": "n"}}, "night"),
        ({"resources": {"partition": "q"}}, "quick"),
        ({"environ": {"SBATCH_PARTITION": "elsewhere"}}, ""),
        ({"environ": {"SBATCH_QOS": "elsewhere"}}, ""),
        ({"environ": {"SBATCH_RESERVATION": "mine"}}, "day"),
        ({"own": "defaults: {resources: {queue: night}}"}, "night"),
        ({"own": "test_queue: null"}, "day"),
    ],
)
def test_whoever_chooses_a_queue_gets_it_without_a_word(asked, given, queue):
    answer = asked(**given)
    assert (answer.profile.queue, answer.queue_said) == (queue, "")


@pytest.mark.parametrize(
    ("given", "queue", "why"),
    [
        ({"resources": {"nodes": 3}}, "day", "3 nodes, but at most 2 are allowed"),
        ({"own": "default_queue: night"}, "night", "its nodes are small"),
    ],
)
def test_what_the_queue_of_tests_has_no_room_for_goes_into_the_usual_one(asked, given, queue, why):
    answer = asked(**given)
    assert answer.profile.queue == queue
    assert answer.queue_said == f"Queue {queue}, not quick, the test queue of mine: {why}."


@pytest.mark.parametrize(
    ("module", "words", "queue"),
    [
        (doctor_module, ["--nodes", "1"], "quick"),
        (bench_module, ["allreduce", "--nodes", "2"], "day"),
    ],
)
def test_doctor_is_a_test_and_a_benchmark_is_none(asked, monkeypatch, module, words, queue):
    asked()
    seen = []
    monkeypatch.setattr("hpcddp.cli.doctor.send", lambda job: sys.exit(seen.append(job)))
    monkeypatch.setattr("hpcddp.cli.measuring.send", lambda job: sys.exit(seen.append(job)))
    done = CliRunner().invoke(module.command, [*words, "--cluster", "mine"])
    assert {job.request.config.resources.queue for job in seen} == {queue}, done.output
    assert ("Queue quick: the test queue of mine" in done.stderr) == (queue == "quick")
