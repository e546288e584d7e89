"""`logs` finds the log that a person means, and goes on through restarts."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from hpcddp.cli import logs
from hpcddp.cli.logs import command
from hpcddp.errors import HpcddpError
from hpcddp.run_dir import RunDir


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("HPCDDP_RUNS_DIR", str(tmp_path))
    run_dir = RunDir(tmp_path / "demo")
    run_dir.batch_log.parent.mkdir(parents=True)
    run_dir.script.touch()
    run_dir.append_event(
        "submitted", launcher="local", job_id="local-1", nodes=2, processes_per_node=2
    )
    return run_dir


def write(run_dir, attempt, rank, text):
    log = run_dir.rank_log(attempt, rank)
    log.parent.mkdir(exist_ok=True)
    with log.open("ab") as file:
        file.write(text if isinstance(text, bytes) else text.encode())


def shown(*words):
    result = CliRunner().invoke(command, ["demo", *words], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def complaint(*words):
    with pytest.raises(HpcddpError) as caught:
        CliRunner().invoke(command, ["demo", *words], catch_exceptions=False)
    return caught.value.message


def test_the_default_is_rank_0_of_the_newest_attempt(run_dir):
    for attempt in (0, 2, 10):
        for rank in (0, 1):
            write(run_dir, attempt, rank, f"attempt {attempt} rank {rank}\n")
    assert shown() == "attempt 10 rank 0\n"
    assert shown("--rank", "1") == "attempt 10 rank 1\n"
    assert shown("--attempt", "2", "--rank", "1") == "attempt 2 rank 1\n"


def test_an_attempt_whose_processes_wrote_nothing_yet_does_not_hide_the_last_one(run_dir):
    write(run_dir, 0, 0, "attempt 0\n")
    run_dir.attempt_logs(1).mkdir()
    assert shown() == "attempt 0\n"


def test_a_start_that_was_refused_the_run_does_not_hide_the_one_that_trains(run_dir):
    for attempt in (0, 1):
        write(run_dir, attempt, 0, f"attempt {attempt}\n")
    run_dir.refusal(1).write_text("39 1\n")
    assert shown() == "attempt 0\n"
    assert shown("--attempt", "1") == "attempt 1\n"


def test_the_batch_log_stands_in_until_a_process_has_one(run_dir):
    run_dir.batch_log.write_text("srun: error: no such partition\n")
    assert shown() == "srun: error: no such partition\n"
    write(run_dir, 0, 0, "hello\n")
    assert shown() == "hello\n"
    assert shown("--rank", "batch") == "srun: error: no such partition\n"


def test_all_ranks_are_told_apart_by_a_prefix(run_dir):
    for rank in (0, 1, 11):
        write(run_dir, 0, rank, f"first of {rank}\nlast")
    expected = "".join(f"{rank}: first of {rank}\n{rank}: last\n" for rank in (0, 1, 11))
    assert shown("--rank", "all") == expected


def test_bytes_are_passed_on_as_they_are(run_dir):
    data = bytes(range(256)) * 9000  # more than one block, and no UTF-8
    write(run_dir, 0, 0, data)
    result = CliRunner().invoke(command, ["demo"], catch_exceptions=False)
    assert result.stdout_bytes == data


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--rank", "4"], ["4 processes", "0 to 3"]),
        (["--rank", "-1"], ["found `-1`", "`all` or `batch`"]),
        (["--rank", "first"], ["found `first`"]),
        (["--attempt", "7"], ["has attempts: 0"]),
        (["--rank", "3"], ["no such log yet", "status demo"]),
    ],
)
def test_what_does_not_exist_is_answered_with_what_does(run_dir, words, parts):
    write(run_dir, 0, 0, "x")
    message = complaint(*words)
    assert all(part in message for part in parts), message


def test_a_run_without_logs_says_where_to_look(run_dir):
    assert "python -m hpcddp status demo" in complaint()


@pytest.mark.parametrize("words", [[], ["--follow"], ["--rank", "all"], ["--rank", "batch"]])
def test_the_logs_of_a_run_that_submit_did_not_send_are_elsewhere(run_dir, words):
    run_dir.script.unlink()
    run_dir.append_event("finished")  # else a `--follow` that waits would do so for ever
    message = complaint(*words)
    assert "your own `#SBATCH --output`, srun or torchrun says" in message
    assert "--follow" not in message


@pytest.fixture
def between_looks(monkeypatch):
    """Return a function: what a generator does up to each `yield` happens between two looks."""

    def between_looks(life):
        pauses = SimpleNamespace(sleep=lambda seconds: next(life, None))
        monkeypatch.setattr(logs, "time", pauses)

    return between_looks


def test_following_goes_from_the_batch_log_through_all_attempts_to_the_end(run_dir, between_looks):
    run_dir.batch_log.write_text("preparing\n")

    def live():
        for attempt in (0, 1):
            write(run_dir, attempt, 0, f"attempt {attempt} begins\nand ")
            yield
            write(run_dir, attempt, 0, f"ends {attempt}\n")
        yield
        run_dir.append_event("finished")

    between_looks(live())
    result = CliRunner().invoke(command, ["demo", "--follow"], catch_exceptions=False)
    assert result.exit_code == 0
    parts = [f"attempt {a} begins\nand ends {a}\n" for a in (0, 1)]
    assert result.stdout == "preparing\n" + "".join(parts)
    assert str(run_dir.rank_log(1, 0)) in result.stderr


def test_following_all_ranks_keeps_lines_whole(run_dir, between_looks):
    def live():
        for piece in ("one ", "line\n", "rest"):
            for rank in (0, 1):
                write(run_dir, 0, rank, piece)
            yield
        run_dir.append_event("finished")

    between_looks(live())
    result = CliRunner().invoke(command, ["demo", "-f", "--rank", "all"], catch_exceptions=False)
    lines = ["0: one line", "0: rest", "1: one line", "1: rest"]
    assert sorted(result.stdout.splitlines()) == lines


def test_ctrl_c_ends_following_with_130(run_dir):
    write(run_dir, 0, 0, "hello\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcddp", "logs", "demo", "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ,
    )
    assert process.stdout.readline() == b"hello\n"
    process.send_signal(2)
    assert process.wait(timeout=100) == 130
