"""The stand-in for srun starts every process with its place, and ends together."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from waiting import wait_until

from hpcddp.launch.last_words import first_exit
from hpcddp.launch.local_step import process_environment, run_step


def python(code):
    return [sys.executable, "-c", textwrap.dedent(code)]


def test_every_process_gets_its_place_and_its_own_log(tmp_path):
    report = """
        import json, os
        print(json.dumps({k: v for k, v in os.environ.items() if k.startswith("HPCDDP_")}))
    """
    assert run_step(python(report), nodes=2, processes_per_node=2, logs=tmp_path) == 0
    places = [json.loads((tmp_path / f"rank-{r:04d}.log").read_text()) for r in range(4)]
    assert [place["HPCDDP_GLOBAL_RANK"] for place in places] == ["0", "1", "2", "3"]
    assert [place["HPCDDP_NODE_RANK"] for place in places] == ["0", "0", "1", "1"]
    assert [place["HPCDDP_LOCAL_RANK"] for place in places] == ["0", "1", "0", "1"]
    assert {place["HPCDDP_WORLD_SIZE"] for place in places} == {"4"}
    assert len({place["HPCDDP_JOB_ID"] for place in places}) == 1


def test_one_failing_process_ends_the_others_soon_and_is_named(tmp_path, capsys):
    code = """
        import os, sys, time
        if os.environ["HPCDDP_GLOBAL_RANK"] == "1":
            sys.exit(3)
        time.sleep(600)
    """
    start = time.monotonic()
    code_seen = run_step(python(code), nodes=2, processes_per_node=1, logs=tmp_path)
    assert time.monotonic() - start < 300
    assert code_seen == 3
    said = capsys.readouterr().err
    assert said == "local_step: error: node1: task 1: Exited with exit code 3\n"
    assert first_exit(said.splitlines()) == (3, "task 1 on node1")


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGRTMIN + 1])
def test_a_process_that_a_signal_has_ended_is_told_so(tmp_path, capsys, signum):
    code = python(f"import os; os.kill(os.getpid(), {int(signum)})")
    assert run_step(code, nodes=1, processes_per_node=1, logs=tmp_path) == 128 + signum
    said = capsys.readouterr().err
    assert said == f"local_step: error: node0: task 0: {signal.strsignal(signum)}\n"
    assert first_exit(said.splitlines()) == (128 + signum, "task 0 on node0")


def test_a_process_that_needs_a_moment_to_leave_keeps_its_code(tmp_path):
    code = f"""
        import os, pathlib, signal, sys, time
        ready, left = (pathlib.Path({str(tmp_path)!r}, name) for name in ("ready", "left"))
        if os.environ["HPCDDP_GLOBAL_RANK"] == "0":
            while not ready.exists():
                time.sleep(0.05)
            sys.exit(75)
        signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), left.touch(), os._exit(75)))
        ready.touch()
        signal.pause()
    """
    assert run_step(python(code), nodes=1, processes_per_node=2, logs=tmp_path) == 75
    assert (tmp_path / "left").exists()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_reach_every_process(tmp_path, signum):
    code = f"""
        import os, pathlib, signal
        signal.signal({int(signum)}, lambda *_: os._exit(75))
        pathlib.Path(os.environ["READY"], os.environ["HPCDDP_GLOBAL_RANK"]).touch()
        signal.pause()
    """
    ready = tmp_path / "ready"
    ready.mkdir()
    words = ["--nodes", "2", "--processes-per-node", "1", "--logs", str(tmp_path), "--"]
    step = subprocess.Popen(
        [sys.executable, "-m", "hpcddp.launch.local_step", *words, *python(code)],
        env={**os.environ, "READY": str(ready)},
    )
    wait_until(lambda: len(list(ready.iterdir())) == 2)
    step.send_signal(signum)
    assert step.wait(120) == 75


def test_the_jobs_own_id_and_restart_count_are_passed_on():
    environ = process_environment(
        {"HPCDDP_JOB_ID": "local-7", "HPCDDP_RESTART_COUNT": "2"},
        nodes=1,
        processes_per_node=1,
        global_rank=0,
    )
    assert (environ["HPCDDP_JOB_ID"], environ["HPCDDP_RESTART_COUNT"]) == ("local-7", "2")
