"""The user's own files win; shipped ones are found from anywhere; near names are offered."""

import pytest

from hpcddp.config.files import find_config, find_job, list_configs, shipped_dir
from hpcddp.config.yaml_text import load_yaml_mapping, parse_yaml
from hpcddp.errors import ConfigError


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_shipped_files_are_found_from_any_folder(elsewhere):
    environ = {"HOME": str(elsewhere)}
    assert {"generic", "local"} <= set(list_configs("clusters", environ))
    assert find_job("digits").name == "digits.yaml"
    assert find_job("jobs/digits.yaml") == shipped_dir("jobs") / "digits.yaml"


def test_own_files_win_in_the_documented_order(elsewhere):
    home = write(elsewhere / "home/.config/hpcddp/clusters/generic.yaml")
    environ = {"HOME": str(elsewhere / "home")}
    assert find_config("clusters", "generic", environ) == home
    named = write(elsewhere / "named/clusters/generic.yaml")
    environ["HPCDDP_CONFIG_PATH"] = str(elsewhere / "named")
    assert find_config("clusters", "generic", environ) == named
    here = write(elsewhere / "configs/clusters/generic.yaml")
    assert find_config("clusters", "generic", environ) == here


def test_a_job_file_as_typed_wins_over_a_shipped_one(elsewhere):
    own = write(elsewhere / "digits.yaml")
    assert find_job("digits.yaml") == own


@pytest.mark.parametrize(
    ("call", "near"),
    [
        (lambda: find_config("clusters", "generc", {}), "`generic`"),
        (lambda: find_job("jobs/digit.yaml"), "`digits`"),
        (lambda: find_job("my-jobs/digits.yaml"), "`digits`"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_nearest(elsewhere, call, near):
    with pytest.raises(ConfigError, match="Did you mean") as caught:
        call()
    assert near in caught.value.message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12:30:45", "12:30:45"),
        ("0x10", "0x10"),
        ("1_000", 1000),
        ("1e-3", 0.001),
        (".5", 0.5),
        ("-3", -3),
        ("007", "007"),
        ("[1, 2]", [1, 2]),
        ("null", None),
        ("true", True),
    ],
)
def test_yaml_values_mean_what_people_type(text, value):
    assert parse_yaml(text, "here") == value


def test_a_broken_file_is_one_sentence_with_its_name_and_line(elsewhere):
    path = write(elsewhere / "x.yaml", "a: [1\nb: 2\n")
    with pytest.raises(ConfigError, match=r"x\.yaml: not valid YAML.*line 2"):
        load_yaml_mapping(path)


def test_a_tab_in_a_file_is_named_with_the_file_and_the_line(elsewhere):
    path = write(elsewhere / "x.yaml", "# für\ntrain:\n\tmodel: resnet18\n")
    with pytest.raises(ConfigError, match=r"x\.yaml: .* in line 3, .*\. A tab is there") as caught:
        load_yaml_mapping(path)
    assert "string" not in caught.value.message


def test_a_list_is_not_a_configuration(elsewhere):
    with pytest.raises(ConfigError, match="needed `key: value`"):
        load_yaml_mapping(write(elsewhere / "x.yaml", "- a\n"))
