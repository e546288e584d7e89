"""`cluster`: which clusters are known, what one is like, and what a job would become there."""

import dataclasses
import datetime
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hpcddp.cli.cluster_text import (
    drift_lines,
    explanation_lines,
    explanation_record,
    profile_lines,
    profile_list,
    profile_record,
)
from hpcddp.cluster.detect import detect, slurm_cluster_name
from hpcddp.cluster.drift import compare, compare_node
from hpcddp.cluster.live import LiveCluster, read_live
from hpcddp.cluster.profile import choose_profile, load_profile
from hpcddp.cluster.profile_file import PERSONAL, list_profiles, read_merged
from hpcddp.cluster.survey import main_partition, probe_node, survey_text, way_to, write_profile
from hpcddp.config.files import user_dirs
from hpcddp.config.layout import EXIT_DONE, EXIT_FAILED
from hpcddp.errors import HpcddpError
from hpcddp.launch.explain import explain
from hpcddp.launch.look import one_node_options
from hpcddp.launch.request import Request, resolve_request

_json_option = click.option("--json", "as_json", is_flag=True, help="print one JSON document")


@click.group()
def command() -> None:
    """Profiles of clusters: list, show, explain, detect, check."""


def _print(document: Any, lines: Callable[[], list[str]], as_json: bool) -> None:  # noqa: ANN401
    click.echo(json.dumps(document, indent=2) if as_json else "\n".join(lines()))


@command.command("list")
@_json_option
def list_(as_json: bool) -> None:
    """All profiles: shipped ones, and your own, which win."""
    records = [_listed(name, path) for name, path in sorted(list_profiles(os.environ).items())]
    _print(records, lambda: profile_list(records), as_json)


def _listed(name: str, path: Path) -> dict[str, Any]:
    """What `list` says of one profile; of one that cannot be read, why."""
    keys = ("name", "status", "verified_on", "description", "site", "aliases")
    try:
        profile = load_profile(name, os.environ)
    except HpcddpError as error:
        blank = {**dict.fromkeys(keys, ""), "name": name, "status": "broken", "aliases": []}
        return {**blank, "file": str(path), "error": error.message}
    told = {key: getattr(profile, key) for key in keys}
    return {**told, "file": str(profile.files[-1]), "error": ""}


@command.command()
@click.argument("name")
@_json_option
def show(name: str, as_json: bool) -> None:
    """What the profile NAME (or `auto`) says: queues, nodes, limits, open questions, sources."""
    chosen = choose_profile(name, os.environ)
    merged, profile = read_merged(chosen, os.environ), load_profile(chosen, os.environ)
    _print(profile_record(profile, merged.values), lambda: profile_lines(profile, merged), as_json)


@command.command("explain")
@click.argument("name")
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--gpus-per-node", type=click.IntRange(min=0), help="GPUs per node")
@click.argument("overrides", nargs=-1, metavar="[key=value ...]")
@_json_option
def explain_(
    name: str, nodes: int, gpus_per_node: int | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Every flag and variable of a job on NAME, with its layer and its reason."""
    resources = {"nodes": nodes, "gpus_per_node": gpus_per_node}
    given = {key: value for key, value in resources.items() if value is not None}
    request = Request(cluster=name, resources=given, overrides=overrides)
    today = datetime.date.today()
    answer = explain(resolve_request(request, os.environ), os.environ, today)
    _print(explanation_record(answer), lambda: explanation_lines(answer), as_json)


@command.command("detect")
@click.option("--write", is_flag=True, help="write a profile, with a short job on one node")
@click.option("--name", help="name of the written profile; default: what Slurm calls the cluster")
@click.option("--no-job", is_flag=True, help="do not look at a node")
@_json_option
def detect_(write: bool, name: str | None, no_job: bool, as_json: bool) -> None:
    """Which profile fits this cluster? `--cluster auto`, the default of `submit`, takes it.

    Where none does, --write makes one in ~/.config/hpcddp from what Slurm says.
    """
    matches = detect(os.environ)
    if write:
        sys.exit(_write(name, no_job, [match.name for match in matches]))
    told = slurm_cluster_name(os.environ)
    document = {
        "slurm_cluster_name": told[0] if told else None,
        "matches": [dataclasses.asdict(match) for match in matches],
    }
    nothing = "No profile fits. `python -m hpcddp cluster detect --write` makes one from Slurm."
    if not shutil.which("scontrol"):
        nothing = "No profile fits, and there is no Slurm here: type this on a login node."
    lines = [f"{match.name}: {match.reason}" for match in matches] or [nothing]
    _print(document, lambda: lines, as_json)
    sys.exit(EXIT_DONE if matches else EXIT_FAILED)


def _write(name: str | None, no_job: bool, known: list[str]) -> int:
    """Ask Slurm, look at a node, write the profile; the exit code."""
    if name is not None:
        _check_name(name)
    live = _live()
    name = name or live.name
    if name in list_profiles(os.environ):
        raise HpcddpError(
            f"There is a profile `{name}` already{' and it fits' if name in known else ''}. Add to "
            f"it in clusters/{name}.local.yaml, or choose another name: --name NAME."
        )
    partition = main_partition(live)
    facts, unseen = {}, "--no-job" if no_job else "no partition is up"
    if partition and not no_job:
        facts, unseen = probe_node(way_to(partition, os.environ))
    text = survey_text(live, facts, datetime.date.today().isoformat(), unseen)
    path = user_dirs(os.environ)[-1] / "clusters" / f"{name}.yaml"
    write_profile(text, path)
    click.echo(text, nl=False)
    click.echo(f"Written to {path}. Next: python -m hpcddp cluster explain {name} --nodes 2")
    return EXIT_DONE


def _check_name(name: str) -> None:
    """Refuse what could be no file of the folder `clusters`, or would be taken for another."""
    is_taken = name == "auto" or name.endswith(PERSONAL)
    if is_taken or not re.fullmatch(r"\w[\w.+-]*", name):
        raise HpcddpError(
            f"--name {name}: it becomes the file clusters/NAME.yaml, so it holds letters, digits "
            f"and _.+- only, is not `auto`, and does not end in `{PERSONAL}`."
        )


def _live() -> LiveCluster:
    live = read_live()
    if live is None:
        raise HpcddpError("`scontrol show config` does not answer: run this on a login node.")
    return live


@command.command()
@click.argument("name", default="auto")
@click.option("--job", is_flag=True, help="also look at one node, by a short job")
@_json_option
def check(name: str, job: bool, as_json: bool) -> None:
    """Compare a profile with what Slurm says now; exit 1 where they differ."""
    chosen = choose_profile(name, os.environ)
    live, findings = _live(), ()
    if job:
        options = one_node_options(chosen, os.environ)
        findings = compare_node(load_profile(chosen, os.environ), *probe_node(options))
    findings = (*compare(read_merged(chosen, os.environ).values, live), *findings)
    document = {
        "cluster": chosen,
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }
    _print(document, lambda: drift_lines(chosen, findings), as_json)
    drifted = any(finding.level == "drift" for finding in findings)
    sys.exit(EXIT_FAILED if drifted else EXIT_DONE)
