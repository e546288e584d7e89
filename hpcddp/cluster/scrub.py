"""Which variables must not travel into a new job, and which hide secrets. Changes nothing."""

import re
from collections.abc import Mapping

from hpcddp.cluster.variables import ATTEMPT_VARIABLE

# Facts about the surrounding job, step, MPI start or launcher. SBATCH_* stay: those are the
# user's own defaults. So do HPCDDP_MASTER_ADDR and HPCDDP_MASTER_PORT, which users set.
_PREFIXES = (
    "SLURM_",
    "SLURMD_",
    "_SLURM_",
    "SPANK_",
    "SRUN_",
    "PMI",
    "PALS_",
    "OMPI_",
    "MPI_LOCAL",
    "MV2_COMM_WORLD_",
    "TORCHELASTIC_",
    "SUBMITIT_LOCAL_",
    "SUBMITIT_DEBUG_",
)
_NAMES = frozenset({
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK",
    "GROUP_WORLD_SIZE", "GROUP_NAME", "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR",
    "MASTER_PORT", "SUBMITIT_EXECUTOR", "HPCDDP_LAUNCHER", "HPCDDP_GLOBAL_RANK",
    "HPCDDP_WORLD_SIZE", "HPCDDP_LOCAL_RANK", "HPCDDP_LOCAL_WORLD_SIZE", "HPCDDP_NODE_RANK",
    "HPCDDP_NUM_NODES", "HPCDDP_JOB_ID", "HPCDDP_RESTART_COUNT", "HPCDDP_ATTEMPT",
    "HPCDDP_PROCESS_ID", "HPCDDP_CHOSEN",
})  # fmt: skip
# Which devices of this machine a process may use; another machine's are others.
_DEVICES = frozenset({
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL",
})  # fmt: skip
# What a job chose for a program of its user's that it became: `NAME=value NAME=value`.
_CHOSEN = "HPCDDP_CHOSEN"
_SET_BY_SCRIPTS = (
    "HPCDDP_DEVICE", "HPCDDP_HOST_SUFFIX", "HPCDDP_INTERFACE", "HPCDDP_HCA", "HPCDDP_MASTER_AS",
)  # fmt: skip
# Where Slurm is and who the user is: without them sbatch cannot even ask.
_KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"})

_SECRET_WORDS = frozenset({
    "TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE",
    "PASS", "PW", "PWD", "KEY", "KEYS", "APIKEY", "CREDENTIAL", "CREDENTIALS", "CREDS", "AUTH",
    "JWT", "COOKIE", "COOKIES", "PAT", "DSN", "BEARER",
})  # fmt: skip
_SECRET_ENDINGS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "APIKEY", "CREDENTIALS")
_NOT_SECRET = frozenset({"SSH_AUTH_SOCK", "PWD"})
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def inherited_names(
    environ: Mapping[str, str], *, on_this_machine: bool = False
) -> tuple[str, ...]:
    """The names in `environ` that describe where this process runs, sorted.

    A job submitted with them would take another job's ranks, devices and limits for its own; one
    `on_this_machine` keeps the devices.
    """
    names = {name for name in environ if _is_inherited(name)} | _chosen(environ)
    names |= set() if on_this_machine else _DEVICES & set(environ)
    if ATTEMPT_VARIABLE in environ:
        # Inside one of our own jobs its batch script chose these, elsewhere the user did.
        names |= set(_SET_BY_SCRIPTS) & set(environ)
    return tuple(sorted(names))


def chosen_note(variables: Mapping[str, str]) -> dict[str, str]:
    """The variable that says that a job has given these their values, and not its user."""
    return {_CHOSEN: " ".join(f"{name}={value}" for name, value in variables.items())}


def _chosen(environ: Mapping[str, str]) -> set[str]:
    """The names that still have the value which a job has chosen: its user has left them alone."""
    pairs = [pair.partition("=") for pair in environ.get(_CHOSEN, "").split()]
    return {name for name, _, value in pairs if environ.get(name) == value}


def _is_inherited(name: str) -> bool:
    return name not in _KEPT and (name in _NAMES or name.startswith(_PREFIXES))


def looks_secret(name: str) -> bool:
    """True if a variable of this name probably holds a credential: show its name only."""
    if name in _NOT_SECRET:
        return False
    words = [word.upper() for word in _WORD.findall(name)]
    return any(word in _SECRET_WORDS or word.endswith(_SECRET_ENDINGS) for word in words)


def query_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """For a tool of Slurm whose output is read here: without the user's own display settings."""
    own_settings = ("SQUEUE_", "SACCT_", "SINFO_", "SCONTROL_")
    kept = {name: value for name, value in environ.items() if not name.startswith(own_settings)}
    return kept | {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
