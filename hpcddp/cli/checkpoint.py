"""`checkpoint`: list, verify, compare and export the checkpoints of runs."""

import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcddp.checkpoint_dir import (
    CheckpointError,
    Manifest,
    check_sizes,
    is_checkpoint,
    list_checkpoints,
    verify_checkpoint,
)
from hpcddp.checkpoint_kept import Best, read_best
from hpcddp.config.layout import EXIT_DONE, EXIT_FAILED
from hpcddp.errors import HpcddpError
from hpcddp.launch.runs import find_run, list_runs
from hpcddp.run_dir import runs_root

if TYPE_CHECKING:
    from hpcddp.train.checkpoint import LoadedCheckpoint
    from hpcddp.train.checkpoint_diff import SectionDiff

_MIB = 2**20

_json_option = click.option("--json", "as_json", is_flag=True, help="print one JSON document")


@click.group()
def command() -> None:
    """List, verify, compare and export checkpoints.

    PATH is a checkpoint directory, or the name or directory of a run: then its newest checkpoint.
    """


@command.command("list")
@click.argument("run")
@_json_option
def list_command(run: str, as_json: bool) -> None:
    """The checkpoints of RUN, oldest first: step, size, time, which is the best, and damage.

    Looks at names and sizes only; `checkpoint verify` reads every byte.
    """
    folder = _folder(run)
    entries = [_entry(info.path, info.step) for info in list_checkpoints(folder)]
    best = read_best(folder)
    if as_json:
        document = {"folder": str(folder), "checkpoints": entries}
        click.echo(json.dumps(document | {"best": best and asdict(best)}, indent=2))
        return
    lines = [_entry_line(entry) + _best_words(entry, best) for entry in entries]
    click.echo("\n".join(lines) or f"No checkpoints in {folder}.")


@command.command("verify")
@click.argument("path")
@_json_option
def verify_command(path: str, as_json: bool) -> None:
    """Read every byte of one checkpoint; exit code 0 if it is in order, 1 if it is damaged."""
    checkpoint = _checkpoint(path)
    entry = _entry(checkpoint, None, every_byte=True)
    if as_json:
        click.echo(json.dumps(entry, indent=2))
    elif entry["problem"]:
        click.echo(f"Damaged: {entry['problem']}", err=True)
    else:
        click.echo(f"In order: {_entry_line(entry)}")
    sys.exit(EXIT_FAILED if entry["problem"] else EXIT_DONE)


@command.command("diff")
@click.argument("first", metavar="PATH")
@click.argument("second", metavar="PATH")
@_json_option
def diff_command(first: str, second: str, as_json: bool) -> None:
    """Compare two checkpoints bit by bit; exit code 0 if they are identical, 1 if not."""
    from hpcddp.train.checkpoint import load_checkpoint
    from hpcddp.train.checkpoint_diff import diff_states

    loaded = [load_checkpoint(_checkpoint(text)) for text in (first, second)]
    sections = diff_states(loaded[0].state, loaded[1].state)
    document = _diff_document(loaded, sections)
    if as_json:
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo("\n".join(_diff_lines(document)))
    sys.exit(EXIT_DONE if document["identical"] else EXIT_FAILED)


