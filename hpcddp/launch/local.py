"""The local executor: run a job's script on this machine, detached, as often as it asks for.

It stands in for Slurm's controller; `hpcddp.launch.local_step` stands in for srun. submitit's own
local executor would not serve: it starts pickled functions, on one node, and not our script.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from hpcddp.cluster.scrub import inherited_names
from hpcddp.config.layout import EXIT_AGAIN
from hpcddp.launch.history import since_sent
from hpcddp.launch.supervisor import record_supervisor
from hpcddp.run_dir import RunDir


def submit_to_local(run_dir: RunDir) -> str:
    """Start the run's supervisor, detached from this terminal, and return its job id."""
    run_dir.batch_log.parent.mkdir(parents=True, exist_ok=True)
    inherited = inherited_names(os.environ, on_this_machine=True)
    environ = {name: value for name, value in os.environ.items() if name not in inherited}
    with run_dir.batch_log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "hpcddp.launch.local", "--run-dir", str(run_dir.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=environ,
        )
    return f"local-{process.pid}"


def supervise(run_dir: RunDir) -> int:
    """Run job.sbatch again as long as its last act asks for that by 75; returns its last code."""
    told_to_end = _end_all_on_sigterm(run_dir)
    record_supervisor(run_dir)
    environ = {**os.environ, "HPCDDP_JOB_ID": f"local-{os.getpid()}"}
    restart_count = 0
    while True:
        environ["HPCDDP_RESTART_COUNT"] = str(restart_count)
        with subprocess.Popen(["bash", str(run_dir.script)], env=environ) as script:
            if told_to_end:  # before this one was there to be ended with the others
                os.killpg(0, signal.SIGTERM)
        code = script.returncode
        if code != EXIT_AGAIN or told_to_end:
            return code
        restart_count += 1


def _end_all_on_sigterm(run_dir: RunDir) -> list[int]:
    """A plain `kill` of the job's number ends the run, as scancel would; `cancel` has recorded
    itself before it signals the whole group.
    """

    def end(signum: int, frame: FrameType | None) -> None:
        if told:  # by ourselves. SIG_IGN would do here, but what we start would inherit it
            return
        told.append(signum)
        with suppress(OSError):
            if all(event["event"] != "cancelled" for event in since_sent(run_dir.read_events())):
                run_dir.append_event("cancelled", by="SIGTERM to its supervisor")
        os.killpg(0, signal.SIGTERM)

    told: list[int] = []
    signal.signal(signal.SIGTERM, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # held while `submit` sent us
    return told


def main(words: Sequence[str] | None = None) -> int:
    """Entry of `python -m hpcddp.launch.local`."""
    parser = argparse.ArgumentParser(prog="hpcddp.launch.local")
    parser.add_argument("--run-dir", type=Path, required=True)
    return supervise(RunDir(parser.parse_args(words).run_dir))


if __name__ == "__main__":
    sys.exit(main())
