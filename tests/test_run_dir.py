"""Event lines survive two writers and a kill in the middle of a line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcddp.run_dir import RunDir, append_json_line, read_json_lines, runs_root, write_atomically

ROOT = Path(__file__).parents[1]


def test_writers_at_the_same_time_never_mix_lines(tmp_path):
    code = (
        "import sys, pathlib; from hpcddp.run_dir import RunDir\n"
        "run_dir = RunDir(pathlib.Path(sys.argv[1]))\n"
        "for n in range(300): run_dir.append_event('x', writer=sys.argv[2], n=n, pad='y' * 500)"
    )
    words = [sys.executable, "-c", code, str(tmp_path)]
    writers = [subprocess.Popen([*words, str(w)], cwd=ROOT) for w in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    events = RunDir(tmp_path).read_events()
    for w in range(3):
        assert [e["n"] for e in events if e["writer"] == str(w)] == list(range(300))


def test_a_torn_line_costs_only_itself(tmp_path):
    path = tmp_path / "events.jsonl"
    append_json_line(path, {"n": 1})
    with path.open("ab") as file:
        file.write(b'{"n": 2, "text": "\xc3')
    append_json_line(path, {"n": 3})
    assert [record["n"] for record in read_json_lines(path)] == [1, 3]


def test_a_line_of_which_only_a_part_fitted_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "write", lambda descriptor, line: len(line) - 1)
    with pytest.raises(OSError, match="No space left"):
        append_json_line(tmp_path / "events.jsonl", {"n": 1})


def test_a_name_that_is_no_utf8_can_be_written_and_shown(tmp_path):
    name = os.fsdecode(b"caf\xe9 \xff.txt")
    append_json_line(tmp_path / "events.jsonl", {"error": f"No such file: {name}"})
    [record] = read_json_lines(tmp_path / "events.jsonl")
    assert record["error"] == "No such file: caf? ?.txt"  # which every terminal can show


def test_a_missing_file_has_no_lines(tmp_path):
    assert list(read_json_lines(tmp_path / "none")) == []


def test_replacing_a_file_keeps_the_umask_and_leaves_no_partial(tmp_path):
    previous = os.umask(0o027)
    try:
        write_atomically(tmp_path / "a", "new")
    finally:
        os.umask(previous)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_the_runs_root_is_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert runs_root({}) == tmp_path / "runs"
    assert runs_root({"HPCDDP_RUNS_DIR": "x"}) == tmp_path / "x"
