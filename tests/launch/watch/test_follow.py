"""Following a run shows what it writes, survives its restarts and ends with its exit code."""

import contextlib
import io
import json
import os
import pty
import threading
import time
from types import SimpleNamespace

import pytest

from hpcddp.launch.scheduler import JobInfo
from hpcddp.launch.supervisor import read_supervisor, record_supervisor
from hpcddp.launch.watch import follow as follow_module
from hpcddp.launch.watch import observer
from hpcddp.launch.watch.follow import follow
from hpcddp.run_dir import RunDir, append_json_line

POLL_S = 0.02
TRAIN = {"step": 10, "epoch": 0.5, "loss": 1.25, "lr": 0.1, "images_per_s": 312.4}
EVALUATION = {"step": 20, "epoch": 1.0, "accuracy": 0.9712, "eval_loss": 0.1, "samples": 360}


@pytest.fixture
def run_dir(tmp_path):
    """A local run whose supervisor is this process, so that it lives until its events end it."""
    run_dir = RunDir(tmp_path / "demo")
    run_dir.path.mkdir()
    record_supervisor(run_dir)
    run_dir.append_event(
        "submitted", run="demo", launcher="local", job_id=f"local-{os.getpid()}", cluster="local",
        nodes=2, processes_per_node=1,
    )  # fmt: skip
    return run_dir


def started(run_dir, attempt=0):
    hosts = ["here", "there"]
    run_dir.append_event("started", attempt=attempt, world_size=2, hosts=hosts, max_steps=20)


def followed(run_dir):
    out = io.StringIO()
    return follow(run_dir, POLL_S, out), out.getvalue()


def test_a_finished_run_is_told_in_lines_with_its_accuracy_at_the_end(run_dir):
    for node_rank in (1, 0):
        place = {"host": f"n{node_rank}", "node_rank": node_rank}
        run_dir.append_event("network", **place, choices=["GLOO_SOCKET_IFNAME=ib0: so"])
    started(run_dir)
    append_json_line(run_dir.metrics, TRAIN)
    append_json_line(run_dir.metrics, EVALUATION)
    run_dir.append_event("checkpoint", step=20, seconds=0.5, bytes=94_300_000)
    run_dir.append_event("finished", attempt=0, step=20, accuracy=0.9712)
    code, text = followed(run_dir)
    assert code == 0
    for line in (
        "on cluster local, 2 nodes x 1 process\n",
        "network on n0: GLOO_SOCKET_IFNAME=ib0: so",
        "attempt 0 started: 2 processes on here, there",
        "step 10/20  epoch 0.50  loss 1.2500  312 images/s",
        "step 20/20  epoch 1.00  eval loss 0.1000  test accuracy 97.12 %",
        "checkpoint at step 20: 94.3 MB in 0.50 s",
    ):
        assert text.count(line) == 1, text
    assert "n1" not in text
    assert text.splitlines()[-1] == "Run demo finished: test accuracy 97.12 %"


def test_what_two_files_tell_is_shown_in_the_order_in_which_it_happened(run_dir):
    now = time.time()
    started(run_dir)
    append_json_line(run_dir.metrics, TRAIN | {"time": now + 1})
    run_dir.append_event("signal", attempt=0, signal="SIGTERM", step=15, time=now + 2)
    append_json_line(run_dir.metrics, TRAIN | {"step": 20, "time": now + 3})
    run_dir.append_event("finished", attempt=0, step=20, accuracy=0.5, time=now + 4)
    _, text = followed(run_dir)
    order = ("attempt 0 started", "step 10/20", "received SIGTERM", "step 20/20", "finished after")
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_an_accuracy_of_the_average_is_called_so(run_dir):
    started(run_dir)
    append_json_line(run_dir.metrics, {**EVALUATION, "weights": "ema"})
    run_dir.append_event("finished", attempt=0, step=20, accuracy=0.9712)
    _, text = followed(run_dir)
    assert text.count("test accuracy 97.12 % (EMA weights)") == 2  # of the record and of the run


def test_records_are_shown_as_they_come_through_a_requeue(run_dir):
    def live():
        started(run_dir)
        append_json_line(run_dir.metrics, TRAIN)
        run_dir.append_event("stopped", attempt=0, step=12)
        time.sleep(5 * POLL_S)
        run_dir.append_event("requeued", attempt=0, reason="preempted")
        started(run_dir, attempt=1)
        run_dir.append_event("resumed", attempt=1, step=12)
        append_json_line(run_dir.metrics, TRAIN | {"step": 20})
        run_dir.append_event("finished", attempt=1, step=20, accuracy=0.5)

    life = threading.Timer(0.1, live)
    life.start()
    code, text = followed(run_dir)
    life.join()
    assert code == 0
    order = (
        "attempt 0 started", "stopped at step 12", "requeued: preempted", "attempt 1 started",
        "resumed from the checkpoint of step 12", "step 20/20", "Run demo finished",
    )  # fmt: skip
    assert text.count("stopped at step 12") == 1  # once as an event, not again as a reason
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_a_failure_is_shown_with_the_last_lines_of_the_rank_that_failed_first(run_dir):
    started(run_dir)
    for rank, words in ((0, "I only lost my peer"), (1, "Traceback\nRuntimeError: boom")):
        log = run_dir.rank_log(0, rank)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("noise\n" * 100 + words + "\n")
    for rank, error in ((1, "RuntimeError: boom"), (0, "ConnectionError: gone")):
        run_dir.append_event("failed", attempt=0, global_rank=rank, exit_code=1, error=error)
    run_dir.append_event("failed", attempt=0, exit_code=3, reason="exit code 3")
    code, text = followed(run_dir)
    assert code == 3
    assert f"--- the last lines of {run_dir.rank_log(0, 1)}" in text
    assert "Traceback" in text
    assert "I only lost my peer" not in text
    assert text.count("noise") < 20
    assert "rank 1 on" in text.splitlines()[-1]
    assert "RuntimeError: boom" in text.splitlines()[-1]


