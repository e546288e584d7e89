"""The way of the verbs that measure through a job and back, and what they refuse inside one."""

import os
import sys
from types import SimpleNamespace

import pytest

from hpcddp.cli import compare, doctor, main, measuring
from hpcddp.cli.bench_text import allreduce_lines
from hpcddp.errors import HpcddpError
from hpcddp.launch.measuring import write_report
from hpcddp.run_dir import RunDir


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """A job that has left its report, as if it had just been sent and followed."""
    run_dir = RunDir(tmp_path / "r")
    write_report(run_dir, "allreduce", {"rows": [1]})
    monkeypatch.setattr(measuring, "send", lambda submission: (submission, "1"))
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


@pytest.mark.parametrize(("sizes", "said"), [(1, "take several sizes"), (2, "does not grow")])
def test_why_no_line_was_fitted_is_said(sizes, said):
    *_, last = allreduce_lines(bandwidths([1024] * sizes, None))
    assert said in last


def bandwidths(sizes, fit):
    """A report of `bench allreduce`."""
    row = dict.fromkeys(("seconds_quartile_1", "seconds_quartile_3", "algbw_gb_per_s"), 1.0)
    row |= {"seconds": 1.0, "busbw_gb_per_s": 0.125, "n": 3, "discarded": 3}
    report = {"world_size": 2, "nodes": 1, "backend": "gloo", "versions": {"torch": "2"}}
    return {**report, "rows": [row | {"bytes": size} for size in sizes], "fit": fit}


def test_a_line_has_its_errors_and_is_not_recommended_where_it_misses_far():
    fit = {"alpha_s": 1e-3, "alpha_error_s": 2e-5, "beta_gb_per_s": 1.0, "bus_gb_per_s": 1.5}
    fit |= {"beta_error_gb_per_s": 0.03, "worst_relative_miss": 0.2, "is_line": True}
    *_, last = allreduce_lines(bandwidths([1024, 4096], fit))
    assert "latency 1.00 ms ± 20.0 us, bus bandwidth 1.5 GB/s = 12 Gbit/s ± 3.0%" in last
    assert last.endswith("it misses a size by up to 20%")
    report = bandwidths([1024, 2048, 4096], fit | {"is_line": False})
    report["rows"][0]["seconds"] = 3.0  # the smallest is not always the fastest
    *_, last = allreduce_lines(report)
    assert "take 1000.00 ms, of 2048 bytes, for the latency" in last
    assert last.endswith("the bus bandwidth of 4096 bytes, 0.125 GB/s = 1 Gbit/s")


@pytest.fixture
def hpcddp(tmp_path, monkeypatch, capfd):
    """Run the whole command line in an empty folder; the exit code and what went wrong."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "HPCDDP_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def hpcddp(*words):
        monkeypatch.setattr(sys, "argv", ["hpcddp", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, capfd.readouterr().err

    return hpcddp


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("doctor --nodes 2", "--nodes"),
        ("doctor --no-follow", "--follow"),
        ("compare --gpus-per-node 2 --time 5", "--gpus-per-node, --time"),
        ("bench allreduce --name b", "--name"),
    ],
)
def test_what_only_a_new_job_heeds_is_refused_in_a_shell_of_a_job(
    hpcddp, monkeypatch, tmp_path, words, named
):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_STEP_ID", "0")  # srun --pty bash
    code, said = hpcddp(*words.split())
    assert code == 2
    assert "because SLURM_STEP_ID is set" in said
    assert f"Leave out {named}; or" in said
    assert not list(tmp_path.iterdir())


def test_a_job_may_name_its_run_directory_and_a_comparison_its_run(monkeypatch):
    monkeypatch.setenv("HPCDDP_LAUNCHER", "single")
    for words, verb in (("--name c", compare), ("--run-dir r --nodes 2", doctor)):
        with verb.command.make_context(None, words.split()) as context:
            assert measuring.measures_here(context, "x", uses=["name"])


@pytest.mark.parametrize("verb", ["doctor --nodes 2", "compare", "bench allreduce"])
def test_the_folder_of_a_job_is_refused_where_one_is_only_to_be_sent(hpcddp, tmp_path, verb):
    code, said = hpcddp(*verb.split(), "--run-dir", "r", "--cluster", "local")
    assert code == 2
    assert "--run-dir is for the processes of a job" in said
    assert not list(tmp_path.iterdir())
