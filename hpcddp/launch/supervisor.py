"""The process that stands in for Slurm's controller in a local run: who it is, whether it lives.

Knows process ids and the run directory, not what the supervisor does.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcddp.errors import HpcddpError
from hpcddp.run_dir import RunDir, write_atomically

if TYPE_CHECKING:
    import psutil  # 25 ms to import; most status calls see no local run

STOP_GRACE_S = 30.0  # Slurm's default KillWait: what survives a cancel on a cluster does here too
_PAUSE_S = 0.02
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
    is_whole = isinstance(record, dict) and {"pid", "create_time", "host"} <= set(record)
    return record if is_whole else None


def supervisor_alive(run_dir: RunDir) -> bool | None:
    """True while the run's supervisor lives, or what it started and left behind when killed.

    None where only another host can tell.
    """
    record = read_supervisor(run_dir)
    if record is None:
        return False
    if record.get("host") != socket.gethostname():
        return None
    return bool(_leader_of(record) or _group_of(record))


def stop_supervisor(run_dir: RunDir, grace_s: float = STOP_GRACE_S) -> bool:
    """SIGTERM to the supervisor's group, SIGKILL to what is left after `grace_s`.

    Returns False if all of it had ended before. Raises HpcddpError when it runs on another host.
    """
    record = read_supervisor(run_dir) or {}
    if record and record.get("host") != socket.gethostname():
        raise HpcddpError(
            f"Run `{run_dir.name}` is supervised on host {record.get('host')}, and this is "
            f"{socket.gethostname()}. Cancel it there."
        )
    leader = _leader_of(record)
    processes = [*([leader] if leader else []), *_group_of(record)]
    _stop_all(processes, grace_s)
    return bool(processes)


def signal_step(run_dir: RunDir, signum: int) -> bool:
    """Signal the step of a local run, which passes it on to every rank; False if none runs."""
    import psutil

    supervisor = _leader_of(read_supervisor(run_dir) or {})
    for process in supervisor.children(recursive=True) if supervisor else []:
        with contextlib.suppress(psutil.NoSuchProcess):
            if "hpcddp.launch.local_step" in process.cmdline():
                process.send_signal(signum)
                return True
    return False


def _stop_all(processes: "Sequence[psutil.Process]", grace_s: float) -> None:
    """Stop the processes, and after the grace time also what they started in other groups."""
    import psutil

    everything = {*processes}
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            everything.update(process.children(recursive=True))
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    left = _wait_for_all(everything, grace_s)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _wait_for_all(left, grace_s)


def _wait_for_all(
    processes: "Iterable[psutil.Process]", timeout_s: float
) -> "list[psutil.Process]":
    """Those that live on after so long. What has ended counts so, even where it was not reaped, as
    below a container's first process that does not care for orphans.
    """
    deadline, left = time.monotonic() + timeout_s, [*filter(_is_living, processes)]
    while left and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
        left = [*filter(_is_living, left)]
    return left


def _leader_of(record: Mapping[str, Any]) -> "psutil.Process | None":
    """The recorded supervisor itself, while it lives."""
    import psutil

    with contextlib.suppress(KeyError, ValueError, psutil.NoSuchProcess):
        process = psutil.Process(record["pid"])
        return process if _is_recorded(process, record) and _is_living(process) else None
    return None


def _group_of(record: Mapping[str, Any]) -> "list[psutil.Process]":
    """The other living processes of the group that the supervisor leads, or led until its end.

    Linux gives a number to no new process while a group goes by it, so a group whose leader is
    gone is still the same one.
    """
    import psutil

    leader = record.get("pid", 0)
    processes = []
    for pid in psutil.pids() if _leads_a_group(record) else []:
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if pid != leader and os.getpgid(pid) == leader:
                processes.append(psutil.Process(pid))
    return [process for process in processes if _is_living(process)]


def _leads_a_group(record: Mapping[str, Any]) -> bool:
    """False where no group goes by the supervisor's number, or that of another process does."""
    import psutil

    leader = record.get("pid", 0)
    try:
        os.killpg(leader, 0)  # asks only
        return leader > 1 and _is_recorded(psutil.Process(leader), record)
    except psutil.NoSuchProcess:
        return leader > 1
    except OSError:
        return False


def _is_recorded(process: "psutil.Process", record: Mapping[str, Any]) -> bool:
    return abs(process.create_time() - record.get("create_time", 0.0)) < _SAME_START_S


def _is_living(process: "psutil.Process") -> bool:
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _record_path(run_dir: RunDir) -> Path:
    return run_dir.path / "supervisor.json"
