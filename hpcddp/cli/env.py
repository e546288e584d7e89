"""`env`: which process am I, and how is that known? Asks no network, no Slurm, no GPU."""

import json
import os
from typing import Any

import click

from hpcddp.cluster.layout import layout_from_environ
from hpcddp.cluster.ports import ephemeral_range
from hpcddp.config.layout import EXIT_USAGE, ProcessLayout
from hpcddp.errors import HpcddpError

KEYS = (
    "global_rank",
    "world_size",
    "local_rank",
    "local_world_size",
    "node_rank",
    "num_nodes",
    "hosts",
    "master_addr",
    "master_port",
    "device_index",
    "requeue_target",
    "launcher",
)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """Show the ranks, sizes, hosts, address and port of this process, and where each comes from."""
    try:
        layout = layout_from_environ(os.environ, ephemeral=ephemeral_range())
    except HpcddpError as error:
        if not as_json:
            raise
        click.echo(json.dumps({"error": error.code, "message": error.message}))
        context.exit(EXIT_USAGE)
    click.echo(json.dumps(layout_record(layout), indent=2) if as_json else layout_table(layout))


def layout_record(layout: ProcessLayout) -> dict[str, Any]:
    """What --json prints: the fields, their sources, the warnings."""
    record = {key: getattr(layout, key) for key in KEYS}
    return {**record, "sources": dict(layout.sources), "warnings": list(layout.warnings)}


def layout_table(layout: ProcessLayout) -> str:
    """Name, value and source of each field in columns, then the warnings."""
    rows = [(key, _shown(getattr(layout, key)), layout.sources.get(key, "")) for key in KEYS]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"{key:{widths[0]}}  {value:{widths[1]}}  {source}" for key, value, source in rows]
    return "\n".join([line.rstrip() for line in lines] + [f"warning: {x}" for x in layout.warnings])


def _shown(value: Any) -> str:  # noqa: ANN401
    if value is None:
        return "-"
    if not isinstance(value, tuple):
        return str(value)
    first = ",".join(value[:4])
    return first if len(value) <= 4 else f"{first} and {len(value) - 4} more"
