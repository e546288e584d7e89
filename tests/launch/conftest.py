"""A place to submit from, with or without a pretended `sbatch`; unit tests only."""

import os

import pytest


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """An empty working folder whose runs stay inside it, and an environment without Slurm."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SBATCH_", "HPCDDP_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def fake_sbatch(workplace, monkeypatch):
    """An `sbatch` that keeps its arguments, script and environment, and answers job 4711.

    Nobody tells anything of that job.
    """
    program = workplace / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/bash\n"
        f'printf "%s\\n" "$@" > {workplace}/sbatch.args\n'
        f"env -0 > {workplace}/sbatch.env\n"
        "for last; do :; done\n"
        f'[ -f "$last" ] && cp "$last" {workplace}/sbatch.script\n'
        f'[ -e {workplace}/refuse ] && {{ echo "sbatch: error: Invalid account" >&2; exit 1; }}\n'
        "echo '4711;cluster'\n"
    )
    program.chmod(0o755)
    scontrol = program.with_name("scontrol")
    scontrol.write_text("#!/bin/sh\nexit 1\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return workplace
