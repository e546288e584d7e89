"""The way of the verbs that measure through a job and back, and what they refuse inside one."""

from types import SimpleNamespace

import pytest

from hpcddp.cli import measuring
from hpcddp.errors import HpcddpError
from hpcddp.launch.measuring import write_report
from hpcddp.run_dir import RunDir


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """A job that has left its report, as if it had just been sent and followed."""
    run_dir = RunDir(tmp_path / "r")
    write_report(run_dir, "allreduce", {"rows": [1]})
    monkeypatch.setattr(measuring, "send", lambda submission: "1")
    monkeypatch.setattr(measuring, "announce", lambda *_, **__: None)
    monkeypatch.setattr("hpcddp.launch.watch.follow.follow", lambda *_, **__: 0)
    return SimpleNamespace(run_dir=run_dir)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (HpcddpError("Figures need matplotlib."), "Figures need matplotlib."),
        (ImportError("libfreetype: no such file"), "ImportError: libfreetype: no such file"),
        (OSError(122, "Disk quota exceeded"), "OSError: [Errno 122] Disk quota exceeded"),
        (ValueError("axes\nin two lines"), "ValueError: axes in two lines"),
    ],
)
def test_no_failure_of_drawing_loses_the_report(measured, monkeypatch, capsys, error, said):
    shown = []

    def draw(*_):
        assert shown == [{"rows": [1]}]  # before anything can fail
        raise error

    monkeypatch.setattr(measuring, "draw_report", draw)
    measuring.show_report_of_job(measured, "allreduce", shown.append, follows=True, as_json=False)
    assert capsys.readouterr().err == f"No page: {said}\n"
