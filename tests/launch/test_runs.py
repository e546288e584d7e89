"""Which folders are runs, and how one is found by its name."""

import pytest

from hpcddp.errors import HpcddpError
from hpcddp.launch.runs import find_run, list_runs
from hpcddp.run_dir import RunDir


def make_run(path):
    path.mkdir()
    RunDir(path).append_event("submitted")


def test_runs_are_the_folders_with_a_configuration_or_events(tmp_path):
    make_run(tmp_path / "b")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.yaml").touch()
    (tmp_path / "not-a-run").mkdir()
    (tmp_path / "file").touch()
    assert [run_dir.name for run_dir in list_runs(tmp_path)] == ["a", "b"]
    assert list_runs(tmp_path / "missing") == []


def test_an_unknown_run_is_answered_with_the_nearest_names_and_the_folder(tmp_path):
    for name in ("resnet-a", "resnet-b", "other"):
        make_run(tmp_path / name)
    assert find_run(tmp_path, "other").name == "other"
    with pytest.raises(HpcddpError) as caught:
        find_run(tmp_path, "resnet-c")
    assert caught.value.code == "unknown_run"
    assert all(word in caught.value.message for word in ("`resnet-a`", "`resnet-b`", str(tmp_path)))
    with pytest.raises(HpcddpError):
        find_run(tmp_path, "../" + tmp_path.name)
