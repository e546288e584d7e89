"""`hpcddp env`: one JSON document or one table, exit code 2 with the error's code, nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from hpcddp.cli.env import command
from hpcddp.cluster.layout import process_environment

ROOT = Path(__file__).parents[2]
TABLE = yaml.safe_load((ROOT / "tests" / "cases" / "layouts.yaml").read_text(encoding="utf-8"))
STEP = {**TABLE["bases"]["block_11_on_3"], "SLURM_PROCID": "4", "SLURM_NODEID": "1"}
KEYS = [
    "global_rank", "world_size", "local_rank", "local_world_size", "node_rank", "num_nodes",
    "hosts", "master_addr", "master_port", "device_index", "requeue_target", "launcher",
    "sources", "warnings",
]  # fmt: skip


@pytest.fixture
def ask(monkeypatch):
    """Run `env` in exactly this environment."""

    def run(environ, *words):
        for name in list(os.environ):
            if name.startswith(("SLURM_", "HPCDDP_", "CUDA_", "TORCHELASTIC_")):
                monkeypatch.delenv(name)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        return CliRunner().invoke(command, words)

    return run


def test_json_is_one_object_with_exactly_these_keys(ask):
    result = ask(STEP, "--json")
    record = json.loads(result.output)
    assert result.exit_code == 0
    assert list(record) == KEYS
    assert record["hosts"] == ["cn-7", "gpu-a001", "gpu-a002"]
    assert (record["global_rank"], record["node_rank"], record["launcher"]) == (4, 1, "slurm")
    assert record["sources"]["world_size"] == "SLURM_STEP_NUM_TASKS"


def test_the_table_shows_each_value_beside_its_source(ask):
    result = ask({**STEP, "MASTER_ADDR": "login01"})
    lines = result.output.splitlines()
    assert result.exit_code == 0
    assert [line.split()[0] for line in lines] == [*KEYS[:12], "warning:"]
    assert lines[1].split() == ["world_size", "11", "SLURM_STEP_NUM_TASKS"]
    assert len({line.index(line.split()[2]) for line in lines[:6]}) == 1
    assert "MASTER_ADDR=login01" in lines[-1]


def test_a_long_host_list_is_shortened_in_the_table_only(ask):
    hosts = {"SLURM_STEP_NODELIST": "n[1-9]", "SLURM_JOB_NODELIST": "n[1-9]",
             "SLURM_STEP_NUM_NODES": "9", "SLURM_STEP_TASKS_PER_NODE": "1(x9)",
             "SLURM_STEP_NUM_TASKS": "9"}  # fmt: skip
    assert "n1,n2,n3,n4 and 5 more" in ask({**STEP, **hosts}).output
    assert len(json.loads(ask({**STEP, **hosts}, "--json").output)["hosts"]) == 9


BROKEN = [case for case in TABLE["cases"] if case.get("error") and case.get("base")]


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case["id"])
def test_an_error_is_one_json_object_with_its_code(ask, case):
    environ = {**TABLE["bases"][case["base"]], **case.get("set", {})}
    result = ask({k: v for k, v in environ.items() if k not in case.get("unset", ())}, "--json")
    record = json.loads(result.output)
    assert result.exit_code == 2
    assert list(record) == ["error", "message"]
    assert record["error"] == case["error"]


def run_as_program(environ, *words):
    return subprocess.run(
        [sys.executable, "-m", "hpcddp", "env", *words],
        cwd=ROOT,
        env={"PATH": "/nowhere", **environ},
        capture_output=True,
        text=True,
    )


def test_an_error_for_people_is_one_sentence_on_stderr():
    result = run_as_program({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"})
    assert result.returncode == 2
    assert result.stdout == ""
    assert "srun --ntasks=4" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_program_prints_json_and_nothing_else():
    result = run_as_program({**STEP, "LANG": "C"}, "--json")
    assert result.returncode == 0
    assert result.stderr == ""
    assert json.loads(result.stdout)["global_rank"] == 4


PLACES = {
    "slurm": STEP,
    "torchrun": {
        "TORCHELASTIC_RUN_ID": "x", "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "gpu-a001", "MASTER_PORT": "29400",
    },
    "local": process_environment({}, nodes=2, processes_per_node=2, global_rank=3),
    "single": {},
}  # fmt: skip
FORBIDDING = """
import encodings.ascii, sys  # the codec would be imported when the file is read
from hpcddp.cli.env import command

def forbid(event, args):
    if event.startswith(("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn")):
        raise RuntimeError(event)
    if event == "open" and args[0] != "/proc/sys/net/ipv4/ip_local_port_range":
        raise RuntimeError(f"open {args[0]}")

sys.addaudithook(forbid)
code = command(["--json"], standalone_mode=False)
assert "torch" not in sys.modules
sys.exit(code)
"""


def ask_with_all_else_forbidden(environ):
    """With sockets, name look-ups, processes and all files but one forbidden."""
    return subprocess.run(
        [sys.executable, "-c", FORBIDDING], cwd=ROOT, env=environ, capture_output=True, text=True
    )


@pytest.mark.parametrize("launcher", PLACES)
def test_nothing_is_looked_up_no_file_read_and_no_program_started(launcher):
    result = ask_with_all_else_forbidden(PLACES[launcher])
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["launcher"] == launcher


def test_nothing_is_looked_up_either_where_the_answer_is_an_error():
    result = ask_with_all_else_forbidden({**STEP, "SLURM_STEP_NODELIST": "n[1-"})
    assert (result.returncode, result.stderr) == (2, "")
    assert json.loads(result.stdout)["error"] == "bad_hostlist"
