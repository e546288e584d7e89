"""Create a run directory and send its job. The order matters: a crash leaves no unknown job."""

import dataclasses
import itertools
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hpcddp.cluster.options import check_text
from hpcddp.config.layout import EXIT_FAILED
from hpcddp.config.write import config_text
from hpcddp.errors import ConfigError, HpcddpError, SubmissionFailed
from hpcddp.launch.advice import advice
from hpcddp.launch.code import record_code
from hpcddp.launch.explain import exported_warnings
from hpcddp.launch.missing import missing_here
from hpcddp.launch.phrases import command_line
from hpcddp.launch.place import Place
from hpcddp.launch.render import option_warnings, render_script
from hpcddp.launch.request import ResolvedRequest, check_sizes, processes_per_node
from hpcddp.run_dir import RunDir, runs_root, write_atomically

_LONGEST_NAME = 255  # bytes; what Linux file systems allow


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that is ready to be sent, or was: `script` is the exact text, `warnings` are sentences
    for whoever sends it. `renamed` gives the same under another name, where the name is not the
    user's own and so may give way.
    """

    request: ResolvedRequest
    run_dir: RunDir
    script: str
    warnings: tuple[str, ...]
    renamed: "Callable[[str], Submission] | None" = None


def prepare(
    request: ResolvedRequest,
    name: str | None,
    environ: Mapping[str, str],
    *,
    may_rename: bool = False,
) -> Submission:
    """Choose the run's folder and render its script; writes nothing.

    `may_rename` where the user has not chosen `name`, as where it is None.
    Raises HpcddpError for sizes that do not fit each other and options Slurm would refuse.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    run_dir = RunDir(runs_root(environ) / check_run_name(name or f"{request.job_name}-{stamp}"))
    submission = prepare_in(request, run_dir, environ)
    if name and not may_rename:
        return submission
    return dataclasses.replace(submission, renamed=lambda other: prepare(request, other, environ))


def prepare_in(request: ResolvedRequest, run_dir: RunDir, environ: Mapping[str, str]) -> Submission:
    """Like `prepare`, in this folder: rendered for this python and the working directory."""
    check_sizes(request.config, request.profile)
    place = Place(run_dir, python=sys.executable, work_dir=Path.cwd())
    script = render_script(request.config, request.profile, place)
    warnings = (
        *option_warnings(request.config, request.profile, place, environ),
        *missing_here(request, run_dir.path.parent, environ),
        *exported_warnings(request.profile, environ),
    )
    return Submission(request, run_dir, script, warnings)


def send(submission: Submission, *options: str) -> tuple[Submission, str]:
    """Write the run directory, hand the job over with these options, and return what was sent (a
    name that nobody chose gives way to one that is free) and its job id.

    Raises ConfigError when the run exists already, SubmissionFailed when Slurm refuses: then
    nothing is left of the run, unless Slurm may have taken its job.
    """
    written = write_run_dir(submission)
    try:
        return written, send_job(written, *options)
    except SubmissionFailed as error:
        if error.maybe_sent:
            raise
        shutil.rmtree(written.run_dir.path, ignore_errors=True)
        more = advice(str(error))
        raise SubmissionFailed(f"{error}. {more}" if more else str(error)) from None


def send_job(submission: Submission, *options: str) -> str:
    """Hand over a job whose run directory is written, and record it. Raises SubmissionFailed.

    `options` are further ones of sbatch, for this time only; what the script asks for wins.
    """
    run_dir = submission.run_dir
    try:
        with _interrupts_held():  # a job that was taken and not recorded would be lost
            job_id = _send_to(submission, options)
            _record_sent(submission, job_id, _waits_for(options))
    except SubmissionFailed as error:
        if not error.maybe_sent:
            raise  # the run is what it was
        try:
            _record_no_answer(submission, error)
        except OSError as problem:
            words = f"{error}. And {run_dir.events} cannot be written: {problem.strerror}"
            raise SubmissionFailed(words, maybe_sent=True) from None
        raise
    return job_id


def _record_no_answer(submission: Submission, error: SubmissionFailed) -> None:
    _record_submission(submission)  # the job's own events will tell its id
    reason = f"not submitted: {error}"
    submission.run_dir.append_event("failed", reason=reason, exit_code=EXIT_FAILED)


