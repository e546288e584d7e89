"""Which GPU a process takes: the table, and that no two processes of a node take the same."""

from pathlib import Path

import pytest
import yaml

from hpcddp.cluster.devices import device_index, device_warnings, visible_devices
from hpcddp.cluster.hostlist import expand_counts
from hpcddp.cluster.layout import layout_from_environ
from hpcddp.errors import HpcddpError

CASES = yaml.safe_load(
    (Path(__file__).parents[1] / "cases" / "gpu_visibility.yaml").read_text(encoding="utf-8")
)["cases"]


def place_of(environ):
    """Local rank and local world size, as the layout would have them."""
    counts = expand_counts(environ.get("SLURM_STEP_TASKS_PER_NODE", "1"))
    return int(environ.get("SLURM_LOCALID", 0)), counts[int(environ.get("SLURM_NODEID", 0))]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_process_takes_its_device_or_says_why_not(case):
    environ = case["environ"]
    before = dict(environ)
    place = place_of(environ)
    if "error" in case:
        with pytest.raises(HpcddpError) as caught:
            device_index(environ, *place, case.get("device_count"))
        assert caught.value.code == case["error"]
        assert all(word in caught.value.message for word in case.get("must_say", ()))
        return
    assert device_index(environ, *place, case.get("device_count")) == case["device_index"]
    said = " ".join(device_warnings(environ, place[1]))
    assert all(word in said for word in case.get("warns", ()))
    assert not (case.get("warns") == [] and said)
    assert environ == before
    after = case.get("cuda_visible_devices_after", before.get("CUDA_VISIBLE_DEVICES"))
    assert environ.get("CUDA_VISIBLE_DEVICES") == after


WHOLE = [case for case in CASES if "SLURM_STEP_NODELIST" in case["environ"]]


@pytest.mark.parametrize("case", WHOLE, ids=lambda case: case["id"])
def test_a_whole_environment_gives_a_place_and_its_device(case):
    if "error" in case:
        with pytest.raises(HpcddpError) as caught:
            layout_from_environ(case["environ"])
        assert caught.value.code == case["error"]
        return
    layout = layout_from_environ(case["environ"])
    assert {key: getattr(layout, key) for key in case["place"]} == case["place"]
    assert (layout.launcher, layout.device_index) == ("slurm", case["device_index"])
    assert all(word in " ".join(layout.warnings) for word in case.get("warns", ()))


ASKED_OF_TORCH = [case for case in CASES if case.get("device_count") and "error" not in case]


@pytest.mark.parametrize("case", ASKED_OF_TORCH, ids=lambda case: case["id"])
def test_variables_alone_and_torch_agree_on_the_device(case):
    by_variables = device_index(case["environ"], *place_of(case["environ"]))
    assert by_variables == case["device_index"]


@pytest.mark.parametrize("num_devices", range(1, 9))
def test_processes_that_see_all_devices_take_different_ones(num_devices):
    environ = {
        "CUDA_VISIBLE_DEVICES": ",".join(str(7 - index) for index in range(num_devices)),
        "SLURM_GPUS_ON_NODE": str(num_devices),
    }
    taken = []
    for local_rank in range(num_devices):
        environ["SLURM_LOCALID"] = str(local_rank)
        taken.append(device_index(environ, local_rank, num_devices, num_devices))
    assert taken == list(range(num_devices))
    with pytest.raises(HpcddpError, match="visible GPUs"):
        device_index(environ, 0, num_devices + 1, num_devices)


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("0,1", ("0", "1")),
        (" 2 , 3 ", ("2", "3")),
        ("0,1,", ("0", "1")),
        ("1,-1,0", ("1",)),
        ("NoDevFiles", ()),
        ("", ()),
        ("-1", ()),
        ("GPU-8932f937,1", ("GPU-8932f937", "1")),
    ],
)
def test_a_list_ends_at_its_first_unusable_entry(text, entries):
    assert visible_devices({"CUDA_VISIBLE_DEVICES": text}) == entries


def test_no_variable_is_not_an_empty_list():
    assert visible_devices({"SLURM_GPUS_ON_NODE": "4"}) is None
