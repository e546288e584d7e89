"""The user's own program (`-- COMMAND`) on the real cluster: exit code, restarts, turn."""

import sys

from hpcddp_user import take_port

from hpcddp.cluster.ports import choose_ports

LISTENS = (
    "import os, socket; print('port', os.environ['MASTER_PORT'], flush=True); "
    "socket.create_server(('', int(os.environ['MASTER_PORT'])))"
)


def test_the_programs_own_exit_code_is_the_jobs(hpcddp, cluster):
    # One task fails, and srun ends the other: its own code would be 143, that of the other.
    script = '[ "$RANK" = 1 ] && { sleep 2; exit 3; }; exec sleep 300'
    job_id = hpcddp.submit("own", command=["bash", "-c", script])
    status = hpcddp.wait_for("own", "failed")
    assert status["exit_code"] == 3
    assert "exit code 3 of task 1 on gpu-02" in status["reason"]
    assert status["reason"].endswith("rank-0001.log")
    assert cluster.show(job_id)["ExitCode"] == "3:0"


def test_a_port_that_a_stranger_has_costs_one_attempt(hpcddp, cluster):
    words = ["resources.sbatch.hold=true", "resources.sbatch.nodelist=gpu-01"]
    words += ["requeue.max_failures=1"]
    job_id = hpcddp.submit("r", *words, nodes=1, command=[sys.executable, "-c", LISTENS])
    ports = [choose_ports(f"{job_id}.0", start)[0] for start in range(2)]
    take_port(cluster, "gpu-01", ports[0])
    assert cluster.run(["scontrol", "release", job_id]).returncode == 0
    status = hpcddp.wait_for("r", "finished", timeout=180)
    assert [attempt["end"] for attempt in status["attempts"]] == ["failed", "finished"]
    logs = [hpcddp.run_dir("r").rank_log(attempt, 0).read_text() for attempt in range(2)]
    assert all(f"port {port}\n" in log for port, log in zip(ports, logs, strict=True))
    assert ["Address already in use" in log for log in logs] == [True, False]


def test_one_that_leaves_early_ends_the_others_where_the_user_says_how_soon(hpcddp, cluster):
    script = '[ "$RANK" = 0 ] && exit 0; exec sleep 600'
    job_id = hpcddp.submit("r", "resources.srun.wait=3", command=["bash", "-c", script])
    assert cluster.wait(job_id, {"FAILED", "COMPLETED"}, timeout=300) == "FAILED"
    assert "First task exited 3s ago" in hpcddp.run_dir("r").batch_log.read_text()
    assert hpcddp.status("r")["state"] == "failed"


def test_a_program_that_always_asks_for_one_more_start_is_given_up(hpcddp, cluster):
    hpcddp.submit("again", command=["bash", "-c", "exit 75"])
    status = hpcddp.wait_for("again", "failed", timeout=120)
    assert "3 attempts in a row ended within 60 s by themselves" in status["reason"]
    assert len(status["attempts"]) == 3
    assert len(hpcddp.events("again", "requeued")) == 2


def test_afterok_waits_through_the_restarts_of_a_run(hpcddp, cluster):
    first = 'until [ -e go ]; do sleep 0.2; done; [ "$HPCDDP_ATTEMPT" = 0 ] && exit 75; exit 0'
    folder = hpcddp.runs.parent
    script = f"cd {folder}; {first}"
    hpcddp.submit("first", command=["bash", "-c", script])
    hpcddp.submit("second", "--afterok", "first", command=["bash", "-c", "true"])
    hpcddp.wait_for("first", "running")
    waiting = hpcddp.status("second")
    assert waiting["state"] == "pending"
    assert waiting["reason"].startswith("Dependency: another job has to end first")
    ask = waiting["reason"].partition("Which one: ")[2].split()
    assert f"afterok:{hpcddp.status('first')['job_id']}" in cluster.run(ask).stdout
    (folder / "go").touch()
    hpcddp.wait_for("first", "finished", timeout=120)
    hpcddp.wait_for("second", "finished")
    first_end = hpcddp.events("first", "finished")[-1]["time"]
    assert hpcddp.events("second", "launched")[0]["time"] > first_end
    begins = hpcddp.run_dir("first").batch_log.read_text().split("hpcddp: attempt ")[1:]
    assert [text[0] for text in begins] == ["0", "1"]


def test_a_run_that_waits_for_one_that_fails_does_not_wait_for_ever(hpcddp):
    script = f"cd {hpcddp.runs.parent}; until [ -e go ]; do sleep 0.2; done; exit 4"
    hpcddp.submit("first", command=["bash", "-c", script])
    hpcddp.submit("second", "--afterok", "first", command=["bash", "-c", "true"])
    (hpcddp.runs.parent / "go").touch()
    hpcddp.wait_for("first", "failed")
    status = hpcddp.wait_for("second", "cancelled")
    assert status["exit_code"] is None
    assert hpcddp.events("second", "launched") == []
