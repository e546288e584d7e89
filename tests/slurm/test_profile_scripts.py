"""Slurm's own parser reads the scripts of all shipped profiles.

Names that only the real cluster knows (partitions, accounts, features, types of GPU) are taken
out; everything else must be an option that sbatch knows, with a value it takes and a size that
fits a node of that shape. So must the options of srun, but for two that need a newer Slurm or a
library. What only a variant adds (`segment`, `module`, `auto-resume`) this Slurm does not have.
"""

import re
import shlex
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "launch/golden/profiles").glob("*.sbatch"))
ONLY_THERE = re.compile(r"^#SBATCH --(partition|account|qos|constraint|reservation)=.*\n", re.M)
GPU_TYPE = re.compile(
    r"^(#SBATCH --(?:gres=gpu|gpus-per-node|gpus|gpus-per-task)[:=])[a-z]\w*:", re.M
)


STEP = re.compile(r"^srun (--kill-on-bad-exit.*) \\$", re.M)
NOT_HERE = {"--mpi=pmix", "--gres-flags=allow-task-sharing"}
STEPS = sorted({options for path in SCRIPTS for options in STEP.findall(path.read_text())})


@pytest.fixture(scope="module")
def large_nodes(new_cluster):
    """Nodes as large as any that a profile describes."""
    sizes = ["--nodes", "2", "--cpus", "288", "--gpus", "8", "--memory", "2000000"]
    return new_cluster("sites", *sizes)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_sbatch_takes_the_script_of_every_profile(large_nodes, script):
    text = GPU_TYPE.sub(r"\1", ONLY_THERE.sub("", script.read_text(encoding="utf-8")))
    text = re.sub(r"^#SBATCH --(chdir|output)=.*\n", "", text, flags=re.M)
    answer = large_nodes.run(["sbatch", "--test-only"], input=text)
    assert answer.returncode == 0, answer.stderr
    assert " to start at " in answer.stderr


@pytest.mark.parametrize("options", STEPS)
def test_srun_takes_the_options_of_every_profile(large_nodes, options):
    words = [word for word in shlex.split(options) if word not in NOT_HERE]
    answer = large_nodes.run(["srun", "--test-only", "--nodes=1", "--ntasks=1", *words, "true"])
    assert answer.returncode == 0, answer.stderr
    assert " to start at " in answer.stderr


def test_what_srun_does_not_know_is_noticed(large_nodes):
    assert any("--gpu-bind=closest" in options for options in STEPS)
    assert large_nodes.run(["srun", "--test-only", "-n1", "--gpu-bindd=none", "true"]).returncode


def test_what_sbatch_does_not_know_is_noticed(large_nodes):
    answer = large_nodes.run(["sbatch", "--test-only", "--gpuz=1"], input=SCRIPTS[0].read_text())
    assert answer.returncode != 0
