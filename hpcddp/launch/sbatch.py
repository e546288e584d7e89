"""How sbatch is called: in which environment, and what it says of a script. No submitit here."""

import re
import shutil
import subprocess
from collections.abc import Mapping

from hpcddp.cluster.scrub import inherited_names

# sbatch lets these win over the script; the script already contains what they asked for.
_OTHER_NAMES = {
    "time": "SBATCH_TIMELIMIT",
    "mem": "SBATCH_MEM_PER_NODE",
    "requeue": "SBATCH_NO_REQUEUE",
    "array": "SBATCH_ARRAY_INX",
}
# Of these the script says something by leaving them out: the elements of an array would all write
# to one run, `submit` would wait for the job to end, and a log or a GPU would be somewhere else.
_LEFT_OUT = frozenset({"array", "wait", "error", "gpus", "gpus-per-node", "gpus-per-task"})
_MEMORY = frozenset({"mem", "mem-per-cpu", "mem-per-gpu"})  # sbatch takes one of them, from both
_TEST_ONLY_TIMEOUT_S = 30


def sbatch_words(script: str, environ: Mapping[str, str]) -> list[str]:
    """`sbatch` in an environment without a surrounding job's variables and without SBATCH_*
    variables that would contradict the script.
    """
    stated = set(re.findall(r"^#SBATCH --([a-z-]+)", script, re.MULTILINE))
    decided = stated | _LEFT_OUT | (_MEMORY if stated & _MEMORY else set())
    hidden = {*inherited_names(environ), *(set(map(_variable, decided)) & set(environ))}
    return ["env", *(word for name in sorted(hidden) for word in ("-u", name)), "sbatch"]


def ask_sbatch(script: str, environ: Mapping[str, str], *options: str) -> tuple[bool, str] | None:
    """What `sbatch --test-only` says of a script, and of further options: accepted or not, and its
    words.

    None where there is no sbatch or it does not answer in time.
    """
    if not shutil.which("sbatch", path=environ.get("PATH")):
        return None
    try:
        answer = subprocess.run(
            [*sbatch_words(script, environ), "--test-only", *options],
            input=script,
            capture_output=True,
            text=True,
            timeout=_TEST_ONLY_TIMEOUT_S,
            env=dict(environ),
        )
    except subprocess.TimeoutExpired:
        return None
    return answer.returncode == 0, last_words(answer.stderr or answer.stdout)


def _variable(option: str) -> str:
    return _OTHER_NAMES.get(option, f"SBATCH_{option.upper().replace('-', '_')}")


def last_words(text: str) -> str:
    """What sbatch said, without its own prefix; else the last line of `text`."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line.removeprefix("sbatch: ") for line in lines if line.startswith("sbatch: ")]
    return "; ".join(dict.fromkeys(said)) or (lines[-1] if lines else "no message")
