"""Variables that stay behind when a job is submitted, and names whose values are never shown."""

from pathlib import Path

import pytest
import yaml

from hpcddp.cluster.scrub import chosen_note, inherited_names, looks_secret

TABLE = yaml.safe_load(
    (Path(__file__).parents[1] / "cases" / "env_scrub.yaml").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", TABLE["remove"])
def test_a_fact_about_the_surrounding_job_stays_behind(name):
    assert inherited_names({name: "1", "PATH": "/bin"}) == (name,)


@pytest.mark.parametrize("name", TABLE["keep"])
def test_what_the_user_chose_travels(name):
    assert inherited_names({name: "1"}) == ()


def test_the_device_travels_unless_one_of_our_jobs_set_it():
    assert inherited_names({"HPCDDP_DEVICE": "cpu"}) == ()
    inside = inherited_names({"HPCDDP_DEVICE": "cpu", "HPCDDP_ATTEMPT": "0"})
    assert inside == ("HPCDDP_ATTEMPT", "HPCDDP_DEVICE")


def test_rules_for_the_network_travel_unless_one_of_our_jobs_set_them():
    rules = {
        "HPCDDP_HCA": "nearest",
        "HPCDDP_HOST_SUFFIX": "i",
        "HPCDDP_INTERFACE": "eth0",
        "HPCDDP_MASTER_AS": "address",
    }
    assert inherited_names(rules) == ()
    assert inherited_names({**rules, "HPCDDP_ATTEMPT": "0"}) == ("HPCDDP_ATTEMPT", *rules)


def test_what_a_job_chose_for_its_program_stays_behind_until_its_user_has_changed_it():
    inside = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=eth0", "OMP_NUM_THREADS": "2"}
    note = chosen_note(inside)
    changed = {**inside, "OMP_NUM_THREADS": "8"}
    assert set(inherited_names({**inside, **note})) == {*note, *inside}
    assert set(inherited_names({**changed, **note})) == {*note, *list(inside)[:2]}
    assert inherited_names(inside) == ()


def test_on_this_machine_the_devices_stay_those_of_the_process():
    environ = dict.fromkeys(["CUDA_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "RANK"], "1")
    assert inherited_names(environ, on_this_machine=True) == ("RANK",)


@pytest.mark.parametrize("name", TABLE["secret"])
def test_a_name_of_a_credential_is_recognised(name):
    assert looks_secret(name)


@pytest.mark.parametrize("name", TABLE["not_secret"])
def test_an_ordinary_name_is_no_secret(name):
    assert not looks_secret(name)