@command.command("export")
@click.argument("path")
@click.argument("out", metavar="OUT.pt", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--ema", is_flag=True, help="their moving average instead (train.ema_decay)")
def export_command(path: str, out: Path, ema: bool) -> None:
    """Write the weights of one checkpoint to OUT.pt, for `model.load_state_dict(torch.load(...))`.

    The names are torchvision's own. An existing file is never replaced.
    """
    from hpcddp.train.checkpoint import export_weights, load_checkpoint

    loaded = load_checkpoint(_checkpoint(path))
    export_weights(loaded, out, "ema" if ema else "model")
    what = "EMA weights" if ema else "Weights"
    click.echo(f"{what} of step {loaded.step} of {loaded.extra.get('train.model')}: {out}")


def _folder(text: str) -> Path:
    """Where the checkpoints of a run lie, which is given by its name, else by its directory."""
    path, root = Path(text), runs_root(os.environ)
    if not path.is_dir() or text in {run.name for run in list_runs(root)}:
        return find_run(root, text).checkpoints
    inside = path / "checkpoints"
    return inside if inside.is_dir() else path


def _checkpoint(text: str) -> Path:
    """The checkpoint at that path, or the newest one of that run."""
    if is_checkpoint(Path(text)):
        return Path(text)
    folder = _folder(text)
    infos = list_checkpoints(folder)
    if not infos:
        raise HpcddpError(
            f"{folder} holds no checkpoint (no directory step_NUMBER). Name a checkpoint "
            "directory, or a run that has saved one.",
            "no_checkpoint",
        )
    return infos[-1].path


def _entry(path: Path, step: int | None, *, every_byte: bool = False) -> dict[str, Any]:
    """One checkpoint as plain values; `problem` is None for one in order."""
    manifest, problem = Manifest(step, {}), None
    try:
        manifest = verify_checkpoint(path) if every_byte else check_sizes(path)
    except CheckpointError as error:
        problem = error.message
    return {
        "path": str(path),
        "step": manifest.step,
        "size_bytes": manifest.size_bytes,
        "written_at": manifest.written_at,
        "problem": problem,
    }


def _entry_line(entry: dict[str, Any]) -> str:
    if entry["problem"]:
        return f"step {entry['step']:>9}  damaged: {entry['problem']}"
    written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["written_at"]))
    size = f"{entry['size_bytes'] / _MIB:9.1f} MiB"
    return f"step {entry['step']:>9}  {size}  {written}  {entry['path']}"


def _best_words(entry: dict[str, Any], best: Best | None) -> str:
    if best is None or best.step != entry["step"]:
        return ""
    return f"  best: test accuracy {100 * best.accuracy:.2f} %"


def _diff_document(
    loaded: Sequence["LoadedCheckpoint"], sections: Sequence["SectionDiff"]
) -> dict[str, Any]:
    steps = [one.step for one in loaded]
    differing = [name for section in sections for name in section.differing]
    return {
        "identical": steps[0] == steps[1] and all(section.identical for section in sections),
        "checkpoints": [{"path": str(one.path), "step": one.step} for one in loaded],
        "num_tensors": sum(section.num_tensors for section in sections),
        "num_differing": len(differing),
        "first_differing": differing[0] if differing else None,
        "max_abs_difference": _or_null(max((s.max_abs_difference for s in sections), default=0.0)),
        "sections": [_section_document(section) for section in sections],
    }


def _section_document(section: "SectionDiff") -> dict[str, Any]:
    return {
        "name": section.name,
        "num_tensors": section.num_tensors,
        "num_differing": len(section.differing),
        "first_differing": section.differing[0] if section.differing else None,
        "max_abs_difference": _or_null(section.max_abs_difference),
        "values": {name: [str(value) for value in pair] for name, pair in section.values.items()},
    }


def _or_null(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no infinity


def _diff_lines(document: dict[str, Any]) -> list[str]:
    sections = document["sections"]
    names = ", ".join(section["name"] for section in sections)
    first, second = document["checkpoints"]
    if document["identical"]:
        return [f"identical: {document['num_tensors']} tensors, step {first['step']} ({names})"]
    lines = [f"different: {_tensor_words(document)}"]
    if first["step"] != second["step"]:
        lines.append(f"  step {first['step']} against step {second['step']}")
    for section in sections:
        if section["num_differing"]:
            lines.append(f"  {section['name']}: {_tensor_words(section)}")
        lines += [f"  {name}: {a} against {b}" for name, (a, b) in section["values"].items()]
    return lines


def _tensor_words(part: dict[str, Any]) -> str:
    if not part["num_differing"]:
        return f"all {part['num_tensors']} tensors are identical"
    largest = part["max_abs_difference"]
    return (
        f"{part['num_differing']} of {part['num_tensors']} tensors differ, first "
        f"{part['first_differing']}, largest difference "
        f"{'not finite' if largest is None else f'{largest:.3g}'}"
    )
