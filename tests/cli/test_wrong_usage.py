"""What people type by mistake ends in one sentence, never in a traceback or in another job."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcddp.cli import main

DIRECTIVES = "resources.sbatch"


@pytest.fixture
def hpcddp(tmp_path, monkeypatch, capfd):
    """Run the whole command line in an empty folder; the exit code and what was printed."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_", "HPCDDP_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["hpcddp", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, "".join(capfd.readouterr())

    return run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cluster", ""], "No cluster profile"),  # --cluster "$NOT_SET"
        ([""], "No job file ``"),
        (["folder"], "`folder` is a folder"),
        (["python", "mine.py"], "your own program comes after `--`"),
        (["mine.py"], "Your own program comes after the options and `--`: -- python mine.py"),
        (["python", "mine.py", "--epochs", "3"], "program comes after `--`, with its options"),
        (["x" * 300], "File name too long"),
        (["twice.yaml"], "key `seed` is given twice"),
        (["command=train.py"], "command needs a list of words"),
        (["command={a: b}"], "command needs a list of words"),
        (["command=[python, --lr, 1e-3]"], "command needs text, found 0.001"),
        (["train.model=???"], "stands for a value to fill in"),
        (["--", ""], "No program follows `--`"),
        (["--", "--help"], "`--help` follows `--`, where your own program comes"),
        (["--partition", ""], "partition is empty"),
        (["--partition", "a\nb"], "does not survive sbatch"),
        ([f"{DIRECTIVES}.comment=a\\b"], "does not survive sbatch"),
        ([f"{DIRECTIVES}.a b=5"], "`a b` is no long name of an option"),
        ([f"{DIRECTIVES}.--nodes=5"], "`--nodes` is no long name of an option"),
        ([f"{DIRECTIVES}.P=5"], "`P` is no long name of an option"),
        ([f"{DIRECTIVES}.mail_type=[END, FAIL]"], "needs one value"),
        (["resources.srun.mpi.y=5"], "needs one value"),
        (["--nodes", "-1"], "must be at least 1"),
        (["--nodes", "0"], "must be at least 1"),
        (["--nodes", "2", "train.replicas=dp"], "one node with one process"),
        (["resources.processes_per_node=2", "train.replicas=dp"], "one node with one process"),
        (["--name", "x" * 256], "has 256 bytes"),
        (["--name", "ü" * 128], "has 256 bytes"),
        (["--name", b"a\xff".decode(errors="surrogateescape")], "run name"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_mistake_is_refused_before_anything_is_written(hpcddp, words, said):
    Path("folder").mkdir()
    Path("mine.py").write_text("print('no YAML')\n")
    Path("twice.yaml").write_text("train:\n  seed: 1\n  seed: 2\n")
    options = [] if "--cluster" in words else ["--cluster", "generic-cpu"]
    code, output = hpcddp("submit", *options, *words)
    assert said in output
    assert code in (1, 2)
    assert not Path("runs").exists()


def test_a_mistyped_verb_is_answered_with_the_nearest_one(hpcddp):
    code, output = hpcddp("submti")
    assert (code, "Did you mean 'submit'?" in output) == (2, True)
    code, output = hpcddp("xyzzy")
    assert (code, "Did you mean" in output) == (2, False)


def test_a_home_that_does_not_exist_is_a_name_like_any_other(hpcddp, monkeypatch):
    monkeypatch.setenv("HPCDDP_RUNS_DIR", "~no-such-user/runs")
    assert hpcddp("status")[0] in (0, None)


@pytest.mark.parametrize("verb", ["submit", "status"])
def test_a_folder_that_was_deleted_under_the_user_is_named(verb, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    shell = f'rmdir "{gone}"; exec "{sys.executable}" -m hpcddp {verb}'
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "HPCDDP_RUNS_DIR": ""}
    environ["HPCDDP_CLUSTER"] = "local"
    done = subprocess.run(
        ["bash", "-c", shell], cwd=gone, env=environ, capture_output=True, text=True
    )
    assert "does not exist any more" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 1


def test_a_python_without_our_packages_is_sent_to_the_right_environment(tmp_path):
    blocked = tmp_path / "omegaconf.py"
    blocked.write_text(
        "raise ModuleNotFoundError(\"No module named 'omegaconf'\", name='omegaconf')"
    )
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    words = [sys.executable, "-m", "hpcddp", "submit", "--cluster", "local", "--dry-run"]
    done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "`omegaconf` is not installed" in done.stderr
    assert sys.executable in done.stderr
