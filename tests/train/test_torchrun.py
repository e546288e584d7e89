"""The same job under torchrun, whose agent keeps the store."""

import os
import subprocess
import sys
from pathlib import Path

from train_ranks import kinds_of

ROOT = Path(__file__).parents[2]
SETTINGS = (
    "train.model=shufflenet_v2_x0_5",
    "train.model_options.zero_init_residual=null",  # of the default experiment; for ResNets only
    "train.global_batch=8",
    "train.max_steps=2",
    "train.max_epochs=null",
    "train.device=cpu",
    "data.name=synthetic",
    "data.synthetic_samples=20",
)


def test_two_workers_of_torchrun_train_one_run(tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", "-m", "hpcddp", "run", "--name", "two", *SETTINGS),
        ],
        cwd=ROOT,
        env={**os.environ, "HPCDDP_RUNS_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "2 processes: max_steps 2" in done.stdout
    kinds = kinds_of(tmp_path / "two")
    assert kinds.count("started") == 1
    assert kinds[-1] == "finished"
