"""A place to submit from, a site, and a run whose job ends; unit tests only, without a Slurm."""

import os
from types import SimpleNamespace

import pytest
from last_act import ONE_STEP

from hpcddp.config.load import Layer, resolve
from hpcddp.config.write import config_text
from hpcddp.launch import order, requeue, stop_reason
from hpcddp.launch.request import Request, resolve_request
from hpcddp.launch.scheduler import JobInfo
from hpcddp.run_dir import RunDir


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


@pytest.fixture
def asked(workplace):
    """Resolve words for a profile of this text, with nodes and environment."""

    def resolve(text, *words, nodes=2, environ=None, **resources):
        folder = workplace / "configs" / "clusters"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "site.yaml").write_text(f"description: d\n{text}\n")
        resources |= {"nodes": nodes} if nodes else {}
        request = Request(cluster="site", resources=resources, overrides=words)
        return resolve_request(request, {"HOME": str(workplace), **(environ or {})})

    return resolve


@pytest.fixture
def slurm_says(monkeypatch):
    """What `scontrol show job` answers; a test may put another JobInfo first."""
    answers = [JobInfo("7", state="RUNNING", restarts=0)]
    monkeypatch.setattr(stop_reason, "show_job", lambda job_id: answers[0])
    monkeypatch.setattr(requeue, "send_anew", lambda *_: "no new job either")
    monkeypatch.setattr(requeue, "lack_of_tools", lambda: "")
    return answers


@pytest.fixture
def run_dir(tmp_path):
    """A training whose first attempt has started; other files have run directories of their own."""
    run_dir = RunDir(tmp_path)
    run_dir.config.write_text(config_text(resolve([Layer("test", ONE_STEP)])))
    run_dir.attempt_logs(0).mkdir(parents=True)
    run_dir.append_event("submitted")
    run_dir.append_event("started")
    return run_dir


@pytest.fixture
def naps(monkeypatch):
    """How often the last act has waited; what is in `calls` is then called once."""
    naps = SimpleNamespace(count=0, calls=[])

    def sleep(seconds):
        naps.count += 1
        if naps.calls:
            naps.calls.pop(0)()

    monkeypatch.setattr(order.time, "sleep", sleep)
    return naps


@pytest.fixture
def own_run(run_dir):
    """The same of a user's own program."""
    layer = Layer("test", {"train": {"max_steps": 1}, "command": ["./program"]})
    run_dir.config.write_text(config_text(resolve([layer])))
    return run_dir