def _waits_for(options: Sequence[str]) -> dict[str, str]:
    """A field of the event that names the job before this one, for who resumes the run."""
    before = "".join(word.partition("=afterok:")[2] for word in options)
    return {"afterok": before} if before else {}


def _record_sent(submission: Submission, job_id: str, waits_for: Mapping[str, str]) -> None:
    try:
        _record_submission(submission, job_id=job_id, **waits_for)
    except OSError as error:
        raise HpcddpError(
            f"Job {job_id} was sent, but {submission.run_dir.events} cannot be written: "
            f"{error.strerror}. Nothing here will know the job: make room and cancel it (scancel "
            f"{job_id}), or look after it by its number."
        ) from None


def _record_submission(submission: Submission, **job: str) -> None:
    config, profile = submission.request.config, submission.request.profile
    submission.run_dir.append_event(
        "submitted",
        run=submission.run_dir.name,
        launcher=profile.launcher,
        **job,
        cluster=profile.name,
        nodes=config.resources.nodes,
        processes_per_node=processes_per_node(config, profile),
    )


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C takes effect at the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def write_run_dir(submission: Submission) -> Submission:
    """Create the folder with config.yaml, code.json and job.sbatch; returns what lies in it, which
    has the next free name where `submission` may be renamed.
    """
    submission = _take_folder(submission)
    run_dir = submission.run_dir
    try:
        run_dir.batch_log.parent.mkdir()
        write_atomically(run_dir.config, config_text(submission.request.resolved))
        write_atomically(run_dir.script, submission.script)
        record_code(run_dir, Path.cwd())
    except OSError as error:
        shutil.rmtree(run_dir.path, ignore_errors=True)  # half a run would only occupy the name
        raise ConfigError(f"Cannot write to {run_dir.path}: {error.strerror}.") from None
    return submission


def _take_folder(submission: Submission) -> Submission:
    """The submission whose folder was created here: `name`, else `name-2`, `name-3` and so on."""
    taken, name = submission, submission.run_dir.name
    for number in itertools.count(2):
        if create_folder(taken.run_dir):
            return taken
        if submission.renamed is None:
            break
        taken = submission.renamed(f"{name}-{number}")
    raise ConfigError(
        f"Run `{name}` exists already in {submission.run_dir.path.parent}. Use another --name, or "
        f"go on with it: {command_line('resume', name)}"
    )


def create_folder(run_dir: RunDir) -> bool:
    """Create the run's folder; False where it is there, so that of two who try only one has it."""
    try:
        run_dir.path.mkdir(parents=True)
    except FileExistsError:
        return False
    except OSError as error:
        raise ConfigError(
            f"Cannot create {run_dir.path}: {error.strerror}. Set HPCDDP_RUNS_DIR to a folder on "
            "the shared file system that you can write to."
        ) from None
    return True


def check_run_name(name: str) -> str:
    """A run name is one folder name; returns it. Raises HpcddpError with the reason otherwise."""
    check_text(name, "run name")
    if not name.strip() or name.startswith((".", "-")) or "/" in name:
        raise ConfigError(
            f"Run name {name!r} is not usable: it becomes a folder name, so it must not be blank, "
            "hold a `/`, or start with `.` or `-`. Use another --name."
        )
    size = len(os.fsencode(name))
    if size > _LONGEST_NAME:
        raise ConfigError(
            f"Run name `{name[:20]}...` has {size} bytes, and a folder name may have "
            f"{_LONGEST_NAME}. Use a shorter --name."
        )
    return name


def _send_to(submission: Submission, options: tuple[str, ...]) -> str:
    if submission.request.profile.launcher == "local":
        from hpcddp.launch.local import submit_to_local

        return submit_to_local(submission.run_dir)
    if not shutil.which("sbatch"):
        raise SubmissionFailed(
            "no `sbatch` on PATH. Type this on a login node, or train here: --cluster local"
        )
    from hpcddp.launch.slurm import submit_to_slurm  # submitit takes 0.2 s to import

    own = [word for word in options if f"\n#SBATCH {word.split('=')[0]}=" not in submission.script]
    return submit_to_slurm(submission.run_dir, *own)
