"""What runs in every process of a job: find the place, read the configuration, train.

Imports torch only inside the call, after the signal handlers are in place.
"""

import dataclasses
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from hpcddp.cluster.devices import DEVICE_VARIABLE
from hpcddp.cluster.layout import layout_from_environ
from hpcddp.cluster.network import Network, settle_network
from hpcddp.cluster.ports import ephemeral_range
from hpcddp.cluster.rendezvous_address import is_one_host
from hpcddp.cluster.scrub import chosen_note
from hpcddp.config.layout import EXIT_AGAIN, EXIT_DONE, EXIT_INTERRUPTED, ProcessLayout
from hpcddp.config.schema import RunConfig
from hpcddp.config.write import read_config
from hpcddp.errors import HpcddpError
from hpcddp.launch.failure import fail
from hpcddp.launch.history import is_submission, since_sent
from hpcddp.launch.sizes import threads_of_process
from hpcddp.launch.witness import attend
from hpcddp.leave import leave
from hpcddp.run_dir import RunDir, survive_unwritten_records
from hpcddp.stop_flag import STOP_SIGNALS, StopFlag

if TYPE_CHECKING:
    from hpcddp.train.ownership import Ownership

PROCESS_VARIABLE = "HPCDDP_PROCESS_ID"  # the process that has said all this before it became us
_MOST_HOSTS_TOLD = 64
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # and an ignored signal stays so over exec

_log = logging.getLogger("hpcddp")


def run_job(
    run_dir: RunDir, environ: Mapping[str, str], submitted: Mapping[str, Any] | None = None
) -> NoReturn:
    """Run this process's part of the job and leave with its exit code.

    `submitted` is for the main process of a start that nobody has recorded yet.

    Leaves through `os._exit`: after an error in a collective, an orderly shutdown could wait for
    the other processes for ever, and the job would not end.
    """
    stop_flag = StopFlag.install()
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO, stream=sys.stdout)
    layout: ProcessLayout | None = None
    try:
        config = read_config(run_dir)
        layout = find_layout(config, environ)
        code = None if submitted else _over_already(layout, run_dir)
        if code is None:
            owner = _open_attempt(config, layout, run_dir, stop_flag, environ, submitted or {})
            code = _work(config, layout, run_dir, stop_flag, environ, owner)
    except BaseException as error:
        code = fail(error, run_dir, layout, environ)
    leave(code)


def _open_attempt(
    config: RunConfig,
    layout: ProcessLayout,
    run_dir: RunDir,
    stop_flag: StopFlag,
    environ: Mapping[str, str],
    submitted: Mapping[str, Any],
) -> "Ownership":
    """Claim the run, and only then write about it: in other hands it tells another story.

    Raises HpcddpError, one of `NOT_OURS`. Nobody knows where a user's own program saves, so that
    claims nothing.
    """
    from hpcddp.train.ownership import Ownership

    owner, notes = Ownership(run_dir, layout), None
    if layout.is_main:
        if not config.command:
            owner.claim()
        if submitted:
            with survive_unwritten_records():
                run_dir.append_event("submitted", **submitted)
        notes = attend(config, layout, run_dir, stop_flag, environ)
    if not config.command:
        failure = partial(run_dir.failure_of, layout.job_id, layout.attempt)
        threading.Thread(
            target=_leave_when_told,
            args=(stop_flag, notes, owner, failure),
            name="early-stop",
            daemon=True,
        ).start()
    return owner


def _leave_when_told(
    stop_flag: StopFlag,
    notes: threading.Thread | None,
    owner: "Ownership",
    failure: Callable[[], int | None],
) -> None:
    """Until the processes have met there is nothing to save, and nobody waits for this one: leave
    at once, also while torch is loaded. The main process asks Slurm why before it does.
    """
    notice = stop_flag.wait()
    if notes is not None and not stop_flag.leaves_together:
        notes.join()  # for many seconds, in which the processes may meet
    with stop_flag.leaving:
        if stop_flag.leaves_together:
            return
        if notes is not None:
            owner.release()
        _log.info("%s before training: nothing to save", signal.Signals(notice.signum).name)
        leave(failure() or EXIT_AGAIN)


def _over_already(layout: ProcessLayout, run_dir: RunDir) -> int | None:
    """The exit code where there is nothing to do: Slurm revives ended jobs too, if it is asked."""
    events = run_dir.read_events()
    newest = next((event for event in reversed(events) if is_submission(event)), {})
    if not layout.restart_count and "again" not in newest:
        return None  # a user has sent a new job to go on, whatever was before
    told = {event["event"] for event in since_sent(events)}
    ends = {"finished": EXIT_DONE, "cancelled": EXIT_INTERRUPTED}
    kind = next((kind for kind in ends if kind in told), None)
    if kind is None:
        return None
    _log.info("This run is %s; there is nothing to do", kind)
    return ends[kind]


