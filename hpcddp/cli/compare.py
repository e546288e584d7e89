"""`compare`: DataParallel against DDP on one node, or settings of DDP on any number of them."""

import functools
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcddp.cli.compare_text import compare_text
from hpcddp.cli.measuring import measures_here, measuring_options, prepare_job, show_report_of_job
from hpcddp.cli.options import build_request
from hpcddp.cli.submit import warn
from hpcddp.config.layout import ProcessLayout
from hpcddp.config.schema import check_data
from hpcddp.config.write import read_config
from hpcddp.errors import HpcddpError
from hpcddp.launch.measuring import measure_here, write_report
from hpcddp.launch.missing import missing_to_train
from hpcddp.launch.request import ResolvedRequest, resolve_request, world_size
from hpcddp.run_dir import RunDir, write_atomically

if TYPE_CHECKING:
    from hpcddp.measure.cells import Wanted

_REPORT = "compare"
_DEVICES_WITHOUT_GPUS = 2


@click.command()
@measuring_options
@click.option("--modes", default=None, help="some of single,dp,ddp; all of them by default")
@click.option("--devices", help="numbers of devices; by default 1, 2, 4 ... up to the GPUs of a "
              "node as the profile knows it, else of the job; 1,2 on CPUs")  # fmt: skip
@click.option("--weak", is_flag=True, help="as many images per device, not the same global batch")
@click.option("--sweep", "sweeps", multiple=True, metavar="ddp.KEY=V,V,...",
              help="compare settings of ddp instead; any number of nodes")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True,
              help="how often everything is visited in turn")  # fmt: skip
@click.option("--steps", type=click.IntRange(1), default=10, show_default=True,
              help="steps that count at each visit; on GPUs at least, for 2 seconds")  # fmt: skip
@click.pass_context
def command(
    context: click.Context,
    run_dir: Path | None,
    follows: bool,
    as_json: bool,
    **typed: Any,  # noqa: ANN401
) -> None:
    """Where does the time go: DataParallel, DDP and one device, side by side on one node.

    One job that holds the node. All modes are started, then take steps in turn, so that what
    disturbs the machine disturbs them all. --json prints the rows; everything else and a CSV lie
    in reports/ of the run, and `report RUN` draws the page.
    """
    _check_options(typed)
    if measures_here(context, _REPORT, uses=["name"]):
        run = _run_of(context, run_dir, typed)
        measure_here(lambda layout: _measure(layout, run, typed, as_json), run, os.environ)
    request = resolve_request(build_request(context, typed), os.environ)
    more = () if typed["sweeps"] else _one_process(typed, request)
    submission = prepare_job(context, _words(typed), typed, more)
    warn(missing_to_train(request))
    warn(() if typed["sweeps"] else _cpus_unknown(submission.request))
    _check(submission.request, typed)
    show = functools.partial(_show, as_json=as_json)
    show_report_of_job(submission, _REPORT, show, follows=follows, as_json=as_json)


def _check_options(typed: dict[str, Any]) -> None:
    """A sweep is one of ddp, on all devices of the job."""
    if not typed["sweeps"]:
        return
    if typed["modes"] not in (None, "ddp"):
        raise HpcddpError(
            f"--sweep with --modes {typed['modes']}: only ddp has such settings. Leave --modes out."
        )
    if typed["devices"] is not None or typed["weak"]:
        raise HpcddpError(
            "--sweep measures on all devices of the job: choose them by --nodes and "
            "--gpus-per-node (resources.processes_per_node on CPUs), without --devices and --weak."
        )


def _run_of(context: click.Context, run_dir: Path | None, typed: dict[str, Any]) -> RunDir:
    """The run that `compare` has sent, or one for people who start its process themselves."""
    if run_dir is not None:
        return RunDir(run_dir.absolute())
    from hpcddp.launch.direct import open_run

    run, submitted = open_run(build_request(context, typed), typed["name"], os.environ)
    if submitted:
        run.append_event("submitted", **submitted)
    return run


def _wanted(typed: dict[str, Any], gpus_of_node: int | None) -> "Wanted":
    """What was asked for; without --devices all that a node with so many GPUs has."""
    from hpcddp.measure.cells import MODES, Wanted, all_devices, parse_devices, parse_modes

    modes, devices = typed["modes"], typed["devices"]
    return Wanted(
        MODES if modes is None else parse_modes(modes),
        all_devices(gpus_of_node or _DEVICES_WITHOUT_GPUS)
        if devices is None
        else parse_devices(devices),
        typed["weak"],
        typed["rounds"],
        typed["steps"],
    )


def _one_process(typed: dict[str, Any], request: ResolvedRequest) -> tuple[str, ...]:
    """Settings of a job in which one process has the whole node: its CPUs, its GPUs."""
    config = request.config
    gpus, is_asked = _gpus_of_node(request)
    most = max(_wanted(typed, gpus).devices)
    settings = {"resources.processes_per_node": 1}
    if not request.profile.has_gpus:
        settings["resources.cpus_per_process"] = most * (config.resources.cpus_per_process or 1)
    else:
        if not is_asked and (config.resources.gpus_per_node or 0) < most:
            settings["resources.gpus_per_node"] = most
        wanted_gpus = settings.get("resources.gpus_per_node", config.resources.gpus_per_node)
        settings |= _cpus_of_node(request, wanted_gpus or most)
    if "exclusive" not in config.resources.sbatch and request.profile.launcher == "slurm":
        settings["resources.sbatch.exclusive"] = "true"
    return tuple(f"{key}={value}" for key, value in settings.items())


