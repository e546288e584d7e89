"""`cluster`: which clusters are known, what one is like, and what a job would become there."""

import json
import os
from collections.abc import Callable
from typing import Any

import click

from hpcddp.cli.cluster_text import (
    explanation_lines,
    explanation_record,
    profile_lines,
    profile_list,
    profile_record,
)
from hpcddp.cluster.profile import load_profile
from hpcddp.cluster.profile_file import list_profiles, read_merged
from hpcddp.launch.explain import explain
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
    profiles = [load_profile(name, os.environ) for name in sorted(list_profiles(os.environ))]
    keys = ("name", "status", "verified_on", "description", "site", "aliases")
    documents = [
        {**{key: getattr(profile, key) for key in keys}, "file": str(profile.files[-1])}
        for profile in profiles
    ]
    _print(documents, lambda: profile_list(profiles), as_json)


@command.command()
@click.argument("name")
@_json_option
def show(name: str, as_json: bool) -> None:
    """What the profile NAME says: queues, nodes, limits, what is left open, and its sources."""
    merged, profile = read_merged(name, os.environ), load_profile(name, os.environ)
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
    answer = explain(resolve_request(request, os.environ), os.environ)
    _print(explanation_record(answer), lambda: explanation_lines(answer), as_json)
