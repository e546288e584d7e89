"""The local executor: detached, restarted while it answers 75, the same script and environment."""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest
from ended import has_ended
from waiting import wait_until

from hpcddp.launch.local import supervise
from hpcddp.launch.supervisor import read_supervisor, supervisor_alive
from hpcddp.run_dir import RunDir


def hpcddp(*words, timeout=240):
    return subprocess.run(
        [sys.executable, "-m", "hpcddp", *words], capture_output=True, text=True, timeout=timeout
    )


def submit(name, code, *words, nodes=2):
    command = ["submit", "--cluster", "local", "--nodes", str(nodes), "--name", name, *words]
    done = hpcddp(*command, "--", sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    return done


def kinds(run_dir):
    return [event["event"] for event in run_dir.read_events()]


def test_a_run_sees_torchs_variables_ends_as_finished_and_keeps_no_secret(workplace, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_s3cret")
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
    submit("r", f"import os, json; print(json.dumps([os.environ[k] for k in {names}]))")
    assert hpcddp("wait", "r").returncode == 0
    run_dir = RunDir(workplace / "runs" / "r")
    logs = [run_dir.rank_log(0, rank).read_text().splitlines() for rank in range(2)]
    assert all("GLOO_SOCKET_IFNAME=lo: all processes are on this host" in log[0] for log in logs)
    first, second = (json.loads(log[-1]) for log in logs)
    assert first[:5] == ["0", "2", "0", "1", "127.0.0.1"]
    assert second[:4] == ["1", "2", "0", "1"]
    assert first[5] == second[5]
    assert sorted(kinds(run_dir)) == ["finished", "launched", "network", "started", "submitted"]
    files = [path for path in run_dir.path.rglob("*") if path.is_file()]
    assert not [path for path in files if b"hf_s3cret" in path.read_bytes()]


def test_two_emulated_nodes_of_two_processes_are_one_world(workplace, monkeypatch):
    monkeypatch.setenv("HPCDDP_DEVICE", "cpu")  # four processes, however many GPUs are here
    words = ["submit", "--cluster", "local", "--nodes", "2", "--name", "r"]
    ask = [sys.executable, "-m", "hpcddp", "env", "--json"]
    assert hpcddp(*words, "resources.processes_per_node=2", "--", *ask).returncode == 0
    assert hpcddp("wait", "r").returncode == 0
    logs = [RunDir(workplace / "runs" / "r").rank_log(0, rank).read_text() for rank in range(4)]
    answers = [json.loads(log[log.index("{") :]) for log in logs]
    assert [answer["global_rank"] for answer in answers] == [0, 1, 2, 3]
    assert [answer["node_rank"] for answer in answers] == [0, 0, 1, 1]
    assert [answer["local_rank"] for answer in answers] == [0, 1, 0, 1]
    shared = ("world_size", "local_world_size", "num_nodes", "hosts", "launcher", "master_addr")
    worlds = {json.dumps([answer[key] for key in (*shared, "master_port")]) for answer in answers}
    assert len(worlds) == 1
    expected = [4, 2, 2, ["node0", "node1"], "local", "127.0.0.1"]
    assert [answers[0][key] for key in shared] == expected


def test_a_job_of_this_machine_keeps_the_devices_and_the_wish_of_who_sent_it(
    workplace, monkeypatch
):
    """Folders with `%` and backslashes do no harm where no Slurm reads them."""
    odd = workplace / "100% \\j"
    odd.mkdir()
    monkeypatch.chdir(odd)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("HPCDDP_DEVICE", "cuda")
    names = ["CUDA_VISIBLE_DEVICES", "HPCDDP_DEVICE"]
    submit("r", f"import os; print(*[os.environ[k] for k in {names}])", nodes=1)
    assert hpcddp("wait", "r").returncode == 0
    assert RunDir(odd / "runs" / "r").rank_log(0, 0).read_text() == "1 cuda\n"


def test_exit_code_75_starts_it_again_with_new_logs(workplace):
    code = (
        "import os, sys; n = int(os.environ['HPCDDP_ATTEMPT']); print('attempt', n);"
        "sys.exit(75 if n < 2 else 0)"
    )
    submit("r", code, nodes=1)
    assert hpcddp("wait", "r").returncode == 0
    run_dir = RunDir(workplace / "runs" / "r")
    for attempt in range(3):
        assert run_dir.rank_log(attempt, 0).read_text() == f"attempt {attempt}\n"
    assert kinds(run_dir).count("requeued") == 2
    assert kinds(run_dir)[-1] == "finished"


def test_a_program_that_always_answers_75_is_given_up(workplace):
    submit("r", "import sys; sys.exit(75)", nodes=1)
    done = hpcddp("wait", "r")
    assert done.returncode == 75
    assert "3 attempts in a row ended within 60 s by themselves" in done.stdout
    assert kinds(RunDir(workplace / "runs" / "r")).count("requeued") == 2


def test_a_signal_to_the_supervisor_alone_ends_the_run_with_all_its_processes(workplace):
    submit("r", "import time; print('up', flush=True); time.sleep(600)")
    run_dir = RunDir(workplace / "runs" / "r")
    wait_until(lambda: run_dir.rank_log(0, 1).exists() and run_dir.rank_log(0, 1).stat().st_size)
    os.kill(read_supervisor(run_dir)["pid"], signal.SIGTERM)
    wait_until(lambda: not supervisor_alive(run_dir))
    done = hpcddp("status", "r", "--json")
    assert json.loads(done.stdout)["state"] == "cancelled"
    assert "SIGTERM" in json.loads(done.stdout)["reason"]


def test_a_script_that_leaves_with_75_starts_again_whatever_could_be_recorded(tmp_path):
    run_dir, starts = RunDir(tmp_path), tmp_path / "starts"
    run_dir.script.write_text(f"echo >> {starts}; [ $(wc -l < {starts}) -ge 3 ] || exit 75; exit 1")
    assert supervise(run_dir) == 1
    assert starts.read_text().count("\n") == 3


_SUPERVISE_ON_A_FULL_DISK = """
import errno, sys
from pathlib import Path
from hpcddp.launch.local import supervise
from hpcddp.run_dir import RunDir
def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")
RunDir.append_event = full
supervise(RunDir(Path(sys.argv[1])))
"""


def test_a_signal_to_the_supervisor_ends_all_processes_on_a_full_disk_too(tmp_path):
    run_dir = RunDir(tmp_path)
    run_dir.script.write_text(f"sleep 600 & echo $! > {tmp_path}/pid; wait")
    words = [sys.executable, "-c", _SUPERVISE_ON_A_FULL_DISK, str(tmp_path)]
    with subprocess.Popen(words, start_new_session=True) as supervisor:
        wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
        below = int((tmp_path / "pid").read_text())
        supervisor.terminate()
        wait_until(lambda: has_ended(below))


_TOLD_AS_A_SCRIPT_STARTS = """
import os, signal, subprocess, sys
from pathlib import Path
from hpcddp.launch.local import supervise
from hpcddp.run_dir import RunDir
start = subprocess.Popen.__init__
def be_told(process, *words, **options):
    if options["env"]["HPCDDP_RESTART_COUNT"] == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGTERM)
    start(process, *words, **options)
subprocess.Popen.__init__ = be_told
supervise(RunDir(Path(sys.argv[1])))
"""


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_signal_to_the_supervisor_ends_the_script_that_it_is_about_to_start(tmp_path, restarts):
    run_dir = RunDir(tmp_path)
    run_dir.script.write_text(
        f"[ $HPCDDP_RESTART_COUNT = {restarts} ] || exit 75; sleep 2; touch {tmp_path}/goes-on"
    )
    words = [sys.executable, "-c", _TOLD_AS_A_SCRIPT_STARTS, str(tmp_path), str(restarts)]
    assert subprocess.run(words, start_new_session=True, timeout=240).returncode == 0
    assert kinds(run_dir) == ["cancelled"]
    assert not (tmp_path / "goes-on").exists()


def test_a_failure_is_final_and_keeps_its_code(workplace):
    submit("r", "import os, sys; sys.exit(7 * int(os.environ['RANK']))")
    assert hpcddp("wait", "r").returncode == 7
    run_dir = RunDir(workplace / "runs" / "r")
    assert kinds(run_dir)[-1] == "failed"
    assert not run_dir.attempt_logs(1).exists()
    status = json.loads(hpcddp("status", "r", "--json").stdout)
    assert status["reason"].endswith(f"see {run_dir.rank_log(0, 1)}")


def test_a_failure_within_the_budget_is_tried_again(workplace):
    code = "import os, sys; sys.exit(3 if os.environ['HPCDDP_ATTEMPT'] == '0' else 0)"
    submit("r", code, "requeue.max_failures=1")
    assert hpcddp("wait", "r").returncode == 0
    ends = ["requeued", "launched", "network", "started", "finished"]
    assert kinds(RunDir(workplace / "runs" / "r"))[-5:] == ends


def test_the_job_outlives_the_terminal_it_was_sent_from(workplace):
    told = workplace / "told"
    program = f"bash -c 'until [ -e {told} ]; do sleep 0.1; done'"
    command = f"{sys.executable} -m hpcddp submit --cluster local --name r -- {program}"
    shell = subprocess.Popen(["bash", "-c", f"{command}; sleep 600"], start_new_session=True)
    run_dir = RunDir(workplace / "runs" / "r")
    wait_until(lambda: supervisor_alive(run_dir))
    os.killpg(shell.pid, signal.SIGHUP)
    shell.wait()
    told.touch()
    assert hpcddp("wait", "r").returncode == 0


def test_cancel_leaves_no_process_and_no_restart(workplace):
    submit("r", "import time; time.sleep(600)")
    run_dir = RunDir(workplace / "runs" / "r")
    wait_until(lambda: run_dir.rank_log(0, 1).exists())
    supervisor = psutil.Process(read_supervisor(run_dir)["pid"])
    below = supervisor.children(recursive=True)
    assert hpcddp("cancel", "r").returncode == 0
    assert all(has_ended(process.pid) for process in [supervisor, *below])
    assert json.loads(hpcddp("status", "r", "--json").stdout)["state"] == "cancelled"
    assert not run_dir.attempt_logs(1).exists()


def test_follow_ends_with_the_jobs_exit_code(workplace):
    words = ["submit", "--cluster", "local", "--name", "r", "--follow"]
    assert hpcddp(*words, "--", "bash", "-c", "exit 5").returncode == 5


@pytest.mark.parametrize("command", ["/no/such/program", "no-such-program"])
def test_a_program_that_does_not_exist_is_one_sentence_in_status(workplace, command):
    words = ["submit", "--cluster", "local", "--name", "r", "--follow", "--", command]
    assert hpcddp(*words).returncode == 2
    assert f"Cannot run `{command}`" in hpcddp("status", "r").stdout
