"""Show a run until it has ended, through all its restarts. Reads files, changes nothing."""

import sys
import time
from pathlib import Path
from typing import TextIO

from hpcddp.config.layout import EXIT_INTERRUPTED
from hpcddp.launch.history import RunHistory, is_submission, read_history
from hpcddp.launch.phrases import command_line
from hpcddp.launch.watch.display import Display, build_display
from hpcddp.launch.watch.failure import failure_log
from hpcddp.launch.watch.observer import Observer
from hpcddp.launch.watch.status import RunStatus
from hpcddp.launch.watch.words import is_worth_showing, outcome_line
from hpcddp.run_dir import RunDir

_LAST_LINES, _LAST_BYTES = 20, 16 * 1024


def follow(run_dir: RunDir, poll_s: float = 1.0, out: TextIO | None = None) -> int:
    """Show the run's progress on `out` (stdout) until its end; returns its exit code.

    0 finished, its own code or 1 where it failed, 1 where it was cancelled. Ctrl-C ends the
    display and not the run: 130, and the lines to type.
    """
    display = build_display(out or sys.stdout)
    try:
        status = _show_until_end(run_dir, poll_s, display)
    except KeyboardInterrupt:
        display.close()
        _say_that_it_goes_on(run_dir, display)
        return EXIT_INTERRUPTED
    finally:
        display.close()
    return status.run_exit_code


def _show_until_end(run_dir: RunDir, poll_s: float, display: Display) -> RunStatus:
    # Of a run that was submitted once, all is shown that it wrote; of a resumed one, what is new.
    is_new = sum(map(is_submission, read_history(run_dir).events)) <= 1
    observer = Observer([run_dir], whole=is_new)
    [status] = observer.look()
    news = observer.news if is_new else observer.histories[0].current
    while True:
        for record in filter(is_worth_showing, news):
            display.record(record, status)
        display.status(status)
        if observer.is_over:
            break
        time.sleep(poll_s)
        [status] = observer.look()
        news = observer.news
    display.close()
    _show_outcome(status, observer.histories[0], display)
    return status


def _show_outcome(status: RunStatus, history: RunHistory, display: Display) -> None:
    if status.state == "failed":
        log = Path(failure_log(history.run_dir, history.current))
        for line in _last_lines(log, history.run_dir):
            display.line(line)
    display.line(outcome_line(status))


def _last_lines(log: Path, run_dir: RunDir) -> list[str]:
    """The end of a log below a header; of the batch log where that one does not exist."""
    path = log if log.exists() else run_dir.batch_log
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LAST_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return [f"--- the last lines of {path}", *lines[-_LAST_LINES:], "---"]


def _say_that_it_goes_on(run_dir: RunDir, display: Display) -> None:
    display.line(
        f"Run {run_dir.name} goes on; only this display has ended. Next:\n"
        f"  {command_line('status', run_dir.name, '--watch')}\n"
        f"  {command_line('logs', run_dir.name, '--follow')}\n"
        f"  {command_line('cancel', run_dir.name)}"
    )
