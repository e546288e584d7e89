"""Send an ended run once more, in its own folder. What it continues from is decided on the node."""

import fcntl
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hpcddp.checkpoint_dir import CheckpointInfo, is_usable, list_checkpoints, read_manifest
from hpcddp.cluster.profile import load_profile
from hpcddp.config.identity import check_identity, check_unchanged, chosen_settings, identity_of
from hpcddp.config.load import command_line_layer
from hpcddp.config.write import config_text, read_config, read_resolved
from hpcddp.errors import HpcddpError
from hpcddp.launch.aside import forget_aside, keep_aside, put_back
from hpcddp.launch.history import read_history, since_submission
from hpcddp.launch.phrases import command_line
from hpcddp.launch.request import ResolvedRequest, world_size
from hpcddp.launch.submission import Submission, prepare_in, send_job
from hpcddp.launch.watch.status import RunStatus
from hpcddp.run_dir import RunDir, write_atomically

# Slurm starts the job once no other of its name and user is left. A job that nobody could be asked
# about may be alive, and two must never train one run.
_AFTER_OTHERS = ("--dependency=singleton",)
_STEPS = "train.max_steps=N"
# The signal may come when a save on the way has just begun, and the last one waits for it.
_SAVES_IN_LEAD = 2.0


def resume_run(
    run_dir: RunDir, status: RunStatus, overrides: Sequence[str], environ: Mapping[str, str]
) -> tuple[Submission, str]:
    """Render and send the run's job again; its settings stay, but for `overrides`.

    Returns what was sent and its job id. A run whose state nobody knows any more is sent too.

    Raises HpcddpError for a run that is still going on, finished with nothing changed, beyond its
    length, or given settings that its checkpoint does not allow, and SubmissionFailed when Slurm
    refuses: then nothing has changed.
    """
    _refuse_living(status)
    put_back(run_dir)  # of an earlier `resume` that was killed
    if not run_dir.script.exists():
        raise HpcddpError(
            f"Run `{run_dir.name}` was not sent by `submit`: it was started by a srun, torchrun or "
            "python line of your own. Type that line again, with the same --name, to go on."
        )
    if status.state == "finished" and not overrides:
        raise HpcddpError(f"Run `{run_dir.name}` is finished. {_what_next(run_dir)}")
    submission = _prepare_again(run_dir, overrides, environ)
    _refuse_what_the_job_would(submission)
    keep_aside(run_dir)
    try:
        if overrides:
            write_atomically(run_dir.config, config_text(submission.request.resolved))
        write_atomically(run_dir.script, submission.script)
        job_id = send_job(submission, *_AFTER_OTHERS)
    except BaseException as error:
        is_unrecorded = isinstance(error, HpcddpError)  # the job was sent
        if not is_unrecorded and not getattr(error, "maybe_sent", False):
            put_back(run_dir)
        raise
    finally:
        forget_aside(run_dir)
    return submission, job_id


@contextmanager
def alone(run_dir: RunDir) -> Iterator[None]:
    """Wait until no other `resume` of this run is between its look at the run and its sending."""
    with (run_dir.path / "resume.lock").open("a") as file:
        with suppress(OSError):  # a file system without locks: Slurm still starts one at a time
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def lead_warning(run_dir: RunDir, warn_before_s: int) -> str | None:
    """What to say when a step and the run's last save would not fit between the warning and the
    limit, as far as both were measured.
    """
    history = read_history(run_dir)
    saves = [event for event in history.events if event["event"] == "checkpoint"]
    save_s = saves[-1].get("seconds", 0.0) if saves else 0.0
    step_s = history.train.get("step_s", 0.0)
    needed_s = step_s + _SAVES_IN_LEAD * save_s
    if needed_s <= warn_before_s:
        return None
    return (
        f"Warning: the last save took {save_s:.0f} s and a step {step_s:.1f} s, and the warning "
        f"before the time limit comes "
        f"resources.warn_before_s={warn_before_s} s ahead. It must leave room for a step and a "
        f"save: resume with resources.warn_before_s={math.ceil(needed_s)}"
    )


def wait_warning(run_dir: RunDir) -> str | None:
    """What to say where the run is about to be sent without the wait that it was sent with."""
    events = since_submission(run_dir.read_events())
    before = next((event["afterok"] for event in events if "afterok" in event), None)
    if before is None or any(event["event"] == "launched" for event in events):
        return None
    return (
        f"Warning: run `{run_dir.name}` was sent with --afterok, to wait for job {before}; this "
        f"time it does not wait. Cancel it if it must: {command_line('cancel', run_dir.name)}"
    )


def _what_next(run_dir: RunDir) -> str:
    """What to type where a run has done all it was to do."""
    config = read_config(run_dir)
    if config.command:
        return "It ran a command: to run that again, send it under another --name."
    length = "train.max_epochs=N" if config.train.max_steps is None else _STEPS
    line = command_line("resume", run_dir.name, length)
    return f"To train further, change its length: {line}"


def _refuse_living(status: RunStatus) -> None:
    if not status.has_ended and status.state != "unknown":
        job = f"job {status.job_id}" if status.job_id else status.reason
        raise HpcddpError(
            f"Run `{status.run}` is {status.state} ({job}). Two jobs must never "
            f"train one run: wait for it, or cancel it first: {command_line('cancel', status.run)}"
        )


def _refuse_what_the_job_would(submission: Submission) -> None:
    """Raise now what the job would raise when it has found its newest checkpoint."""
    newest_first = reversed(list_checkpoints(submission.run_dir.checkpoints))
    newest = next((found for found in newest_first if is_usable(found.path)), None)
    if newest is not None:
        _refuse_fewer_steps(submission, newest)
        _refuse_other_settings(submission, newest.path)


def _refuse_other_settings(submission: Submission, checkpoint: Path) -> None:
    config, profile = submission.request.config, submission.request.profile
    extra = read_manifest(checkpoint).extra
    check_identity(checkpoint, extra, identity_of(config, submission.run_dir.name))
    if config.checkpoint.strict_fingerprint:
        there = {**extra.get("settings", {}), **extra.get("fingerprint", {})}
        here = {**chosen_settings(config), "world_size": world_size(config, profile)}
        known = sorted(here.keys() & there.keys())
        changed = {key: [there[key], here[key]] for key in known if there[key] != here[key]}
        check_unchanged(checkpoint, changed)


def _refuse_fewer_steps(submission: Submission, newest: CheckpointInfo) -> None:
    run_dir, asked = submission.run_dir, submission.request.config.train.max_steps
    if asked is None or newest.step <= asked:
        return
    raise HpcddpError(
        f"Run `{run_dir.name}` has done {newest.step} steps ({newest.path.name}), and "
        f"train.max_steps={asked} is less: there is nothing to train. The number counts all steps "
        f"from the run's first one, so N must be above {newest.step}: "
        f"{command_line('resume', run_dir.name, _STEPS)}"
    )


def _prepare_again(
    run_dir: RunDir, overrides: Sequence[str], environ: Mapping[str, str]
) -> Submission:
    resolved = read_resolved(run_dir, command_line_layer(overrides))
    profile = load_profile(resolved.config.cluster, environ, resolved.config.resources)
    return prepare_in(ResolvedRequest(resolved, profile, run_dir.name), run_dir, environ)
