"""Profiles are strict data: every variable has a reason, every key is known."""

import pytest

from hpcddp.cluster.profile import choose_profile, load_profile, parse_profile
from hpcddp.config.files import list_configs
from hpcddp.config.load import Layer, resolve
from hpcddp.errors import ConfigError


@pytest.mark.parametrize("name", sorted(list_configs("clusters", {})))
def test_every_shipped_profile_loads_and_its_defaults_are_settings(name):
    profile = load_profile(name, {})
    assert profile.description
    resolve([Layer("length", {"train": {"max_steps": 1}}), profile.layer])


@pytest.mark.parametrize(
    ("values", "must_say"),
    [
        ({"launchr": "slurm"}, "`launcher`"),
        ({"launcher": "pbs"}, "use one of slurm, local"),
        ({"env": {"NCCL_SOCKET_IFNAME": "ib0"}}, "needs a value and a reason"),
        ({"env": {"NCCL_SOCKET_IFNAME": {"value": "ib0"}}}, "why"),
        ({"env": {"HF_TOKEN": {"value": "x", "why": "x"}}}, "looks like a credential"),
        ({"env": {"NCCL_CROSS_NIC": {"value": 1, "why": "x"}}}, 'quote it: "1"'),
    ],
)
def test_a_profile_with_a_mistake_is_refused(tmp_path, values, must_say):
    with pytest.raises(ConfigError) as caught:
        parse_profile(tmp_path / "mine.yaml", values)
    assert must_say in caught.value.message
    assert "mine.yaml" in caught.value.message


def test_auto_is_generic_where_sbatch_is(tmp_path):
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\n")
    sbatch.chmod(0o755)
    assert choose_profile("auto", {"PATH": str(tmp_path)}) == "generic"


def test_auto_without_slurm_says_what_to_type(tmp_path):
    with pytest.raises(ConfigError, match="--cluster local"):
        choose_profile("auto", {"PATH": str(tmp_path)})
