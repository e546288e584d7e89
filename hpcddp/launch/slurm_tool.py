"""Give Slurm an order by one of its tools. What Slurm says of jobs is `scheduler`'s business."""

import re
import shutil
import socket
import subprocess
from collections.abc import Sequence

# `Unexpected message received for job 7` is what scontrol calls an order that was not answered in
# time (22.05); a question that was not has `timed out`.
_SILENT = re.compile(
    r"unable to contact|timed out|zero bytes|no answer|connection|unexpected message",
    re.IGNORECASE,
)


def is_silence(refusal: str) -> bool:
    """True for words of `tell` that say: Slurm's controller has not answered."""
    return bool(_SILENT.search(refusal))


def tell(words: Sequence[str], timeout_s: float) -> str | None:
    """Run `scancel ...` or `scontrol ...`; None when it worked, else what went wrong, never ""."""
    tool = words[0]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return f"{tool} gave no answer within {timeout_s:.0f} s"
    except OSError as error:
        return f"{tool} cannot be run: {error.strerror}"
    if done.returncode == 0:
        return None
    return (done.stderr or done.stdout).strip() or f"{tool} exited with {done.returncode}"


def lack_of_tools() -> str:
    """That this host has nothing to start a job again with, in words; "" where it has."""
    if any(shutil.which(tool) for tool in ("scontrol", "sbatch")):
        return ""
    return f"{socket.gethostname()} has no scontrol and no sbatch to requeue with"
