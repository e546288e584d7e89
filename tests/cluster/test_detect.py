"""Which profile is this cluster's: environment, files, host names, Slurm's own name."""

import pytest

from hpcddp.cluster.detect import detect, slurm_cluster_name
from hpcddp.cluster.profile import choose_profile, load_profile
from hpcddp.cluster.profile_file import list_profiles
from hpcddp.config.files import shipped_dir
from hpcddp.errors import ConfigError


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with profiles of one's own; `add(name, text)` writes one."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "configs" / "clusters"
    folder.mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.write_text("#!/bin/sh\n")
    sbatch.chmod(0o755)

    def add(name, text):
        (folder / f"{name}.yaml").write_text(f"description: d\n{text}\n")

    add.environ = {"HOME": "/nowhere", "PATH": str(tmp_path / "bin")}
    add.folder = tmp_path
    return add


@pytest.mark.parametrize(
    ("environ", "host", "name"),
    [
        ({"NERSC_HOST": "perlmutter"}, "login12", "perlmutter"),
        ({"NERSC_HOST": "cori"}, "login12", None),
        ({"LMOD_SYSTEM_NAME": "frontier"}, "login1", "frontier"),
        ({"CC_CLUSTER": "rorqual"}, "rorqual2", "rorqual"),
        ({"TACC_SYSTEM": "ls6"}, "login1", "lonestar6"),
        ({"SYSTEMNAME": "jurecadc"}, "jrlogin01", "jureca-dc"),
        ({}, "jpbo-001-02", "jupiter"),
        ({}, "lrdn0042", "leonardo"),
        ({"SLURM_CLUSTER_NAME": "snellius"}, "int1", "snellius"),
        ({"SLURM_CLUSTER_NAME": "alps"}, "x", "clariden"),
        ({"SLURM_CLUSTER_NAME": "Snellius"}, "int1", "snellius"),
        ({"SLURM_CLUSTER_NAME": "ALPS"}, "x", "clariden"),
        ({"SLURM_CLUSTER_NAME": "unheard-of"}, "x", None),
    ],
)
def test_a_shipped_profile_is_recognised(here, environ, host, name):
    found = detect({**here.environ, **environ}, host)
    assert [match.name for match in found] == ([name] if name else [])


@pytest.mark.parametrize("name", sorted(list_profiles({})))
def test_a_shipped_profile_has_signs_or_says_that_it_has_none(name):
    profile = load_profile(name, {})
    if profile.status in ("production", "retiring"):
        assert bool(profile.detect) != ("detect" in profile.unset)


def test_slurm_s_name_comes_from_its_configuration_file(here):
    conf = here.folder / "slurm.conf"
    conf.write_text("# ClusterName=old\nclustername = testcluster\n")
    environ = {**here.environ, "SLURM_CONF": str(conf)}
    assert slurm_cluster_name(environ)[0] == "testcluster"
    assert [match.name for match in detect(environ, "h")] == ["testcluster"]
    assert choose_profile("auto", environ) == "testcluster"


def test_a_file_is_a_sign_by_being_there_or_by_what_it_says(here):
    there, says = here.folder / "flag", here.folder / "systemname"
    here("by_file", f"detect: [{{file: {there}}}]")
    here("by_text", f"detect: [{{file: {says}, matches: 'my(one|two)'}}]")
    assert detect(here.environ, "h") == ()
    there.touch()
    says.write_text("mythree\n")
    assert [match.name for match in detect(here.environ, "h")] == ["by_file"]
    says.write_text("mytwo\n")
    names = {match.name: match.reason for match in detect(here.environ, "h")}
    assert set(names) == {"by_file", "by_text"}
    assert names["by_text"].endswith("systemname: mytwo")


def test_several_that_fit_are_named_and_auto_chooses_none(here):
    for name in ("one", "two"):
        here(name, "detect: [{env: MARK}]")
    with pytest.raises(ConfigError, match=r"one \(MARK=1\), two \(MARK=1\)"):
        choose_profile("auto", {**here.environ, "MARK": "1"})


def test_a_profile_of_one_s_own_wins_over_a_shipped_one_that_fits_too(here):
    here("mine", "aliases: [snellius]")
    environ = {**here.environ, "SLURM_CLUSTER_NAME": "snellius"}
    assert choose_profile("auto", environ) == "mine"


def test_a_profile_of_one_s_own_wins_inside_the_clone_too(tmp_path, monkeypatch):
    monkeypatch.chdir(shipped_dir("configs").parent)  # its ./configs is the shipped folder
    mine = tmp_path / "hpcddp" / "clusters" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("description: d\naliases: [snellius]\n")
    environ = {"XDG_CONFIG_HOME": str(tmp_path), "SLURM_CLUSTER_NAME": "snellius"}
    assert choose_profile("auto", environ) == "mine"


@pytest.mark.parametrize("text", ["detect: [{envv: SITE}]", "detect: [{env: SITE}", "detect: x"])
def test_a_mistake_in_the_signs_of_one_profile_is_said_and_the_others_are_recognised(
    here, text, caplog
):
    here("mine", text)
    assert choose_profile("auto", {**here.environ, "NERSC_HOST": "perlmutter"}) == "perlmutter"
    (said,) = caplog.messages
    assert said.startswith("Warning: ")
    assert "mine.yaml" in said


def test_a_mistake_elsewhere_keeps_no_profile_from_being_recognised(here, caplog):
    here("mine", "detect: [{env: SITE}]\nqueus: {}")
    assert choose_profile("auto", {**here.environ, "NERSC_HOST": "perlmutter"}) == "perlmutter"
    assert caplog.messages == []
    environ = {**here.environ, "SITE": "1"}
    assert choose_profile("auto", environ) == "mine"  # and not a job for some other cluster
    with pytest.raises(ConfigError, match="unknown key `queus`"):
        load_profile("auto", environ)


def test_upper_and_lower_case_do_not_matter_in_slurm_s_name_nor_in_a_profile_s(here):
    here("Mine", "aliases: [Our-Cluster]")
    for name in ("mine", "our-cluster", "OUR-CLUSTER"):
        environ = {**here.environ, "SLURM_CLUSTER_NAME": name}
        assert choose_profile("auto", environ) == "Mine"


@pytest.mark.parametrize("line", ["detect: [{env: SITE}]", '"detect": [{env: SITE}]'])
def test_signs_may_stand_anywhere_in_the_file(here, line):
    here("mine", f"notes: [a]\n{line}")
    assert choose_profile("auto", {**here.environ, "SITE": "1"}) == "mine"


def test_an_unknown_cluster_is_generic(here):
    environ = {**here.environ, "SLURM_CLUSTER_NAME": "unheard-of"}
    assert choose_profile("auto", environ) == "generic"
