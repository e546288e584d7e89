"""What a job will need and this host does not have: sentences, before hours in the queue.

The nodes may have it all the same, so nothing here refuses anything.
"""

import difflib
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from string import Template

from hpcddp.cluster.filesystems import mount_of, sharing_warning
from hpcddp.cluster.profile import ClusterProfile
from hpcddp.cluster.shared_runs import is_proven
from hpcddp.config.schema import FASHION_MNIST_ROOT
from hpcddp.launch.phrases import INTERPRETERS, own_program
from hpcddp.launch.request import ResolvedRequest

# torchvision marks each builder of a classification model so, with more decorators in between.
_BUILDER = re.compile(r"^@register_model\(\)\n(?:@.*\n|[ )].*\n)*def (\w+)", re.MULTILINE)
# Where data lie without data.root ("" for the working directory), and what that folder holds.
_HELD: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "cifar10": ("", ("cifar-10-batches-py",)),  # what its archive unpacks to
    "fashion_mnist": (FASHION_MNIST_ROOT, ("train-images-idx3-ubyte.gz",)),
    "imagenet": ("", ("train", "val")),
}


def missing_here(
    request: ResolvedRequest, runs: Path, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """Sentences for whoever submits: a shared and lasting folder of runs, a python for the nodes'
    processors, a program or what training needs.
    """
    command = request.config.command
    return (
        *_shared_runs(request, runs),
        *_runs_and_scratch(request.profile, runs, environ),
        *_architecture(request),
        *(_programs(request, environ) if command else missing_to_train(request)),
    )


def missing_to_train(request: ResolvedRequest) -> tuple[str, ...]:
    """Sentences about data and model, also for a job whose command is a verb that trains."""
    return (*_data(request), *_model(request))


def _shared_runs(request: ResolvedRequest, runs: Path) -> Iterator[str]:
    """Cheap: no job. An emulated node is this host, and shares all."""
    if request.profile.launcher != "local":
        sentence = sharing_warning(runs, mount_of(runs))
        yield from [sentence] if sentence and not is_proven(runs) else []


def _runs_and_scratch(
    profile: ClusterProfile, runs: Path, environ: Mapping[str, str]
) -> Iterator[str]:
    """Where runs belong on a file system of which the site empties some by itself."""
    scratch = Template(profile.scratch).safe_substitute(environ)
    if not os.path.isabs(scratch):
        return
    is_there = Path(os.path.realpath(runs)).is_relative_to(os.path.realpath(scratch))
    if profile.runs_on_scratch and not is_there:
        yield (
            f"{profile.name} wants runs below {scratch} ({profile.runs_on_scratch}), and these are "
            f"in {runs}: export HPCDDP_RUNS_DIR={scratch}/runs."
        )
    if profile.scratch_purge_days and is_there:
        yield (
            f"{profile.name} deletes files on {scratch} after {profile.scratch_purge_days} days, "
            f"and the runs are there: copy what you keep, or export HPCDDP_RUNS_DIR=/OTHER/FOLDER."
        )


def _architecture(request: ResolvedRequest) -> Iterator[str]:
    """The script names the python of this host."""
    here, profile = platform.machine(), request.profile
    there = profile.other_arch(here)
    if there and not request.config.resources.container:
        yield (
            f"The nodes of {profile.name} are {there}, and this host with its python is {here}: it "
            f"cannot run there. Submit from an {there} login node, or name a container: "
            "resources.container=IMAGE."
        )


def _programs(request: ResolvedRequest, environ: Mapping[str, str]) -> Iterator[str]:
    command, profile = request.config.command, request.profile
    if request.config.resources.container:  # an image has programs of its own
        return
    program, *words = command
    by_setup = profile.modules or profile.setup  # which may bring programs along
    if not by_setup and not shutil.which(program, path=environ.get("PATH")):
        yield _unfound_program(program)
    if not {"-m", "-c"} & set(words):  # after which no file follows
        scripts = [word for word in words if word.endswith((".py", ".sh"))]
        yield from (_not_here(each) for each in scripts[:1] if not os.path.exists(each))


def _unfound_program(program: str) -> str:
    if not os.path.isfile(program):
        return _not_here(program)
    starts = os.access(program, os.X_OK)
    reason = "not on PATH" if starts else "not executable"
    by_interpreter = program.endswith(tuple(INTERPRETERS))
    first = "" if by_interpreter or starts else f"`chmod +x {program}`, then "
    return f"`{program}` is there, but {reason}. Type {first}`{own_program(program)} ...`."


def _not_here(file: str) -> str:
    return f"`{file}` is not found here, in {Path.cwd()}."


def _data(request: ResolvedRequest) -> Iterator[str]:
    name, root = request.config.data.name, request.config.data.root
    if root is not None and not os.path.exists(root):  # also False where this host may not look
        yield f"data.root={root} is not found here. Do the nodes have it?"
    elif name in _HELD:
        usual, needed = _HELD[name]
        folder = root or usual or Path.cwd()
        missing = [each for each in needed if not os.path.exists(os.path.join(folder, each))]
        if missing and root:
            yield f"data.root={root} holds no {missing[0]} here. Do the nodes have it?"
        elif missing:
            yield (
                f"data.root is not set, and {folder} holds no {missing[0]} here. Type "
                "data.root=FOLDER, the one that holds it."
            )


def _model(request: ResolvedRequest) -> Iterator[str]:
    name, known = request.config.train.model, torchvision_models()
    if not known or name in known:
        return
    near = difflib.get_close_matches(name, known, n=2)
    hint = f"Did you mean {' or '.join(near)}?" if near else "Do the nodes have a newer one?"
    yield f"train.model={name}: the torchvision here has no such model. {hint}"


def torchvision_models() -> frozenset[str]:
    """Names of its classification models, read from its source: to import it takes seconds.

    Empty where there is no source to read.
    """
    package = find_spec("torchvision")
    folders = package.submodule_search_locations if package else None
    files = [file for folder in folders or () for file in Path(folder).glob("models/*.py")]
    return frozenset(name for file in files for name in _BUILDER.findall(file.read_text("utf-8")))
