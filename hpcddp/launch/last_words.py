"""What srun and the batch script said in one attempt, read from its batch log. Asks nobody."""

import itertools
import re
import signal
from collections.abc import Sequence

from hpcddp.launch.history import FileTail
from hpcddp.launch.slurm_tool import is_silence
from hpcddp.run_dir import RunDir
from hpcddp.stop_flag import STOP_SIGNALS

_TAIL_BYTES, _COMPLAINT_TAIL_BYTES = 256 * 1024, 4 * 1024
_OURS = "hpcddp: "
_BEGINNING = f"{_OURS}attempt "
# `srun: error: gpu-01: tasks 2-3: Exited with exit code 1`, or `Killed`, `Aborted (core dumped)`,
# and others. Without Slurm, `local_step: error: node0: task 0: Exited with exit code 1`.
_TASK_END = re.compile(
    r"(?:srun|local_step): error: (\S+): (tasks? [\d,-]+): "
    r"(?:Exited with exit code (\d+)|(\w.*?)(?: \(core dumped\))?$)"
)
# Slurm ends the step: what a signal ends from here on has not failed by itself.
_STEP_ENDS = re.compile(
    r"srun: (?:error: Task launch for|error: Node failure|Job step aborted|forcing job termination)"
    r"|slurmstepd.*: error: \*\*\* (?:STEP|JOB) "
)
_SIGNALS = {signal.strsignal(signum): int(signum) for signum in signal.valid_signals()}
# `srun: error: gpu-01: task 2: Out Of Memory`, and slurmstepd's `Detected 1 oom-kill event(s)`.
_OUT_OF_MEMORY = re.compile(
    r"(srun: error: \S+: tasks? [\d,-]+: out of memory|slurmstepd.* error: .*\boom[-_ ]kill)",
    re.IGNORECASE,
)
# `srun: error: Task launch for StepId=7.0 failed on node gpu-02: Communication connection failure`,
# or another of Slurm's words for a node that does not answer; 10 s after the start.
_NOT_REACHED = re.compile(
    r"srun: error: Task launch for \S+ failed on node (\S+): "
    r"(?:Communication|Message|Socket timed out|Zero Bytes)"
)
# `srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller (connect
# failure)`, or `Unable to create step for job 7: ...`; srun asks for 10 s or so.
_NO_STEP = re.compile(
    r"srun: error: (Unable to (?:confirm allocation|create step) for job [^:]+: .+)"
)


def words_of_attempt(run_dir: RunDir, attempt: int) -> list[str]:
    """The lines of the batch log since this attempt's script began, as far as the tail reaches.

    None where the newest beginning is that of another attempt: the disk had no room for ours.
    """
    lines = FileTail(run_dir.batch_log, _TAIL_BYTES).lines()
    words = [line.decode(errors="replace") for line in lines]
    # A line before it may be torn, without an end of its own.
    begins = [i for i, line in enumerate(words) if _BEGINNING in line]
    if not begins:
        return words
    own = words[begins[-1] :]
    return own if own[0].endswith(f"{_BEGINNING}{attempt}") else []


def last_complaint(run_dir: RunDir) -> str:
    """What the newest attempt's script could not do, in its last line; "" if it ends otherwise."""
    lines = FileTail(run_dir.batch_log, _COMPLAINT_TAIL_BYTES).lines()
    last = lines[-1].decode(errors="replace") if lines else ""
    is_ours = last.startswith(_OURS) and not last.startswith(_BEGINNING)
    return last.removeprefix(_OURS) if is_ours else ""


def has_run_out_of_memory(words: Sequence[str]) -> bool:
    """Whether Slurm says that the kernel killed a process; srun's own code is 1 then, or 137."""
    return any(_OUT_OF_MEMORY.search(line) for line in words)


def unreached_nodes(words: Sequence[str]) -> tuple[str, ...]:
    """The nodes that srun could not reach to start a process there."""
    found = filter(None, map(_NOT_REACHED.search, words))
    return tuple(dict.fromkeys(match[1] for match in found))


def no_start(words: Sequence[str]) -> str:
    """Why srun could start nothing: a controller that did not answer it. "" where it did."""
    said = (match[1] for match in map(_NO_STEP.search, words) if match)
    return "Slurm's controller was away at the start" if any(map(is_silence, said)) else ""


def first_exit(words: Sequence[str]) -> tuple[int, str] | None:
    """The code and name of the tasks that ended first, 128 + signal for killed ones. None where
    they ran out of memory, were told to stop, or Slurm killed them with their step.

    srun itself exits with the highest code of all, which is that of a task it has ended (143).
    """
    first = next(filter(None, map(_TASK_END.search, words)), None)
    if first is None:
        return None
    host, tasks, code, how = first.groups()
    if code is None:
        signum = _SIGNALS.get(how)  # None for `Out Of Memory`
        before = itertools.takewhile(lambda line: line != first.string, words)
        if signum in (None, *STOP_SIGNALS) or any(map(_STEP_ENDS.search, before)):
            return None
        code = 128 + signum
    return int(code), f"{tasks} on {host}"
