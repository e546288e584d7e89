"""Words that lead a process into a container, one way per runtime. Pure text; knows no step."""

import shlex
from typing import Any

from hpcddp.cluster.profile import ClusterProfile
from hpcddp.cluster.profile_file import EXPANDED
from hpcddp.cluster.variables import ATTEMPT_TIME_VARIABLE, ATTEMPT_VARIABLE
from hpcddp.config.schema import Resources
from hpcddp.errors import ConfigError
from hpcddp.launch.place import Place

# Of these also what the profile does not know: users export them, and images bring their own.
KEPT_BEGINNINGS = ("NCCL_", "TORCH_NCCL_", "GLOO_", "FI_", "UCX_")


class ShellWord(str):
    """The value of an option as a word of shell: quoted, with variables that the shell fills in."""


def container_sbatch(resources: Resources, profile: ClusterProfile) -> dict[str, Any]:
    """Options of sbatch that a container needs."""
    if not resources.container or profile.container.runtime != "shifter":
        return {}
    return {"image": resources.container}


def container_words(resources: Resources, profile: ClusterProfile, place: Place) -> list[str]:
    """What stands in front of the command."""
    if not resources.container:
        return []
    container, image = profile.container, shlex.quote(resources.container)
    if container.runtime == "none":
        raise ConfigError(
            f"resources.container={resources.container}, but profile {profile.name} does not say "
            "how containers run there: it needs `container: {runtime: ...}`."
        )
    if container.runtime == "apptainer":
        binds = _mounts(profile, place)
        options = shlex.join(container.options)
        return [
            " ".join(["apptainer exec", *([options] * bool(options)), f"--bind {binds} {image}"])
        ]
    if container.runtime == "wrap":
        mounts = _mounts(profile, place)
        words = [word.replace("{image}", resources.container) for word in container.wrap]
        return [" ".join(_with_mounts(word, mounts) for word in words)]
    return ["shifter"] if container.runtime == "shifter" else []


def container_srun(resources: Resources, profile: ClusterProfile, place: Place) -> dict[str, Any]:
    """Options of srun that a container needs."""
    if not resources.container:
        return {}
    if profile.container.runtime == "environment":
        return {"environment": resources.container}
    if profile.container.runtime != "pyxis":
        return {}
    return {
        "container-image": resources.container,
        "container-mounts": ShellWord(_mounts(profile, place, in_pairs=True)),
        "container-env": ShellWord('"$container_env"'),
    }


def kept_names(resources: Resources, profile: ClusterProfile) -> tuple[str, ...]:
    """Variables of the job that win over an image's own: pyxis wants them named; empty elsewhere.

    Without those that go in front of the image's value, and those that the script finds by their
    beginning.
    """
    if not resources.container or profile.container.runtime != "pyxis":
        return ()
    own = [name for name, setting in profile.env.items() if not setting.prepend]
    named = [name for name in (*own, *profile.caches) if not name.startswith(KEPT_BEGINNINGS)]
    return (ATTEMPT_VARIABLE, ATTEMPT_TIME_VARIABLE, *named)


def is_entered_by_srun(resources: Resources, profile: ClusterProfile) -> bool:
    """Whether the shell that starts a process is in the container already."""
    return bool(resources.container) and profile.container.runtime in ("pyxis", "environment")


def shell_word(name: str, value: str) -> str:
    """`value` as a word of shell, which fills in its variables."""
    if "$" not in value:
        return shlex.quote(value)
    if not EXPANDED.fullmatch(value):
        raise ConfigError(
            f"{name}={value}: only variables ($NAME, ${{NAME}}) may stand in a value that "
            "the shell expands. Remove quotes, backslashes, `$(` and the like."
        )
    return f'"{value}"'


def _with_mounts(word: str, mounts: str) -> str:
    return mounts.join(shlex.quote(part) if part else "" for part in word.split("{mounts}"))


def _mounts(profile: ClusterProfile, place: Place, *, in_pairs: bool = False) -> str:
    """The folders that the container sees, as one word of shell; the batch script fills in
    `$NAME` in those of the profile.
    """

    def seen(path: str) -> str:
        return f"{path}:{path}" if in_pairs else path

    own = dict.fromkeys([str(place.run_dir.path.parent), str(place.work_dir)])
    further = [path for path in profile.container.mounts if path not in own]
    words = [shlex.quote(seen(path)) for path in own]
    return ",".join([*words, *(shell_word("container.mounts", seen(path)) for path in further)])
