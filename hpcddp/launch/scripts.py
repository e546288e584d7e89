"""Batch scripts for people who send jobs with sbatch alone. Pure text; knows no run, asks no Slurm.

They ship as `slurm/*.sbatch`, made of the pieces that `submit` uses (options, launch line, macros)
and the prose in `slurm/plain`. `python -m hpcddp.launch.scripts FOLDER` writes them.
"""

import argparse
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcddp.cluster.options import check_options
from hpcddp.cluster.profile import ClusterProfile
from hpcddp.cluster.profile_schema import Container
from hpcddp.config.layout import EXIT_DONE, EXIT_FAILED
from hpcddp.config.schema import Resources
from hpcddp.launch.container import container_words
from hpcddp.launch.place import Place
from hpcddp.launch.render import load_template, sbatch_options
from hpcddp.launch.step import option_word, options_text, srun_options
from hpcddp.run_dir import RunDir

_CPUS, _TIME, _WIDTH = 8, "04:00:00", 90
_TRAIN = '-m hpcddp run jobs/digits.yaml --name "$SLURM_JOB_NAME"'
_CPUS_HERE = "${SLURM_CPUS_PER_TASK:-1}"
_SIGNAL = {"signal": "USR2@120"}
_TORCHRUN = (
    "bash -c 'exec python -u -m torch.distributed.run \\\n"
    '    --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" \\\n'
    '    --nproc-per-node="${SLURM_GPUS_ON_NODE:?ask for --gpus-per-node}" "$@"\' torchrun \\\n'
    '  --master-addr="$master" --master-port="$port" "${command[@]}"'
)


@dataclass(frozen=True, slots=True)
class PlainScript:
    """What distinguishes one script; texts are shell, in which the job fills in variables."""

    job_name: str
    train: str = f"python -u {_TRAIN}"
    profile: ClusterProfile = field(default_factory=lambda: ClusterProfile(name="plain"))
    image: str | None = None
    nodes: int = 2
    gpus_per_node: int = 4
    tasks_per_node: int | None = None  # None: one per GPU
    cpus_per_task: str = _CPUS_HERE
    threads: str = _CPUS_HERE
    options: Mapping[str, Any] = field(default_factory=dict)
    srun: Mapping[str, Any] = field(default_factory=dict)
    what: str = '"${command[@]}"'


SCRIPTS: Mapping[str, PlainScript] = {
    "ddp": PlainScript("ddp"),
    "preemptible": PlainScript("preemptible", options=_SIGNAL),
    "torchrun": PlainScript(
        "torchrun",
        train=_TRAIN,
        profile=ClusterProfile(name="plain", launch="torchrun"),
        cpus_per_task="$SLURM_CPUS_PER_TASK",
        threads="$((SLURM_CPUS_PER_TASK / ${SLURM_GPUS_ON_NODE:?none}))",
        what=_TORCHRUN,
    ),
    "array": PlainScript(
        "sweep",
        train=(
            "python -u -m hpcddp run jobs/digits.yaml\n"
            '  --name "$SLURM_JOB_NAME-$SLURM_ARRAY_TASK_ID" optim.lr="0.$SLURM_ARRAY_TASK_ID"'
        ),
        nodes=1,
        gpus_per_node=1,
        options={**_SIGNAL, "array": "1-4", "output": "%x-%A_%a.log"},
    ),
    "dp-against-ddp": PlainScript(
        "dp-against-ddp",
        train='python -u -m hpcddp compare jobs/digits.yaml --name "$SLURM_JOB_NAME"',
        nodes=1,
        tasks_per_node=1,
        options={"exclusive": True},
    ),
    "apptainer": PlainScript(
        "apptainer",
        train=f"python3 -u {_TRAIN}",
        profile=ClusterProfile(
            name="plain", container=Container(runtime="apptainer", options=("--nv",))
        ),
        image="image.sif",
    ),
    "pyxis": PlainScript(
        "pyxis",
        train=f"python3 -u {_TRAIN}",
        profile=ClusterProfile(name="plain", container=Container(runtime="pyxis")),
        image="$PWD/image.sqsh",
        srun={"container-workdir": "$PWD"},
    ),
}


