"""One torchrun per node: where its processes meet, where they write, and which code they leave."""

import datetime
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcddp.cluster.profile import load_profile
from hpcddp.config.load import Layer, command_line_layer, resolve
from hpcddp.config.write import config_text
from hpcddp.errors import ConfigError, HpcddpError
from hpcddp.launch import torchrun_node
from hpcddp.launch.explain import explain
from hpcddp.launch.place import Place
from hpcddp.launch.request import Request, resolve_request
from hpcddp.launch.step import launch_line
from hpcddp.launch.torchrun_node import torchrun_words
from hpcddp.run_dir import RunDir

JOB = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "gpu[07-08]", "SLURM_NODEID": "1"}


def words_of(environ, tmp_path, **more):
    more = {"resolve": {"gpu07": ("10.0.0.7",), "gpu07i": ("10.1.0.7",)}.get, **more}
    return torchrun_words(
        environ, processes_per_node=4, logs=tmp_path, command=["python", "x.py"], **more
    )


def test_all_nodes_derive_one_meeting_place_and_their_own_rank(tmp_path):
    first = words_of({**JOB, "SLURM_NODEID": "0"}, tmp_path)
    second = words_of({**JOB, "SLURM_STEP_ID": "5"}, tmp_path)
    assert [word for word in first if word not in second] == ["--node-rank=0"]
    assert {"--nnodes=2", "--nproc-per-node=4", "--master-addr=gpu07"} <= set(first)


def test_a_requeued_job_meets_elsewhere(tmp_path):
    again = words_of({**JOB, "SLURM_RESTART_COUNT": "1"}, tmp_path)
    ports = {word for word in [*again, *words_of(JOB, tmp_path)] if "master-port" in word}
    assert len(ports) == 2


def test_the_name_on_the_fast_network_and_the_rank_of_mpirun_count(tmp_path):
    environ = {**JOB, "HPCDDP_HOST_SUFFIX": "i", "PMI_RANK": "0"}
    words = words_of(environ, tmp_path, node_rank_variable="PMI_RANK")
    assert {"--node-rank=0", "--master-addr=gpu07i"} <= set(words)


def test_a_name_on_the_fast_network_that_does_not_resolve_is_left(tmp_path):
    words = words_of({**JOB, "HPCDDP_HOST_SUFFIX": "-ib0"}, tmp_path)
    assert "--master-addr=gpu07" in words


@pytest.mark.parametrize("missing", ["SLURM_JOB_NODELIST", "SLURM_NODEID"])
def test_what_is_missing_is_named(missing, tmp_path):
    with pytest.raises(HpcddpError, match=missing):
        words_of({key: value for key, value in JOB.items() if key != missing}, tmp_path)