def _cpus_of_node(request: ResolvedRequest, gpus: int) -> dict[str, int]:
    """All CPUs of the node, for the GPUs that hold it, where only its shape says how many there
    are; of a node that is shared as many as go with these GPUs.
    """
    node, resources = request.profile.node, request.config.resources
    if resources.cpus_per_process is not None or node.cpus is None:
        return {}
    is_shared = resources.sbatch.get("exclusive", True) in (False, None)
    go_round = node.gpus if is_shared and node.gpus else gpus
    return {"resources.cpus_per_process": max(1, node.cpus // go_round)}


def _cpus_unknown(request: ResolvedRequest) -> tuple[str, ...]:
    """A sentence where nothing says how many CPUs the one process of the job gets."""
    profile, resources = request.profile, request.config.resources
    says_cpus = resources.cpus_per_process or any("cpus" in key for key in resources.sbatch)
    if says_cpus or not profile.has_gpus or profile.launcher != "slurm":
        return ()
    return (
        f"Profile `{profile.name}` does not say how many CPUs a process or a node has, so the job "
        "asks for none, and Slurm may bind all that `compare` measures to one core. Set the CPUs "
        "for each GPU, for example resources.cpus_per_process=8.",
    )


def _gpus_of_node(request: ResolvedRequest) -> tuple[int | None, bool]:
    """How many GPUs a job can have of a node, and whether that is because somebody asks for so
    many; else it is all of them, where the profile knows.
    """
    profile, given = request.profile, request.config.resources.gpus_per_node
    source = request.resolved.sources.get("resources.gpus_per_node")
    is_asked = given is not None and source != profile.layer.name
    return (given if is_asked else profile.node.gpus or given), is_asked


def _words(typed: dict[str, Any]) -> list[str]:
    """What the job's processes are started with."""
    words = [_REPORT, "--rounds", str(typed["rounds"]), "--steps", str(typed["steps"])]
    for sweep in typed["sweeps"]:
        words += ["--sweep", sweep]
    for name in ("modes", "devices"):
        words += [] if typed[name] is None else [f"--{name}", typed[name]]
    return [*words, "--weak"] if typed["weak"] else words


def _check(request: ResolvedRequest, typed: dict[str, Any]) -> None:
    """Raise HpcddpError for what could only fail once the job has waited for its turn."""
    from hpcddp.measure.cells import check_swept, check_wanted

    config = request.config
    check_data(config.data)
    if typed["sweeps"]:
        check_swept(typed["sweeps"], config, world_size(config, request.profile))
    else:
        wanted = _wanted(typed, config.resources.gpus_per_node)
        check_wanted(wanted, config)
        _check_gpus(max(wanted.devices), request)


def _check_gpus(most: int, request: ResolvedRequest) -> None:
    gpus = request.config.resources.gpus_per_node
    if request.profile.has_gpus and gpus is not None and gpus < most:
        raise HpcddpError(
            f"{most} devices are to be compared, and the job asks for {gpus} GPUs. Use "
            f"--gpus-per-node {most}, or fewer --devices."
        )


def _measure(layout: ProcessLayout, run: RunDir, typed: dict[str, Any], as_json: bool) -> None:
    """This process's part. Collective."""
    config, keep = read_config(run), functools.partial(_keep, run=run)
    if typed["sweeps"]:
        from hpcddp.measure.cells import check_swept
        from hpcddp.measure.sweep import sweep_here

        settings = check_swept(typed["sweeps"], config, layout.world_size)
        document = sweep_here(config, settings, layout, typed["rounds"], typed["steps"], keep)
    else:
        _check_alone(layout)
        from hpcddp.measure.node_comparison import compare_on, this_node

        node = this_node(config, os.environ)
        document = compare_on(node, config, _wanted(typed, len(node.gpus)), os.environ, keep)
    if document is not None:
        _show(document, as_json)
        _leave(document, run, is_printed=True)


def _check_alone(layout: ProcessLayout) -> None:
    if layout.world_size > 1:
        raise HpcddpError(
            f"`compare` was started as {layout.world_size} processes, and one starts all the "
            "others itself. Use one task with all devices of the node: srun --ntasks=1 "
            "--gpus-per-node=N --cpus-per-task=M python -m hpcddp compare ..."
        )


def _keep(document: dict[str, Any], run: RunDir) -> None:
    """What is known so far, should the job end before the last round."""
    try:
        _leave(document, run, is_printed=False)
    except (HpcddpError, OSError) as error:
        print(f"Of the rounds so far: {error}", file=sys.stderr)


def _leave(document: dict[str, Any], run: RunDir, *, is_printed: bool) -> None:
    """The reports in the run directory."""
    from hpcddp.measure.document import csv_text

    write_report(run, _REPORT, document, is_printed=is_printed)
    write_atomically(run.reports / f"{_REPORT}.csv", csv_text(document["rows"]))


def _show(document: dict[str, Any], as_json: bool) -> None:
    rows = json.dumps(document["rows"], indent=2)
    click.echo(rows if as_json else compare_text(document))
