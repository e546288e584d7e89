"""What `make demo` runs ends with the accuracy that the README promises."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcddp.run_dir import RunDir

ROOT = Path(__file__).parents[2]
DEMO = "python -m hpcddp submit --nodes 2 --cluster local --follow"
COMMANDS = ["make demo", "make test"]


def test_the_readme_names_the_command_of_make_demo():
    makefile, readme = ((ROOT / name).read_text() for name in ("Makefile", "README.md"))
    assert f"demo: $(VENV)/.demo\n\t$(BIN)/{DEMO}\n" in makefile
    assert f"`{DEMO}`" in readme


def test_the_readme_begins_with_the_two_commands():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = readme.split("```")[1]
    assert [line.partition("#")[0].strip() for line in block.strip().splitlines()] == COMMANDS


def test_the_check_of_everything_is_the_command_of_the_readme_and_lint():
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line and line[0] != "#"][-2:] == ["make test", "make lint"]


@pytest.mark.slow
def test_the_demo_reaches_97_percent(workplace):
    command = [sys.executable, *DEMO.split()[1:], "--name", "demo"]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    assert "Run demo finished: test accuracy" in done.stdout
    events = RunDir(workplace / "runs" / "demo").read_events()
    [started] = [event for event in events if event["event"] == "started"]
    assert (started["world_size"], len(set(started["hosts"]))) == (2, 2)
    look = [sys.executable, "-m", "hpcddp", "status", "demo", "--json"]
    status = json.loads(subprocess.run(look, capture_output=True, text=True, check=True).stdout)
    assert status["accuracy"] >= 0.97
