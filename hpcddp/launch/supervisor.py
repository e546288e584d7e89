"""The process that stands in for Slurm's controller in a local run: who it is, whether it lives.

Knows process ids and the run directory, not what the supervisor does.
"""

import json
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcddp.errors import HpcddpError
from hpcddp.run_dir import RunDir, write_atomically

if TYPE_CHECKING:
    import psutil  # 25 ms to import; most status calls see no local run

STOP_GRACE_S = 30.0  # Slurm's default KillWait: what survives a cancel on a cluster does here too
_SAME_START_S = 2.0  # the kernel's boot time, from which psutil counts, moves with the clock


def record_supervisor(run_dir: RunDir) -> None:
    """Write supervisor.json: this process is the supervisor of the run."""
    import psutil

    record = {
        "pid": os.getpid(),
        "create_time": psutil.Process().create_time(),
        "host": socket.gethostname(),
    }
    write_atomically(_record_path(run_dir), json.dumps(record) + "\n")


def read_supervisor(run_dir: RunDir) -> dict[str, Any] | None:
    """The newest supervisor's pid, create_time and host, or None where none has started yet."""
    try:
        record = json.loads(_record_path(run_dir).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and "pid" in record else None


def supervisor_alive(run_dir: RunDir) -> bool | None:
    """True while the run's supervisor lives, None where only another host can tell."""
    record = read_supervisor(run_dir)
    if record is None:
        return False
    if record.get("host") != socket.gethostname():
        return None
    return _process_of(record) is not None


def stop_supervisor(run_dir: RunDir, grace_s: float = STOP_GRACE_S) -> bool:
    """SIGTERM to the supervisor's group, SIGKILL to what is left after `grace_s`.

    Returns False if it had ended before. Raises HpcddpError when it runs on another host.
    """
    record = read_supervisor(run_dir) or {}
    if record and record.get("host") != socket.gethostname():
        raise HpcddpError(
            f"Run `{run_dir.name}` is supervised on host {record.get('host')}, and this is "
            f"{socket.gethostname()}. Cancel it there."
        )
    supervisor = _process_of(record)
    if supervisor is None:
        return False
    _stop_all(supervisor, grace_s)
    return True


def _stop_all(supervisor: "psutil.Process", grace_s: float) -> None:
    """Stop a supervisor with everything it started, also what has left its process group."""
    import psutil

    processes = [supervisor, *supervisor.children(recursive=True)]
    if os.getpgid(supervisor.pid) == supervisor.pid:
        os.killpg(supervisor.pid, signal.SIGTERM)
    else:  # started in somebody else's group, which is not ours to signal
        supervisor.terminate()
    _, left = psutil.wait_procs(processes, timeout=grace_s)
    for process in left:
        process.kill()  # psutil checks that the pid is still the same process
    psutil.wait_procs(left, timeout=grace_s)


def _process_of(record: Mapping[str, Any]) -> "psutil.Process | None":
    """The living process that `record` describes; a zombie has ended."""
    import psutil

    try:
        process = psutil.Process(record["pid"])
        started_s = process.create_time()
        is_zombie = process.status() == psutil.STATUS_ZOMBIE
    except (KeyError, ValueError, psutil.Error):
        return None
    same = abs(started_s - record.get("create_time", 0)) < _SAME_START_S
    return process if same and not is_zombie else None


def _record_path(run_dir: RunDir) -> Path:
    return run_dir.path / "supervisor.json"
