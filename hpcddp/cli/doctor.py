"""`doctor`: what is wrong with this login node, and with --nodes N with the nodes of a job."""

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import click

from hpcddp.cli.measuring import (
    OF_A_NEW_JOB,
    config_here,
    measures_here,
    measuring_options,
    prepare_job,
    typed_options,
)
from hpcddp.cli.submit import announce
from hpcddp.cluster.filesystems import existing_part
from hpcddp.cluster.live import nodes_of
from hpcddp.cluster.profile import CLUSTER_VARIABLE, choose_profile, load_profile
from hpcddp.cluster.shared_runs import note_proof
from hpcddp.config.layout import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, ProcessLayout
from hpcddp.config.schema import RunConfig
from hpcddp.doctor.findings import (
    Finding,
    Verdict,
    as_document,
    fail,
    finding,
    from_document,
    has_failed,
)
from hpcddp.doctor.job_end import examine_end
from hpcddp.doctor.login_checks import all_nodes_see_runs, examine_login, settle_by_job
from hpcddp.doctor.login_facts import read_login_facts
from hpcddp.doctor.text import report_lines
from hpcddp.errors import ConfigError, HpcddpError, SubmissionFailed
from hpcddp.launch.measuring import measure_here, read_report, write_report
from hpcddp.launch.phrases import command_line, count_text
from hpcddp.launch.submission import Submission, send
from hpcddp.launch.watch.observer import Observer
from hpcddp.run_dir import RunDir, runs_root

_REPORT = "doctor"
_TAIL_BYTES = 20_000
_SHORT_TIME = "00:10:00"


@click.command()
@measuring_options
@click.pass_context
def command(
    context: click.Context,
    run_dir: Path | None,
    follows: bool,
    as_json: bool,
    **typed: Any,  # noqa: ANN401
) -> None:
    """Examine this login node; with --nodes N also N nodes and what is between them, by a job.

    Inside a job (srun, torchrun) every process takes part. Each finding is ok, warn, fail or not
    testable, with what to type. Exit code 1 if one has failed. In a job data.root=FOLDER looks at
    data, too.
    """
    if measures_here(context, _REPORT):
        _examine_here(context, run_dir, typed, as_json=as_json)
    if typed["nodes"] is None:
        _refuse_unheeded(context)
    cluster = typed["cluster"] or "auto"
    facts = read_login_facts(os.environ, cluster, runs_root(os.environ))
    findings = list(examine_login(facts))
    document: dict[str, Any] = {}
    if typed["nodes"] is not None and not _is_hopeless(findings):
        typed["time"] = typed["time"] or facts["profile"]["time_min"] or _SHORT_TIME
        document = _document_of_job(context, typed, follows=follows, as_json=as_json)
        job = from_document(document)
        findings = [*settle_by_job(findings, job), *job]
        if facts["profile"].get("launcher") != "local" and all_nodes_see_runs(job):
            note_proof(runs_root(os.environ))
    _show(as_document(findings, **_measured(document)), as_json=as_json)
    sys.exit(EXIT_FAILED if has_failed(findings) else EXIT_DONE)


def _refuse_unheeded(context: click.Context) -> None:
    """Without a job there is nothing that the options of one, or settings, could be for."""
    unheeded = [*typed_options(context, OF_A_NEW_JOB), *context.params["words"]]
    if unheeded:
        raise HpcddpError(
            f"`doctor` without --nodes sends no job, and {', '.join(unheeded)} would do nothing. "
            "Add --nodes N, or leave it out."
        )


def _is_hopeless(findings: list[Finding]) -> bool:
    """No job can be sent without these."""
    needed = ("torch", "slurm", "profile")
    return has_failed(each for each in findings if each.name in needed)


def _measured(document: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in document.items() if name != "checks"}