def find_layout(config: RunConfig, environ: Mapping[str, str]) -> ProcessLayout:
    """The place of this process; a device asked for in the configuration decides over a guess."""
    if config.train.device != "auto":
        environ = {**environ, DEVICE_VARIABLE: config.train.device}
    return layout_from_environ(environ, ephemeral=ephemeral_range())


def _work(
    config: RunConfig,
    layout: ProcessLayout,
    run_dir: RunDir,
    stop_flag: StopFlag,
    environ: Mapping[str, str],
    owner: "Ownership",
) -> int:
    layout, network = with_network(layout, environ, uses_gloo=not config.command)
    tell_network = partial(_tell_network, run_dir, layout, network)
    # The one place that writes this process's environment, before torch is loaded.
    os.environ.update(network.variables)
    if config.command:
        tell_network()
        threads = {"OMP_NUM_THREADS": str(threads_of_process(config.resources))}
        os.environ.update(chosen_note({**network.variables, **threads}))
        os.environ.update(rank_variables(layout) | {PROCESS_VARIABLE: str(os.getpid())})
        _record_start(run_dir, layout)
        _become(config.command, stop_flag)
    from hpcddp.train.loop import train

    # Until all have met the run may be another job's, and only the main process would know.
    return train(config, layout, run_dir, stop_flag, owner, tell_network)


def _tell_network(run_dir: RunDir, layout: ProcessLayout, network: Network) -> None:
    if network.reasons and _tells_all(layout):
        place = {"attempt": layout.attempt, "node_rank": layout.node_rank}
        with survive_unwritten_records():
            run_dir.append_event("network", **place, choices=list(network.reasons))


def _tells_all(layout: ProcessLayout) -> bool:
    """True where this process writes down for all what was chosen: once per host of a job that is
    not huge. Beyond, one file is no place for what every node's log has anyway.
    """
    is_first_here = layout.local_rank == 0 and not is_one_host(layout)
    return layout.is_main or (is_first_here and layout.num_nodes <= _MOST_HOSTS_TOLD)


def with_network(
    layout: ProcessLayout, environ: Mapping[str, str], *, uses_gloo: bool = True
) -> tuple[ProcessLayout, Network]:
    """The layout with the address of rank 0 as this node knows it, and all that was settled.

    Logs both, and what is odd about the layout; not once more in the program that a process of
    the job has become, which takes what was settled for exported by the user.
    """
    is_news = environ.get(PROCESS_VARIABLE) != str(os.getpid())
    for warning in layout.warnings if is_news else ():
        _log.warning("%s", warning)
    network = settle_network(layout, environ, uses_gloo=uses_gloo)
    for reason in network.reasons if is_news else ():
        _log.info("Network: %s", reason)
    return dataclasses.replace(layout, master_addr=network.master_addr), network


def _record_start(run_dir: RunDir, layout: ProcessLayout) -> None:
    """What training says of its start itself; a user's own program does not know how."""
    if layout.is_main:
        with survive_unwritten_records():
            run_dir.append_event(
                "started",
                attempt=layout.attempt,
                job_id=layout.job_id,
                world_size=layout.world_size,
                hosts=list(layout.hosts),
            )


def rank_variables(layout: ProcessLayout) -> dict[str, str]:
    """What torch's `env://` and the programs written for it read."""
    place = {
        "RANK": layout.global_rank,
        "WORLD_SIZE": layout.world_size,
        "LOCAL_RANK": layout.local_rank,
        "LOCAL_WORLD_SIZE": layout.local_world_size,
        "GROUP_RANK": layout.node_rank,
        "MASTER_ADDR": layout.master_addr,
        "MASTER_PORT": layout.master_port,
    }
    return {name: str(value) for name, value in place.items()}


def _become(command: tuple[str, ...], stop_flag: StopFlag) -> NoReturn:
    """Replace this process by the user's own program."""
    sys.stdout.flush()
    _hand_signals_over(stop_flag)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise HpcddpError(
            f"Cannot run `{command[0]}`: {error.strerror}. Give a program on PATH or a path that "
            "exists on the compute nodes after `--`."
        ) from None


def _hand_signals_over(stop_flag: StopFlag) -> None:
    """Let every signal do to the next program what it does to one started from a shell.

    A stop signal that has come already ends this process instead: the program would never know.
    """
    for signum in (*STOP_SIGNALS, *_IGNORED_BY_PYTHON):
        signal.signal(signum, signal.SIG_DFL)
    if stop_flag.notice:
        os.kill(os.getpid(), stop_flag.notice.signum)
