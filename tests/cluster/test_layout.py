"""Who am I: every environment of the table, every process of a step, and what must not matter."""

import random
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import yaml

from hpcddp.cluster.layout import layout_from_environ
from hpcddp.cluster.slurm_step import layout_from_slurm
from hpcddp.errors import HpcddpError

TABLE = yaml.safe_load(
    (Path(__file__).parents[1] / "cases" / "layouts.yaml").read_text(encoding="utf-8")
)
BASES = TABLE["bases"]


def environ_of(case):
    environ = {**BASES.get(case.get("base"), {}), **case.get("set", {})}
    return {name: value for name, value in environ.items() if name not in case.get("unset", ())}


def plain(value):
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("case", TABLE["cases"], ids=lambda case: case["id"])
def test_an_environment_gives_its_layout_or_its_error(case):
    environ = environ_of(case)
    if "error" in case:
        with pytest.raises(HpcddpError) as caught:
            layout_from_environ(environ)
        assert caught.value.code == case["error"]
        assert all(word in caught.value.message for word in case.get("must_say", ()))
        return
    layout = layout_from_environ(environ)
    assert {key: plain(getattr(layout, key)) for key in case["expect"]} == case["expect"]
    said = " ".join(layout.warnings)
    assert all(word in said for word in case.get("warns", ()))
    assert not (case.get("warns") == [] and said)


def step_environs(distribution):
    """The environments of all 11 tasks of the step of the table, as srun places them."""
    counts = (4, 4, 3)
    if distribution == "block":
        places = [(node, local) for node in range(3) for local in range(counts[node])]
    else:
        places = [(node, local) for local in range(4) for node in range(3) if local < counts[node]]
    for global_rank, (node_rank, local_rank) in enumerate(places):
        yield {
            **BASES["block_11_on_3"],
            "SLURM_PROCID": str(global_rank),
            "SLURM_NODEID": str(node_rank),
            "SLURM_LOCALID": str(local_rank),
        }


@pytest.mark.parametrize("distribution", ["block", "cyclic"])
def test_the_processes_of_a_step_fill_all_places_and_agree_on_the_rest(distribution):
    layouts = [layout_from_environ(environ) for environ in step_environs(distribution)]
    assert [layout.global_rank for layout in layouts] == list(range(11))
    places = {(layout.node_rank, layout.local_rank) for layout in layouts}
    assert places == {*product((0, 1), range(4)), *product((2,), range(3))}
    assert len({(x.world_size, x.hosts, x.master_addr, x.ports, x.job_key) for x in layouts}) == 1
    assert [layout.is_main for layout in layouts] == [True] + [False] * 10


JOB_SCOPE = {
    "SLURM_NODELIST": "x[1-9]",
    "SLURM_JOB_NUM_NODES": "9",
    "SLURM_NNODES": "9",
    "SLURM_NTASKS": "72",
    "SLURM_NPROCS": "72",
    "SLURM_TASKS_PER_NODE": "8(x9)",
    "SLURM_NTASKS_PER_NODE": "8",
    "SLURM_GPUS_PER_NODE": "a100:8",
    "SLURM_SUBMIT_HOST": "login01",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
    "SLURM_JOB_NAME": "interactive",
    "RANK": "7",
    "WORLD_SIZE": "72",
    "LOCAL_RANK": "7",
}


@pytest.mark.parametrize("base", ["block_11_on_3", "subset", "one_of_two_nodes"])
def test_job_scope_and_leftovers_change_nothing_inside_a_step(base):
    found = layout_from_environ({**BASES[base], **JOB_SCOPE})
    assert replace(found, warnings=()) == replace(layout_from_environ(BASES[base]), warnings=())


@pytest.mark.parametrize("base", BASES)
def test_every_field_says_where_it_came_from(base):
    layout = layout_from_environ(BASES[base])
    shown = {"hosts", "master_addr", "master_port", "device_index", "requeue_target", "launcher",
             "global_rank", "world_size", "local_rank", "local_world_size", "node_rank",
             "num_nodes"}  # fmt: skip
    assert set(layout.sources) == shown
    assert all(layout.sources.values())


def outcome(environ):
    """The layout and no error, or no layout and the error."""
    try:
        return layout_from_environ(environ), None
    except HpcddpError as error:
        return None, error


@pytest.mark.parametrize("base", BASES)
def test_a_missing_variable_never_gives_another_error_or_another_rank(base):
    """Any three variables of a step may be lost; the answer stays right or becomes a sentence."""
    right = place_of(layout_from_environ(BASES[base]))
    draw = random.Random(5)
    for _ in range(300):
        lost = set(draw.sample(sorted(BASES[base]), 3))
        environ = {name: value for name, value in BASES[base].items() if name not in lost}
        layout, error = outcome(environ)
        if error:
            assert error.code in ("inconsistent", "not_in_step", "gpu_mismatch")
        elif layout.launcher == "single":
            assert lost >= {"SLURM_JOB_ID", "SLURM_STEP_ID"}
        else:
            assert place_of(layout) == right


def place_of(layout):
    return (
        (layout.global_rank, layout.world_size),
        (layout.local_rank, layout.local_world_size),
        (layout.node_rank, layout.hosts),
    )


RUBBISH = ["", " ", "-1", "4(x2)", "n[1-", "9" * 20, "9" * 5000, "eleven", "０", "\n", "1.0"]


@pytest.mark.parametrize("base", BASES)
def test_a_garbled_variable_never_gives_another_error(base):
    draw = random.Random(6)
    for _ in range(500):
        environ = dict(BASES[base])
        for name in draw.sample(sorted(environ), 2):
            environ[name] = draw.choice(RUBBISH)
        _, error = outcome(environ)
        assert error is None or len(error.message) < 800


def test_reading_leaves_the_environment_alone():
    environ = dict(BASES["one_of_two_nodes"])
    layout_from_environ(environ)
    assert environ == BASES["one_of_two_nodes"]


def test_the_slurm_reader_itself_refuses_a_batch_script():
    with pytest.raises(HpcddpError) as caught:
        layout_from_slurm({"SLURM_JOB_ID": "3", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"})
    assert caught.value.code == "not_in_step"


def test_a_port_that_clients_of_this_host_may_hold_is_mentioned():
    layout = layout_from_environ(BASES["subset"], ephemeral=(1024, 65_535))
    assert f"Port {layout.master_port} lies in 1024-65535" in layout.warnings[0]
    assert layout_from_environ(BASES["subset"], ephemeral=(32_768, 60_999)).warnings == ()
