"""Send a rendered script to Slurm through submitit. Knows no configuration and no training.

submitit writes the file, calls sbatch and reads the job id; the text and the environment are
ours. Its own batch text has no --cpus-per-task and --kill-on-bad-exit for srun, sends
--wckey=submitit and loses srun's exit code when something follows; its signal handler ignores
SIGTERM. So what runs on the nodes is `hpcddp run`, not a pickle.
"""

import contextlib
import io
import os
import re
import shlex
from pathlib import Path

from submitit.core.core import PicklingExecutor
from submitit.core.utils import FailedJobError
from submitit.slurm.slurm import SlurmExecutor

from hpcddp.errors import SubmissionFailed
from hpcddp.launch.sbatch import last_words, sbatch_words
from hpcddp.run_dir import RunDir

_NO_ANSWER = ("timed out", "Zero Bytes")  # of the controller to sbatch
# A terminal sends Ctrl-C to all of its programs; an sbatch that it ends may have queued the job.
_DEAF_TO_CTRL_C = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")


class ScriptExecutor(SlurmExecutor):
    """A submitit executor whose submission file is a finished script."""

    def __init__(self, folder: Path, script: str, *options: str) -> None:
        # SlurmExecutor's own constructor refuses to exist where `srun` is missing.
        PicklingExecutor.__init__(self, folder)
        self.script = script
        self.options = options

    def send(self) -> str:
        """Call sbatch and return the job id. Raises SubmissionFailed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what it also raises
                return self._submit_command("").job_id
        except (FailedJobError, OSError) as error:
            raise SubmissionFailed(last_words(str(error))) from None

    def _num_tasks(self) -> int:
        return 1

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return self.script

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        words = [*_DEAF_TO_CTRL_C, *sbatch_words(self.script, os.environ)]
        return [*words, "--parsable", *self.options, str(submission_file_path)]

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        text = string.decode() if isinstance(string, bytes) else string
        found = re.findall(r"^(\d+)(?:;\S*)?$", text, flags=re.MULTILINE)
        if not found:
            said = f"sbatch answered {text!r}; a job id was expected"
            raise SubmissionFailed(said, maybe_sent=True)
        return found[-1]


def submit_to_slurm(run_dir: RunDir, *options: str) -> str:
    """Send the run's job.sbatch, with further sbatch options, and return the job id.

    Raises SubmissionFailed.
    """
    script = run_dir.script.read_text(encoding="utf-8")
    try:
        return ScriptExecutor(run_dir.path / "submitit", script, *options).send()
    except SubmissionFailed as error:
        if not error.maybe_sent and not any(word in str(error) for word in _NO_ANSWER):
            raise
        raise SubmissionFailed(
            f"{error}. Slurm may have taken the job all the same: before you send it again, look "
            f"with `squeue --name={shlex.quote(run_dir.name)}`",
            maybe_sent=True,
        ) from None
