"""What a wheel contains is listed in setup.cfg: every package, every shipped file."""

import configparser
import pkgutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHIPPED = ("configs", "jobs", "slurm")


def setup():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_every_package_is_listed():
    folders = {path.parent for path in (ROOT / "hpcddp").rglob("*.py")}
    packages = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    listed = set(setup()["options"]["packages"].split())
    assert listed == packages | {f"hpcddp.shipped.{name}" for name in SHIPPED}


def test_the_script_that_pip_installs_is_the_command_line():
    name, target = setup()["options.entry_points"]["console_scripts"].strip().split(" = ")
    assert (name, callable(pkgutil.resolve_name(target))) == ("hpcddp", True)
    module, function = target.split(":")
    call = f"import sys; from {module} import {function}; sys.exit({function}())"
    words = [sys.executable, "-c", call, "status", "--no-such-option"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "--no-such-option" in done.stderr


def test_every_shipped_file_is_listed():
    data = setup()["options.package_data"]
    for name in SHIPPED:
        folder = ROOT / name
        listed = {
            path
            for pattern in data[f"hpcddp.shipped.{name}"].split(",")
            for path in folder.glob(pattern.strip())
        }
        files = {path for path in folder.rglob("*") if path.is_file()}
        assert {path for path in files if "__pycache__" not in path.parts} <= listed
