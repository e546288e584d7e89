"""From the start of the process to its first step: a run's first start, and its restart.

    python benchmarks/restart_time.py --folder FOLDER [--rounds 8] [key=value ...]

Each round is one new run of ResNet-50: started, stopped by SIGTERM after its first step, started
again from its checkpoint, stopped again. Prints one JSON document with the ratios of wall time and
of CPU time; the first round, which fills the file cache, is left out. The CPU time is that of the
whole process, the save at its end included.
"""

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
SETTINGS = (
    "train.model=resnet50",
    "train.model_options={}",
    "train.global_batch=8",
    "train.max_steps=1000000",
    "train.eval_every_epochs=null",
    "train.device=cpu",
    "data.name=synthetic",
    "data.synthetic_samples=400",
)
DEADLINE_S = 300


def first_steps(run_dir):
    """Unix times at which starts of the run had done their first step."""
    path = run_dir / "events.jsonl"
    records = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return [record["time"] for record in records if record["event"] == "first_step"]


def seconds_to_first_step(words, runs, run_dir):
    """Start, wait for one more first step, stop, and wait for the end; also its CPU seconds."""
    seen, cpu_begin = len(first_steps(run_dir)), cpu_of_children()
    command = [sys.executable, "-m", "hpcddp", "run", *words]
    environ = {**os.environ, "HPCDDP_RUNS_DIR": str(runs), "PYTHONPATH": str(ROOT)}
    begin = time.time()
    with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL) as process:
        while len(first_steps(run_dir)) == seen:
            if process.poll() is not None or time.time() - begin > DEADLINE_S:
                raise SystemExit(f"no first step: {command} ended with {process.poll()}")
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        code = process.wait(DEADLINE_S)
    if code != 75:
        raise SystemExit(f"{command} ended with {code}")
    return first_steps(run_dir)[-1] - begin, cpu_of_children() - cpu_begin


def cpu_of_children():
    """CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="on the file system to measure")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("settings", nargs="*")
    typed = parser.parse_args()
    pairs = []
    with tempfile.TemporaryDirectory(dir=typed.folder) as folder:
        for number in range(typed.rounds + 1):
            run_dir = Path(folder) / f"round{number}"
            fresh = ["--cluster", "local", "--name", run_dir.name, *SETTINGS, *typed.settings]
            cold = seconds_to_first_step(fresh, folder, run_dir)
            again = seconds_to_first_step(["--run-dir", str(run_dir)], folder, run_dir)
            pairs.append((cold, again))
    found = {"rounds": typed.rounds, "load_average": os.getloadavg()[0]}
    for place, name in enumerate(("wall", "cpu")):
        seconds = [(cold[place], again[place]) for cold, again in pairs[1:]]
        ratios = [again / cold for cold, again in seconds]
        found[name] = {
            "cold_s": round(statistics.median(cold for cold, _ in seconds), 2),
            "restart_s": round(statistics.median(again for _, again in seconds), 2),
            "restart_over_cold": round(statistics.median(ratios), 3),
            "all": [round(ratio, 3) for ratio in ratios],
        }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
