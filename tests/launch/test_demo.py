"""What `make demo` runs ends with the accuracy that the README promises."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEMO = "python -m hpcddp submit --nodes 2 --cluster local --follow"


def test_the_readme_names_the_command_of_make_demo():
    makefile, readme = ((ROOT / name).read_text() for name in ("Makefile", "README.md"))
    assert f"demo: $(VENV)/.demo\n\t$(BIN)/{DEMO}\n" in makefile
    assert f"`{DEMO}`" in readme


@pytest.mark.slow
def test_the_demo_reaches_97_percent(workplace):
    command = [sys.executable, *DEMO.split()[1:], "--name", "demo"]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    assert "Run demo finished: test accuracy" in done.stdout
    look = [sys.executable, "-m", "hpcddp", "status", "demo", "--json"]
    status = json.loads(subprocess.run(look, capture_output=True, text=True, check=True).stdout)
    assert status["accuracy"] >= 0.97
