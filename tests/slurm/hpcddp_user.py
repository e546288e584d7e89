"""A user of the test cluster who types `hpcddp` commands. Knows no test."""

import json
import sys
import textwrap
import time
from pathlib import Path

from hpcddp.run_dir import RunDir, read_json_lines

ROOT = Path(__file__).parents[2]
# The least that is a training: one step of a small model.
SMALLEST = (
    "train.model=shufflenet_v2_x0_5", "train.model_options.zero_init_residual=null",
    "train.global_batch=4", "train.max_steps=1", "train.max_epochs=null", "data.name=synthetic",
    "data.synthetic_samples=8", "train.eval_every_epochs=null",
)  # fmt: skip
# Accepts whoever comes, and says nothing.
_STRANGER = """#!{python}
import socket, time
with socket.create_server(("", {port})):
    print("listens", flush=True)
    time.sleep(600)
"""
_IS_RANK = "'SLURM_PROCID' in env and 'run' in sys.orig_argv[1:5]"
_PAUSE_S = 0.5  # each look starts a Python, which the job under test would have to wait for


def losses(run_dir):
    """The loss of each step; of a step that was done again, the last one."""
    return {r["step"]: r["loss"] for r in read_json_lines(run_dir.metrics) if "loss" in r}


def processes_of(cluster, job_id):
    """Global rank and process id of a job's ranks.

    All nodes share this machine's processes, and so do other test clusters with their own job 2.
    """
    wanted = {f"SLURM_JOB_ID={job_id}".encode(), f"SLURM_CONF={cluster.conf}".encode()}
    for entry in Path("/proc").iterdir():
        try:
            environ = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
            command = (entry / "cmdline").read_bytes().split(b"\0") if environ else []
        except OSError:
            continue
        pairs = dict(item.split(b"=", 1) for item in environ if b"=" in item)
        is_rank = b"run" in command and b"srun" not in command[0] and b"SLURM_STEP_ID" in pairs
        if is_rank and wanted <= set(environ):
            yield int(pairs[b"SLURM_PROCID"]), int(entry.name)


def take_port(cluster, node, port):
    """Let a stranger listen on a node's port until the test is over."""
    stranger = _STRANGER.format(python=sys.executable, port=port)
    cluster.wait_for_output(cluster.sbatch(stranger, "-w", node), "listens", 1)


class Hpcddp:
    """Runs `hpcddp` as a user of the cluster would."""

    def __init__(self, cluster, runs):
        self.cluster, self.runs = cluster, runs
        self.python, self.work_dir = sys.executable, ROOT
        self.env = cluster.env | {"HPCDDP_RUNS_DIR": str(runs), "OMP_NUM_THREADS": "1"}

    def __call__(self, *words, **options):
        command = [self.python, "-m", "hpcddp", *words]
        return self.cluster.run(command, **({"env": self.env, "cwd": self.work_dir} | options))

    def submit(self, name, *words, command=(), nodes=2):
        """Send a run, training or the user's own command, to the test cluster; its job id."""
        options = ["--name", name, "--cluster", "testcluster", "--nodes", str(nodes)]
        done = self("submit", *options, *words, *(["--", *command] if command else []))
        assert done.returncode == 0, done.stderr
        return self.status(name)["job_id"]

    def begin_pythons_with(self, folder, lines, test=_IS_RANK):
        """Let each Python of a job for which the expression `test` holds run `lines` first of all.

        Both may use `os`, `sys`, `time` and the environment `env`.
        """
        folder.mkdir()
        imports = "import os, sys, time\nfrom os import environ as env\n"
        body = textwrap.indent(textwrap.dedent(lines), "    ")
        (folder / "sitecustomize.py").write_text(f"{imports}if {test}:\n{body}\n")
        self.env["PYTHONPATH"] = f"{folder}:{self.env.get('PYTHONPATH', '')}"

    def replace_tool(self, folder, tool, lines):
        """Let jobs that are sent from now on run these lines of bash for a tool of Slurm's; there
        PATH has the real one. Whoever sends them has that as well.
        """
        path = folder / "tools" / tool
        path.parent.mkdir()
        real = f'PATH="${{PATH#*:}}"\n[ -n "$SLURM_JOB_ID" ] || exec {tool} "$@"'
        path.write_text(f"#!/bin/bash\n{real}\n{lines}\n")
        path.chmod(0o755)
        self.env["PATH"] = f"{path.parent}:{self.env['PATH']}"

    def status(self, name):
        done = self("status", name, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def run_dir(self, name):
        return RunDir(self.runs / name)

    def events(self, name, kind=None):
        lines = (self.runs / name / "events.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        return [event for event in events if kind in (None, event["event"])]

    def wait_for(self, name, state, part="", timeout=120):
        """Wait until the run is in that state, with `part` in its reason; the status then."""
        seen = {}

        def problem():
            time.sleep(_PAUSE_S)
            seen.update(self.status(name))
            arrived = seen["state"] == state and part in seen["reason"]
            return "" if arrived else f"{seen['state']}: {seen['reason']}"

        self.cluster.wait_until(problem, timeout)
        return seen

    def wait_for_event(self, name, kind, count=1, timeout=120):
        """Wait until the run has recorded so many events of that kind; the newest of them."""

        def problem():
            seen = [event["event"] for event in self.events(name)]
            return "" if seen.count(kind) >= count else f"not {count} times {kind} in {seen}"

        self.cluster.wait_until(problem, timeout)
        return self.events(name, kind)[-1]

    def wait_for_step(self, name, step, timeout=400):
        """Wait until a run has done `step` steps."""

        def problem():
            seen = max(losses(self.run_dir(name)), default=0)
            return "" if seen >= step else f"{name} is at step {seen}"

        self.cluster.wait_until(problem, timeout)

    def pid_of_rank(self, job_id, global_rank):
        found = dict(processes_of(self.cluster, job_id))
        assert global_rank in found, f"no process of rank {global_rank} of job {job_id}: {found}"
        return found[global_rank]