def test_words_of_the_profile_reach_a_torchrun_that_knows_them(tmp_path, monkeypatch, capsys):
    from torch.distributed import run as torchrun

    given = []
    monkeypatch.setattr(torchrun, "run", given.append)
    monkeypatch.setattr(torchrun_node.signal, "signal", lambda *words: None)
    for name, value in {**JOB, "HPCDDP_MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    further = ["--role=site", "--max-restarts=7", "--no-such-word=1", "--log=no-whole-name"]
    words = ["--processes-per-node=2", f"--logs={tmp_path}", f"--run-dir={tmp_path}"]
    assert torchrun_node.main([*words, *(f"--torchrun-arg={word}" for word in further)]) == 0
    assert (given[0].role, given[0].max_restarts) == ("site", 0)
    said = capsys.readouterr().err
    assert said.count("does not know") == 2
    assert "--no-such-word=1: left out" in said


def test_a_torchrun_without_a_choice_of_signals_is_started_without_a_word(monkeypatch, capsys):
    from torch.distributed import run as torchrun

    ours, given = "--signals-to-handle=SIGINT", []
    default = torchrun.get_args_parser().parse_args(["x.py"])
    known = hasattr(default, "signals_to_handle")  # not in older versions
    monkeypatch.setattr(torchrun, "run", given.append)
    monkeypatch.setattr(torchrun_node.signal, "signal", lambda *words: None)
    assert torchrun_node.run_torchrun(["x.py"]) == 0
    monkeypatch.setattr(torchrun_node, "_knows", lambda parser, word: word != ours)
    assert torchrun_node.run_torchrun(["x.py"]) == 0
    assert [one == default for one in given] == [not known, True]
    assert capsys.readouterr().err == ""


def test_the_script_hands_on_the_words_of_the_profile_and_explain_shows_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs/clusters").mkdir(parents=True)
    profile = tmp_path / "configs/clusters/site.yaml"
    text = "description: d\nlaunch: torchrun\nnode: {gpus: 2}\ntorchrun_args: [{}]\n"
    profile.write_text(text.replace("{}", "'--a=b c'"))
    asked = resolve_request(Request(cluster="site"), {"HOME": str(tmp_path)})
    place = Place(RunDir(tmp_path), "py", tmp_path)
    words = shlex.split(launch_line(asked.config.resources, asked.profile, 2, place))
    assert "--torchrun-arg=--a=b c" in words
    rows = explain(asked, {}, datetime.date(2026, 11, 30)).launch
    assert [row.name for row in rows][1:] == ["torchrun --a=b c"]
    profile.write_text(text.replace("{}", "--a, b"))
    with pytest.raises(ConfigError, match="`b`: write --name"):
        load_profile("site", {"HOME": str(tmp_path)})


def start(tmp_path, shell):
    """The module on one pretended node with two processes that run a line of shell."""
    resolved = resolve([Layer("test", {"command": ["bash", "-c", shell]}), command_line_layer([])])
    (tmp_path / "config.yaml").write_text(config_text(resolved))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "HPCDDP_"))}
    environ = {
        "SLURM_JOB_ID": str(os.getpid()),  # so that nobody else has its port
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_NODEID": "0",
        "HPCDDP_DEVICE": "cpu",
    }
    words = ["--processes-per-node", "2", "--logs", str(tmp_path), "--run-dir", str(tmp_path)]
    return subprocess.Popen(
        [sys.executable, "-m", "hpcddp.launch.torchrun_node", *words], env={**kept, **environ}
    )


def test_every_process_has_its_ranks_and_its_own_log(tmp_path):
    shell = 'echo "$RANK of $WORLD_SIZE, local $LOCAL_RANK"'
    assert start(tmp_path, shell).wait(120) == 0
    for rank in (0, 1):
        said = (tmp_path / f"rank-000{rank}.log").read_text()
        assert f"{rank} of 2, local {rank}" in said


def stop(tmp_path, name, then):
    """The exit code where both processes run `then` when told to stop."""
    loop = f'touch "{tmp_path}/ready-$RANK"; while :; do sleep 0.1; done'
    process, deadline = start(tmp_path, f'trap "{then}" {name}; {loop}'), time.monotonic() + 120
    try:
        while not all((tmp_path / f"ready-{rank}").exists() for rank in (0, 1)):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.Signals[f"SIG{name}"])
        return process.wait(120)
    finally:
        process.kill()


@pytest.mark.parametrize("name", ["TERM", "USR1", "USR2"])
def test_a_stop_signal_reaches_the_processes_and_their_exit_code_is_kept(tmp_path, name):
    assert stop(tmp_path, name, "exit 75") == 75


@pytest.mark.slow
def test_torchrun_does_not_kill_processes_that_save_for_longer_than_its_own_patience(tmp_path):
    assert stop(tmp_path, "TERM", f"sleep 35; touch {tmp_path}/saved-$RANK; exit 75") == 75
    assert all((tmp_path / f"saved-{rank}").exists() for rank in (0, 1))


def test_the_script_starts_one_task_per_node_with_all_cores():
    profile = load_profile("roihu", {"HOME": "/nowhere"})
    object.__setattr__(profile, "launch", "torchrun")
    place = Place(RunDir(Path("/r")), "/python", Path("/r"))
    resources = resolve([profile.layer, Layer("t", {"train": {"max_steps": 1}})]).config.resources
    line = launch_line(resources, profile, 4, place)
    assert "--ntasks-per-node=1 --cpus-per-task=288" in line
    assert "hpcddp.launch.torchrun_node --processes-per-node 4" in line