def _document_of_job(
    context: click.Context, typed: dict[str, Any], *, follows: bool, as_json: bool
) -> dict[str, Any]:
    """Send a job, show it to its end, and return its report; of one that failed, why.

    Raises HpcddpError for what was typed wrong.
    """
    host = socket.gethostname()
    submission = prepare_job(context, [_REPORT], typed, is_test=True)
    if too_many := _too_many_nodes(submission):
        return as_document([finding("job", host, too_many)])
    try:
        submission, job_id = send(submission)
        announce(submission, job_id, err=as_json)
    except (HpcddpError, SubmissionFailed) as error:
        if isinstance(error, ConfigError) and submission.run_dir.config.exists():
            raise  # the name is another run's
        fix = "python -m hpcddp submit --dry-run, with the same options"
        refused = fail(f"not sent: {error}", "a job that Slurm takes", fix)
        return as_document([finding("job", host, refused)])
    if not follows:
        return as_document([])
    from hpcddp.launch.watch.follow import follow

    code = follow(submission.run_dir, out=sys.stderr if as_json else sys.stdout)
    if code == EXIT_INTERRUPTED:  # the job goes on, and nothing is wrong with it
        sys.exit(code)
    try:
        if code == EXIT_DONE:
            return read_report(submission.run_dir, _REPORT)
    except HpcddpError:
        pass  # the end of its log says more than that there is no report
    return as_document([_failed_job(submission, host)])


def _too_many_nodes(submission: Submission) -> Verdict | None:
    """Slurm takes a job for more nodes than there are, which then waits for ever."""
    request = submission.request
    asked, partition = request.config.resources.nodes, request.config.resources.partition
    there = nodes_of(partition) if request.profile.launcher == "slurm" else None
    if there is None or asked <= there:
        return None
    where = f"partition {partition}" if partition else "the default partition"
    found = f"not sent: {where} has {count_text(there, 'node')}"
    return fail(found, count_text(asked, "node"), f"--nodes {there}, or another --partition")


def _failed_job(submission: Submission, host: str) -> Finding:
    run_dir = submission.run_dir
    [status] = Observer([run_dir], whole=True).look()
    try:
        log = run_dir.batch_log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
    except OSError:
        log = ""
    look = command_line("logs", run_dir.name, "--rank", "all")
    return examine_end(host, str(run_dir.path.parent), status.reason, log, look)


def _examine_here(
    context: click.Context, path: Path | None, typed: dict[str, Any], *, as_json: bool
) -> None:
    """This process's part in a job; leaves the program."""
    run_dir = RunDir(path.absolute()) if path else None

    def work(layout: ProcessLayout) -> int:
        from hpcddp.measure.job_doctor import examine

        config = config_here(context, run_dir, typed)
        expected = _expected_busbw(config.cluster if run_dir else typed["cluster"], config)
        folder = run_dir.path if run_dir else existing_part(runs_root(os.environ))
        document, failed = examine(layout, os.environ, folder, config, expected)
        if layout.is_main:
            _leave(document, run_dir, as_json=as_json)
        # A job that has found something wrong has done its work: whoever sent it reads the report.
        return EXIT_FAILED if failed and run_dir is None else EXIT_DONE

    measure_here(work, run_dir, os.environ)


def _leave(document: dict[str, Any], run_dir: RunDir | None, *, as_json: bool) -> None:
    _show(document, as_json=as_json)
    if run_dir:
        write_report(run_dir, _REPORT, document)


def _show(document: dict[str, Any], *, as_json: bool) -> None:
    lines = report_lines(from_document(document))
    click.echo(json.dumps(document, indent=2) if as_json else "\n".join(lines))


def _expected_busbw(cluster: str | None, config: RunConfig) -> float | None:
    """What the named profile expects; without a name, the one that fits this node."""
    wanted = cluster or os.environ.get(CLUSTER_VARIABLE) or "auto"
    try:
        name = choose_profile(wanted, os.environ)
        profile = load_profile(name, os.environ, config.resources)
    except ConfigError:
        return None  # a profile of one's own need not be readable on the node
    return profile.expected_busbw_gb_per_s