def test_without_a_failing_rank_the_end_of_the_batch_log_is_shown(run_dir):
    run_dir.batch_log.parent.mkdir()
    run_dir.batch_log.write_text("job.sbatch: line 3: module: command not found\n")
    run_dir.append_event("failed", attempt=0, exit_code=127)
    code, text = followed(run_dir)
    assert (code, "module: command not found" in text) == (127, True)


def test_a_cancelled_run_ends_with_1(run_dir):
    record = read_supervisor(run_dir)
    record["create_time"] -= 3600  # that one is gone
    (run_dir.path / "supervisor.json").write_text(json.dumps(record))
    run_dir.append_event("cancelled", by="ada")
    run_dir.append_event("failed", exit_code=143, reason="exit code 143")
    code, text = followed(run_dir)
    assert (code, text.splitlines()[-1]) == (1, "Run demo cancelled: cancelled by ada")


def test_of_a_resumed_run_the_old_history_is_not_told_again(run_dir):
    started(run_dir)
    append_json_line(run_dir.metrics, TRAIN)
    run_dir.append_event("failed", attempt=0, exit_code=1)
    run_dir.append_event("submitted", launcher="local", job_id=f"local-{os.getpid()}")
    run_dir.append_event("finished", attempt=1, step=20)
    code, text = followed(run_dir)
    assert code == 0
    assert text.count("submitted: ") == 1
    assert "attempt 0" not in text
    assert "step 10" not in text


def test_ctrl_c_ends_the_display_and_says_how_to_go_on(run_dir, monkeypatch):
    def interrupt(seconds):
        raise KeyboardInterrupt

    started(run_dir)
    monkeypatch.setattr(follow_module, "time", SimpleNamespace(sleep=interrupt))
    code, text = followed(run_dir)
    assert code == 130
    assert "python -m hpcddp cancel demo" in text
    assert "cancelled" not in [event["event"] for event in run_dir.read_events()]


def test_why_it_waits_is_said_once_however_often_the_estimate_moves(run_dir, monkeypatch):
    waiting = {"state": "PENDING", "reason": "Priority"}
    answers = iter(
        [*(waiting | {"start_time": time} for time in range(9)),
         {"state": "PENDING", "reason": "Resources"}, {"state": "COMPLETED"}]
    )  # fmt: skip
    run_dir.append_event("submitted", launcher="slurm", job_id="38")
    monkeypatch.setattr(observer, "SLURM_PAUSE_S", 0)
    monkeypatch.setattr(observer, "query_jobs", lambda ids: {"38": JobInfo("38", **next(answers))})
    code, text = followed(run_dir)
    assert code == 0
    assert text.count("pending: Priority; expected start") == 1
    assert text.count("pending: Resources") == 1


def read_all(descriptor, chunks):
    """Read a pseudo-terminal until its other end is closed, which reads as an error on Linux."""
    with contextlib.suppress(OSError):
        while chunk := os.read(descriptor, 1 << 16):
            chunks.append(chunk)


def test_a_terminal_gets_a_progress_bar(run_dir, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    started(run_dir)
    append_json_line(run_dir.metrics, TRAIN)
    run_dir.append_event("finished", attempt=0, step=20, accuracy=0.9712)
    master, slave = pty.openpty()
    chunks = []
    reader = threading.Thread(target=read_all, args=(master, chunks))
    reader.start()
    with os.fdopen(slave, "w") as terminal:
        code = follow(run_dir, POLL_S, terminal)
    reader.join(timeout=100)
    os.close(master)
    text = b"".join(chunks).decode()
    assert code == 0
    assert "━" in text
    for words in ("20/20", "312 images/s", "loss 1.2500", "test accuracy 97.12 %"):
        assert words in text


def test_unknown_events_and_odd_records_do_not_end_the_display(run_dir):
    run_dir.append_event("hang", suspect=3)
    run_dir.append_event("checkpoint")
    with run_dir.metrics.open("w") as file:
        file.write(json.dumps({"step": 1, "loss": float("nan"), "epoch": None}) + "\n[1]\n{}\n")
    run_dir.append_event("finished")
    code, text = followed(run_dir)
    assert (code, "hang" in text, "loss nan" in text) == (0, True, True)
