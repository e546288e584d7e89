"""A run without `submit`: started by the user's own srun or torchrun line, or as one process."""

import itertools
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcddp.cluster.detect import slurm_cluster_name
from hpcddp.cluster.layout import layout_from_environ
from hpcddp.cluster.profile import CLUSTER_VARIABLE
from hpcddp.config.layout import ProcessLayout
from hpcddp.config.write import config_text, read_config
from hpcddp.errors import ConfigError, HpcddpError
from hpcddp.launch.code import record_code
from hpcddp.launch.request import Request, ResolvedRequest, resolve_request
from hpcddp.launch.submission import check_run_name, create_folder
from hpcddp.run_dir import RunDir, runs_root, write_atomically

_WAIT_FOR_MAIN_S = 120.0  # shared file systems show a new file late
_POLL_S = 0.1


def open_run(
    request: Request, name: str | None, environ: Mapping[str, str]
) -> tuple[RunDir, Mapping[str, Any] | None]:
    """The run directory that every process of this start agrees on; the main process creates it.

    In the main process also what a `submitted` event has to tell of this start, None where Slurm
    has only started the same job again. Nothing is recorded here: the run may be in other hands.

    Raises ConfigError when the run exists with other settings, or never appears.
    """
    layout = layout_from_environ(environ)
    resolved = resolve_request(request, {CLUSTER_VARIABLE: "local", **environ})
    run_name = name or _name_for(resolved.job_name, layout, environ)
    if run_name:
        run_dir = RunDir(runs_root(environ) / check_run_name(run_name))
    else:
        run_dir = _new_run_dir(runs_root(environ), resolved.job_name)
    if layout.is_main:
        _create_or_check(run_dir, resolved)
        return run_dir, _submission(run_dir, resolved, layout, environ)
    _wait_for(run_dir)
    return run_dir, None


def _name_for(job_name: str, layout: ProcessLayout, environ: Mapping[str, str]) -> str:
    """A name that all processes derive alike and that a requeued job finds again; "" for one
    process that nobody will start again.
    """
    if layout.requeue_target:
        return f"{job_name}-{layout.requeue_target}"
    torchrun_id = environ.get("TORCHELASTIC_RUN_ID", "none")
    if torchrun_id != "none":
        return f"{job_name}-{torchrun_id}"
    if layout.world_size > 1:
        raise HpcddpError(
            f"{layout.world_size} processes need one name for their run, and torchrun was given no "
            "--rdzv-id. Add `--name RUN`."
        )
    return ""


def _new_run_dir(root: Path, job_name: str) -> RunDir:
    """A folder of its own for this process, named by the time."""
    name = check_run_name(f"{job_name}-{time.strftime('%Y%m%d-%H%M%S')}")
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(run_dir for run_dir in (RunDir(root / n) for n in names) if create_folder(run_dir))


def _create_or_check(run_dir: RunDir, resolved: ResolvedRequest) -> None:
    if run_dir.config.exists():
        if read_config(run_dir) != resolved.config:
            raise ConfigError(
                f"Run `{run_dir.name}` exists with other settings ({run_dir.config}). Use another "
                "--name, or the same settings."
            )
    else:
        run_dir.batch_log.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(run_dir.config, config_text(resolved.resolved))
        record_code(run_dir, Path.cwd())


def _submission(
    run_dir: RunDir,
    resolved: ResolvedRequest,
    layout: ProcessLayout,
    environ: Mapping[str, str],
) -> dict[str, Any] | None:
    job_id = layout.requeue_target or f"pid-{os.getpid()}"
    if (layout.restart_count or layout.elastic_restarts) and _was_sent_as(run_dir, job_id):
        return None  # Slurm or torchrun has started it again: nobody has sent the run anew
    return {
        "run": run_dir.name,
        # who can be asked about the job: of a torchrun inside a Slurm job that is Slurm
        "launcher": "slurm" if layout.requeue_target else layout.launcher,
        "job_id": job_id,
        "cluster": _cluster_name(resolved, layout, environ),
        "nodes": layout.num_nodes,
        "processes_per_node": layout.local_world_size,
    }


def _cluster_name(
    resolved: ResolvedRequest, layout: ProcessLayout, environ: Mapping[str, str]
) -> str:
    """The profile that was asked for; in a Slurm job without one, what Slurm calls the cluster."""
    profile = resolved.profile
    if profile.launcher == "local" and layout.requeue_target:
        told = slurm_cluster_name(environ)
        return told[0] if told else "slurm"
    return profile.name


def _was_sent_as(run_dir: RunDir, job_id: str) -> bool:
    newest = next((e for e in reversed(run_dir.read_events()) if e["event"] == "submitted"), {})
    return newest.get("job_id") == job_id


def _wait_for(run_dir: RunDir) -> None:
    deadline = time.monotonic() + _WAIT_FOR_MAIN_S
    while not run_dir.config.exists():
        if time.monotonic() > deadline:
            raise ConfigError(
                f"{run_dir.config} did not appear within {_WAIT_FOR_MAIN_S:.0f} s. Is "
                f"{run_dir.path.parent} on a file system that all nodes share? Set HPCDDP_RUNS_DIR."
            )
        time.sleep(_POLL_S)