def plain_script(name: str) -> str:
    """The whole text of `slurm/NAME.sbatch`."""
    script = SCRIPTS[name]
    resources = Resources(
        nodes=script.nodes,
        gpus_per_node=script.gpus_per_node,
        cpus_per_process=_CPUS,
        time=_TIME,
        container=script.image,
        srun=dict(script.srun),
    )
    # The run's folder lies beside the script's; the job knows where that is.
    place = Place(RunDir(Path("$PWD") / script.job_name), "python", Path("$PWD"))
    directives = _directives(script, resources, place)
    check_options(directives)
    asked = srun_options(resources, script.profile, _tasks_per_node(script), place)
    asked["cpus-per-task"] = script.cpus_per_task
    inside = {key: asked.pop(key) for key in tuple(asked) if key.startswith("container-")}
    step = " \\\n  ".join(_wrapped(f"srun {_open(options_text(asked))}"))
    return load_template(f"plain/{name}.sbatch.j2").render(
        file_name=f"{name}.sbatch",
        directives=[option_word(key, value) for key, value in directives.items()],
        process_command=_process_command(script, resources, place, inside),
        threads=script.threads,
        launch_line=f"{step} \\\n  {script.what}",
    )


def _tasks_per_node(script: PlainScript) -> int:
    return script.tasks_per_node or script.gpus_per_node


def _directives(script: PlainScript, resources: Resources, place: Place) -> dict[str, Any]:
    """The sbatch options that `submit` would send, but for what belongs to its run directory."""
    theirs = sbatch_options(resources, script.profile, place, _tasks_per_node(script))
    kept = {key: value for key, value in theirs.items() if key not in ("chdir", "signal")}
    return {**kept, "output": "%x-%j.log", **script.options}


def _process_command(
    script: PlainScript, resources: Resources, place: Place, inside: Mapping[str, Any]
) -> str:
    """The words of `command=`: into the container, where there is one, and the training."""
    # `container-env` names what `submit` sets for each attempt; nobody sets it here.
    into = options_text({key: value for key, value in inside.items() if key != "container-env"})
    words = [into, *container_words(resources, script.profile, place)]
    lines = [part for line in words for part in _wrapped(_open(line))]
    return "\n  ".join([*lines, script.train])


def _open(text: str) -> str:
    """`text` with the variables in its quoted values left to the job's shell."""
    return re.sub(r"'(\$[^']*)'", r'"\1"', text)


def _wrapped(line: str) -> list[str]:
    """A line of shell, cut between its words where it is too long."""
    return textwrap.wrap(line, _WIDTH, break_long_words=False, break_on_hyphens=False)


def write_scripts(folder: Path, *, overwrite: bool = False) -> dict[Path, str]:
    """Write all scripts; says of each whether it was `written`, was there already (`unchanged`), or
    `differs` and was left alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = {}
    for name in SCRIPTS:
        path, text = folder / f"{name}.sbatch", plain_script(name)
        there = path.read_text(encoding="utf-8") if path.exists() else None
        if there == text:
            outcomes[path] = "unchanged"
        elif there is None or overwrite:
            path.write_text(text, encoding="utf-8")
            outcomes[path] = "written"
        else:
            outcomes[path] = "differs"
    return outcomes


def main(words: Sequence[str] | None = None) -> int:
    """Entry of `python -m hpcddp.launch.scripts`."""
    parser = argparse.ArgumentParser(
        prog="hpcddp.launch.scripts", description="Write batch scripts that need no `submit`."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--overwrite", action="store_true", help="also replace what you changed")
    typed = parser.parse_args(words)
    try:
        outcomes = write_scripts(typed.folder, overwrite=typed.overwrite)
    except OSError as error:
        print(f"Error: cannot write to {typed.folder}: {error}", file=sys.stderr)
        return EXIT_FAILED
    for path, outcome in outcomes.items():
        if outcome == "differs":
            print(f"{path} differs and was left as it is; --overwrite replaces it", file=sys.stderr)
        else:
            print(f"{path} {outcome}")
    return EXIT_FAILED if "differs" in outcomes.values() else EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
