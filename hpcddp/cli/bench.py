"""`bench`: measure a part of the machine by itself, without any training."""

import functools
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import click

from hpcddp.cli.bench_text import allreduce_lines
from hpcddp.cli.measuring import (
    config_here,
    measures_here,
    measuring_options,
    prepare_job,
    show_report_of_job,
)
from hpcddp.config.layout import ProcessLayout
from hpcddp.config.schema import RunConfig
from hpcddp.errors import HpcddpError
from hpcddp.launch.measuring import measure_here, write_report
from hpcddp.launch.request import world_size
from hpcddp.run_dir import RunDir

_REPORT = "allreduce"
_VERB = ("bench", "allreduce")
_UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_SMALLEST = 1 << 10
_DEVICES = {"gloo": "cpu", "nccl": "cuda"}


@click.group()
def command() -> None:
    """Measure a part of the machine by itself, without any training."""


class _Sizes(click.ParamType):
    """`FROM..TO`, each a power of two bytes: 1KiB..256MiB. Becomes all powers between them."""

    name = "sizes"

    def convert(
        self,
        value: Any,  # noqa: ANN401
        parameter: click.Parameter | None,
        context: click.Context | None,
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        first, _, last = value.partition("..")
        begin, end = _bytes(first), _bytes(last or first)
        if begin is None or end is None or not _SMALLEST <= begin <= end:
            self.fail(
                f"{value!r} is no range of powers of two from 1KiB upwards, such as 1KiB..256MiB.",
                parameter,
                context,
            )
        return tuple(1 << power for power in range(begin.bit_length() - 1, end.bit_length()))


class _Seconds(click.FloatRange):
    """A number in the range; `nan`, which is in every range, and `inf` are none."""

    def convert(
        self,
        value: Any,  # noqa: ANN401
        parameter: click.Parameter | None,
        context: click.Context | None,
    ) -> float:
        seconds = super().convert(value, parameter, context)
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is no number of seconds.", parameter, context)
        return seconds


def _bytes(text: str) -> int | None:
    """The number of bytes in `4KiB`, None if it is no power of two."""
    match = re.fullmatch(r"(\d{1,9})([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _UNITS:
        return None
    size = int(match[1]) * _UNITS[match[2]]
    return size if size and not size & (size - 1) else None


@command.command()
@measuring_options
@click.option("--sizes", type=_Sizes(), default="1KiB..256MiB", show_default=True)
@click.option("--backend", type=click.Choice(["auto", "gloo", "nccl"]), default="auto",
              help="auto: by train.device; gloo measures the network from the CPUs also where "
              "there are GPUs")  # fmt: skip
@click.option("--seconds-per-size", type=_Seconds(0.001), default=0.5, show_default=True,
              help="how long each size is repeated; at least three times")  # fmt: skip
@click.pass_context
def allreduce(
    context: click.Context,
    sizes: tuple[int, ...],
    backend: str,
    seconds_per_size: float,
    run_dir: Path | None,
    follows: bool,
    as_json: bool,
    **typed: Any,  # noqa: ANN401
) -> None:
    """Latency and bandwidth of the all-reduce that averages gradients, by size.

    Inside a job (srun, torchrun) every process takes part; elsewhere this sends a job. algbw is
    bytes / time; busbw, times 2(n-1)/n, is what compares with the speed of a link.
    """
    if measures_here(context, " ".join(_VERB)):
        run = RunDir(run_dir.absolute()) if run_dir else None

        def work(layout: ProcessLayout) -> None:
            config = config_here(context, run, typed)
            _measure(layout, config, run, sizes, backend, seconds_per_size, as_json=as_json)

        measure_here(work, run, os.environ)
    submission = prepare_job(context, _words(sizes, backend, seconds_per_size), typed)
    processes = world_size(submission.request.config, submission.request.profile)
    _check_world_size(processes, "Use --nodes 2, or --gpus-per-node 2 (on CPUs "
                                 "resources.processes_per_node=2).")  # fmt: skip
    show = functools.partial(_show, as_json=as_json)
    show_report_of_job(submission, _REPORT, show, follows=follows, as_json=as_json)


def _words(sizes: tuple[int, ...], backend: str, seconds_per_size: float) -> list[str]:
    """What the job's processes are started with."""
    options = ["--sizes", f"{sizes[0]}..{sizes[-1]}", "--backend", backend]
    return [*_VERB, *options, "--seconds-per-size", str(seconds_per_size)]


def _check_world_size(processes: int, fix: str) -> None:
    if processes < 2:
        raise HpcddpError(f"One process has nobody to add up with: an all-reduce needs two. {fix}")


def _measure(
    layout: ProcessLayout,
    config: RunConfig,
    run_dir: RunDir | None,
    sizes: tuple[int, ...],
    backend: str,
    seconds_per_size: float,
    *,
    as_json: bool,
) -> None:
    """This process's part. Collective."""
    from hpcddp.measure.allreduce_report import allreduce_document
    from hpcddp.measure.collectives import measure_all_reduce
    from hpcddp.train.device import choose_device
    from hpcddp.train.process_group import backend_of, open_ranks

    _check_world_size(layout.world_size, "Start two or more, such as with srun --ntasks=2.")
    device = choose_device(_DEVICES.get(backend, config.train.device), layout)
    ranks = open_ranks(layout, device, config.train.rendezvous_timeout_s)
    place = {"global_rank": layout.global_rank, "world_size": layout.world_size}
    times = measure_all_reduce(ranks, sizes, device, seconds_per_size=seconds_per_size, **place)
    document = allreduce_document(list(times), layout, backend_of(device))
    if layout.is_main:
        _show(document, as_json=as_json)
    if layout.is_main and run_dir:
        write_report(run_dir, _REPORT, document)
    ranks.close()


def _show(document: dict[str, Any], *, as_json: bool) -> None:
    click.echo(json.dumps(document, indent=2) if as_json else "\n".join(allreduce_lines(document)))
