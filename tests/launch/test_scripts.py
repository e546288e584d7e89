"""`slurm/*.sbatch` are what the templates say, sound shell, and need few edits."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpcddp.launch import render
from hpcddp.launch.request import Request, resolve_request
from hpcddp.launch.scripts import SCRIPTS, main, plain_script

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "slurm").glob("*.sbatch"))
COMMAND = re.compile(r"^command=\(.*?\)$", re.M | re.S)
OURS = {"PWD", "OMP_NUM_THREADS", "PYTHONUTF8"}

each_script = pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)


def test_the_shipped_scripts_are_what_the_templates_say():
    """After a change that is meant: `python -m hpcddp.launch.scripts --overwrite slurm`."""
    assert {path.stem: path.read_text(encoding="utf-8") for path in SHIPPED} == {
        name: plain_script(name) for name in SCRIPTS
    }


@each_script
def test_bash_accepts_a_plain_script(path):
    assert subprocess.run(["bash", "-n", str(path)]).returncode == 0


def code_of(path):
    """The lines without comments."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("#"))


@each_script
def test_every_variable_is_slurm_s_or_set_above(path):
    code = code_of(path)
    read = set(re.findall(r"\$\{?(\w+)", code)) - {"0"}
    set_here = set(re.findall(r"^(?:export )?(\w+)=", code, re.M))
    foreign = {name for name in read if not name.startswith(("SLURM_", "SLURMD_"))}
    assert foreign <= set_here | OURS


@each_script
def test_no_variable_is_left_to_word_splitting(path):
    code = re.sub(r"'[^']*'", "''", code_of(path))  # that text is for another shell
    code = re.sub(r"^(\w+)=\$\S+$|^port=.*$", r"\1=", code, flags=re.M)  # no splitting there
    assert "$" not in re.sub(r'"[^"]*"', '""', code)


@each_script
def test_lines_fit_a_terminal_and_the_top_says_what_to_edit(path):
    text = path.read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 100
    about = text.split("#SBATCH --", 1)[0]
    assert text.startswith("#!/bin/bash\n# ")
    assert "Edit at most the #SBATCH lines and the one command" in about
    assert f"sbatch {path.name}" in about
    assert len(COMMAND.findall(text)) == 1


@each_script
def test_the_command_of_a_script_is_one_that_hpcddp_understands(path):
    [line] = COMMAND.findall(path.read_text(encoding="utf-8"))
    tell = f'{line}\nprintf "%s\\0" "${{command[@]}}"'
    environ = {"SLURM_JOB_NAME": "name", "SLURM_ARRAY_TASK_ID": "3", "PWD": "/here"}
    told = subprocess.run(["bash", "-c", tell], env=environ, capture_output=True, text=True)
    words = told.stdout.rstrip("\0").split("\0")
    verb, job, *options = words[words.index("hpcddp") + 1 :]
    assert verb == ("compare" if path.stem == "dp-against-ddp" else "run")
    assert options[:2] == ["--name", "name-3" if path.stem == "array" else "name"]
    resolved = resolve_request(
        Request(job=job, overrides=tuple(options[2:])), {"HPCDDP_CLUSTER": "local"}
    )
    assert resolved.config.optim.lr == (0.3 if path.stem == "array" else 0.05)


def test_a_macro_is_changed_for_submit_and_for_the_plain_scripts_alike(monkeypatch, tmp_path):
    slurm = tmp_path / "slurm"
    (slurm / "plain").mkdir(parents=True)
    for source in (ROOT / "slurm").rglob("*.j2"):
        text = source.read_text().replace("OMP_NUM_THREADS:-", "CHANGED:-")
        (slurm / source.relative_to(ROOT / "slurm")).write_text(text)
    assert sum("CHANGED:-" in path.read_text() for path in slurm.rglob("*.j2")) == 1
    monkeypatch.setattr(render, "shipped_dir", lambda _: slurm)
    changed = [name for name in SCRIPTS if "CHANGED:-" in plain_script(name)]
    assert changed == list(SCRIPTS)


def test_a_script_that_its_user_changed_is_not_overwritten(tmp_path, capsys):
    assert main([str(tmp_path / "new")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [f"{tmp_path / 'new' / name}.sbatch written" for name in SCRIPTS]
    ours, mine = (tmp_path / "new" / name for name in ("ddp.sbatch", "array.sbatch"))
    ours.unlink()
    mine.write_text("mine\n")
    assert main([str(tmp_path / "new")]) == 1
    out, err = capsys.readouterr()
    assert f"{mine} differs and was left as it is; --overwrite" in err
    assert f"{ours} written" in out
    assert out.count(" written\n") == 1
    assert f"{tmp_path / 'new' / 'torchrun.sbatch'} unchanged\n" in out
    assert str(mine) not in out
    assert mine.read_text() == "mine\n"
    assert ours.read_text() == plain_script("ddp")
    assert main([str(tmp_path / "new"), "--overwrite"]) == 0
    assert mine.read_text() == plain_script("array")


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    words = [sys.executable, "-m", "hpcddp.launch.scripts", str(tmp_path / "file")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: cannot write to {tmp_path}/file: ")
    assert "Traceback" not in done.stderr
