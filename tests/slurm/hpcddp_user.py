"""A user of the test cluster who types `hpcddp` commands. Knows no test."""

import json
import sys
import time
from pathlib import Path

from hpcddp.run_dir import RunDir

ROOT = Path(__file__).parents[2]
_PAUSE_S = 0.5  # each look starts a Python, which the job under test would have to wait for


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

    def wait_for(self, name, state, part="", timeout=60):
        """Wait until the run is in that state, with `part` in its reason; the status then."""
        seen = {}

        def problem():
            time.sleep(_PAUSE_S)
            seen.update(self.status(name))
            arrived = seen["state"] == state and part in seen["reason"]
            return "" if arrived else f"{seen['state']}: {seen['reason']}"

        self.cluster.wait_until(problem, timeout)
        return seen

    def wait_for_event(self, name, kind, count=1, timeout=60):
        """Wait until the run has recorded so many events of that kind; the newest of them."""

        def problem():
            seen = [event["event"] for event in self.events(name)]
            return "" if seen.count(kind) >= count else f"not {count} times {kind} in {seen}"

        self.cluster.wait_until(problem, timeout)
        return self.events(name, kind)[-1]
