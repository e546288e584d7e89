"""Whether a run starts again, on a real Slurm: for each way in which an attempt can end.

The program is a user's own that needs no torch. It saves nothing and leaves with 75 when told to.
"""

import os
import random
import signal
import sys
import time

import pytest
from ended import has_ended
from hpcddp_user import ROOT, SMALLEST, losses, processes_of
from interruptions import kill_slurmd, start_slurmd

# Tells its start in $0, and ends by itself once $0.told exists.
STOPS = [
    "bash",
    "-c",
    'trap "exit 75" TERM USR1 USR2; echo start >> "$0"; until [ -e "$0.told" ]; do sleep 0.1; done',
]

# A process of training that is told to end itself waits until the file exists.
LINGERS = """
    def linger(code, leave=os._exit):
        while not os.path.exists({0!r}):
            time.sleep(0.05)
        leave(code)
    os._exit = linger
"""
# In the first start the second process is told to stop when all are there but it does not know.
TOLD_AS_THEY_MEET = """
    from hpcddp.stop_flag import StopFlag
    def be_told(flag):
        os.kill(os.getpid(), 15)
        time.sleep(300)
    if env["SLURM_PROCID"] == "1" and "SLURM_RESTART_COUNT" not in env:
        StopFlag.leave_together = be_told
"""


@pytest.fixture
def start(hpcddp, cluster, tmp_path):
    """Submit a run of two processes that stop when told; wait until both have started."""

    def start(*words, command=STOPS, name="demo"):
        job_id = hpcddp.submit(name, *words, command=[*command, str(tmp_path / name)])
        wait_for_starts(cluster, tmp_path / name, 2)
        return job_id

    return start


def end_controller(cluster):
    """Slurm's controller is gone when this returns; the jobs run on."""
    pid = int((cluster.state_dir / "slurmctld.pid").read_text())
    os.kill(pid, signal.SIGTERM)
    cluster.wait_until(lambda: "" if has_ended(pid) else "slurmctld lives", 120)


def wait_for_starts(cluster, path, count, timeout=120):
    def problem():
        seen = path.read_text().split() if path.exists() else []
        return "" if len(seen) >= count else f"{len(seen)} processes have started, not {count}"

    cluster.wait_until(problem, timeout)


@pytest.fixture
def finish(hpcddp, cluster, tmp_path):
    """Wait for the second start of the run, let it end by itself, and return its status."""

    def finish(name="demo", starts=4):
        wait_for_starts(cluster, tmp_path / name, starts)
        (tmp_path / f"{name}.told").touch()
        assert hpcddp("wait", name, "--timeout", "120").returncode == 0
        return hpcddp.status(name)

    return finish


def restarts(cluster, job_id):
    return int(cluster.show(job_id)["Restarts"])


@pytest.mark.parametrize("partition", ["preempt-grace", "preempt-cancel", "preempt-cancel-nograce"])
def test_a_run_that_is_preempted_with_grace_goes_on(hpcddp, cluster, start, finish, partition):
    job_id = start(f"resources.partition={partition}")
    cluster.preempt(job_id)
    event = hpcddp.wait_for_event("demo", "requeued")
    assert (event["reason"], event["exit_code"]) == ("preempted", 75)
    finished = finish()
    assert [a["end"] for a in finished["attempts"]] == ["preempted", "finished"]
    assert "ATTEMPT" in hpcddp("status", "demo").stdout
    assert restarts(cluster, job_id) == 1


STUBBORN = [*STOPS[:2], STOPS[2].replace("exit 75", "sleep 300")]


def test_a_stop_that_takes_longer_than_slurm_leaves_comes_back_where_slurm_requeues(
    hpcddp, cluster, start, finish
):
    job_id = start("resources.partition=preempt-grace", command=STUBBORN)
    cluster.preempt(job_id)
    cluster.wait_until(lambda: "" if restarts(cluster, job_id) else "not requeued", 120)
    finished = finish()
    assert [a["end"] for a in finished["attempts"]] == ["preempted", "finished"]


def test_a_stop_that_takes_longer_than_slurm_leaves_fails_where_slurm_cancels(
    hpcddp, cluster, start
):
    job_id = start("resources.partition=preempt-cancel", command=STUBBORN)
    cluster.preempt(job_id)
    hpcddp.wait_for("demo", "failed", "preempted, and this partition does not requeue", timeout=120)


@pytest.fixture
def user_signal(cluster):
    """An admin has turned it on: a preempted job gets the signal of --signal, and no SIGTERM."""
    before = cluster.conf.read_text()
    cluster.conf.write_text(f"{before}SlurmctldParameters=preempt_send_user_signal\n")
    assert cluster.run(["scontrol", "reconfigure"]).returncode == 0
    yield
    cluster.conf.write_text(before)
    assert cluster.run(["scontrol", "reconfigure"]).returncode == 0


def test_a_run_that_is_preempted_with_its_own_signal_goes_on(
    user_signal, cluster, hpcddp, start, finish, tmp_path
):
    say = STOPS[2].replace("exit 75", 'echo USR2 > "$0.signal"; exit 75').replace("TERM USR1 ", "")
    job_id = start("resources.partition=preempt-grace", command=["bash", "-c", say])
    cluster.preempt(job_id)
    assert hpcddp.wait_for_event("demo", "requeued")["reason"] == "preempted"
    assert (tmp_path / "demo.signal").read_text() == "USR2\n"
    finish()
    assert restarts(cluster, job_id) == 1


def test_a_run_that_is_preempted_before_slurm_hears_its_requeue_goes_on(
    hpcddp, cluster, start, finish, tmp_path
):
    asked = tmp_path / "asked"
    slow = f'[ "$1" = requeue ] && mkdir {asked} && sleep 60'
    hpcddp.replace_tool(tmp_path, "scontrol", f'{slow}; exec scontrol "$@"')
    job_id = start("resources.partition=preempt-cancel-nograce")
    cluster.run(["scancel", "--signal=TERM", job_id])
    cluster.wait_until(lambda: "" if asked.exists() else "no last act", 120)
    cluster.preempt(job_id)
    assert finish()["state"] == "finished"
    assert restarts(cluster, job_id) == len(hpcddp.events("demo", "requeued")) == 1


def test_without_grace_slurm_requeues_by_itself_and_only_once(hpcddp, cluster, start, finish):
    job_id = start("resources.partition=preempt-nograce")
    cluster.preempt(job_id)
    event = hpcddp.wait_for_event("demo", "requeued")
    assert (event["reason"], event["exit_code"]) == ("requeued by Slurm", 75)
    # Slurm does not tell this from a requeue by hand, but on this partition it is the likely one.
    assert [attempt["end"] for attempt in finish()["attempts"]] == ["preempted", "finished"]
    assert restarts(cluster, job_id) == 1


def test_a_program_that_knows_no_signal_goes_on_after_a_preemption(hpcddp, cluster, start, finish):
    deaf = ["bash", "-c", 'echo start >> "$0"; until [ -e "$0.told" ]; do sleep 0.1; done']
    job_id = start("resources.partition=preempt-grace", command=deaf)
    cluster.preempt(job_id)
    assert hpcddp.wait_for_event("demo", "requeued")["reason"] == "preempted"
    assert finish()["state"] == "finished"
    assert restarts(cluster, job_id) == 1


def test_a_run_that_reaches_its_time_limit_goes_on(hpcddp, cluster, start, finish):
    job_id = start("resources.time=2", "resources.warn_before_s=60")
    event = hpcddp.wait_for_event("demo", "requeued", timeout=120)
    assert event["reason"] == "time limit"
    assert finish()["state"] == "finished"
    assert restarts(cluster, job_id) == 1


FORBIDDEN = ["resources.sbatch.requeue=false", "resources.sbatch.no_requeue=true"]


def test_requeueing_is_allowed_where_it_is_forbidden(hpcddp, cluster, start, finish):
    job_id = start("resources.partition=preempt-grace", *FORBIDDEN)
    cluster.preempt(job_id)
    assert finish()["job_id"] == job_id
    assert restarts(cluster, job_id) == 1


def test_where_it_stays_forbidden_a_new_job_takes_over(hpcddp, cluster, start, finish, tmp_path):
    hpcddp.replace_tool(tmp_path, "scontrol", '[ "$1" != update ] && exec scontrol "$@"')
    job_id = start("resources.partition=preempt-grace", *FORBIDDEN)
    cluster.preempt(job_id)
    finished = finish()
    assert (finished["state"], finished["run"]) == ("finished", "demo")
    assert finished["job_id"] != job_id
    assert [event.get("again") for event in hpcddp.events("demo", "submitted")] == [None, True]


@pytest.mark.parametrize("is_back", [False, True], ids=["stays_away", "is_back_in_time"])
def test_a_run_goes_on_after_a_node_failure(hpcddp, cluster, start, finish, is_back):
    job_id = start()
    node = cluster.show(job_id)["BatchHost"]
    kill_slurmd(cluster, node)
    cluster.wait_until(lambda: "" if restarts(cluster, job_id) else "not requeued", 120)
    status = hpcddp.status("demo")
    if status["state"] != "running":  # for who looks in time
        assert (status["state"], f"jobid={job_id} StartTime=now" in status["reason"]) == (
            "requeued",
            "BeginTime" in status["reason"],
        )
    if is_back:
        start_slurmd(cluster, node)
    finished = finish()
    if not is_back:
        start_slurmd(cluster, node)
    assert restarts(cluster, job_id) == 1
    ends = [attempt["end"] for attempt in finished["attempts"]]
    assert ends == ["daemon of its node restarted" if is_back else "node failure", "finished"]


def test_a_node_that_is_lost_before_srun_reaches_it_costs_an_attempt(
    hpcddp, cluster, finish, tmp_path
):
    """Only these two will do, so none is kept from the next attempt: that would never come."""
    kill_slurmd(cluster, cluster.nodes[1])
    only = f'resources.sbatch.nodelist="{",".join(cluster.nodes[:2])}"'
    job_id = hpcddp.submit("demo", only, command=[*STOPS, str(tmp_path / "demo")])
    assert hpcddp.wait_for_event("demo", "requeued", timeout=120)["reason"] == "node failure"
    start_slurmd(cluster, cluster.nodes[1])
    assert finish(starts=3)["attempts"][0]["end"] == "node failure"
    assert cluster.show(job_id)["Restarts"] == "1"


def excluded(hpcddp, cluster):
    """What is kept from the run's newest job."""
    return cluster.show(hpcddp.events("demo", "submitted")[-1]["job_id"])["ExcNodeList"]


def test_where_requeueing_is_forbidden_a_run_goes_on_after_a_node_failure(
    hpcddp, cluster, start, finish
):
    job_id = start(*FORBIDDEN)
    batch_host = cluster.show(job_id)["BatchHost"]
    node = next(host for host in hpcddp.events("demo", "started")[0]["hosts"] if host != batch_host)
    kill_slurmd(cluster, node)
    hpcddp.wait_for_event("demo", "requeued", timeout=200)
    cluster.wait_until(lambda: "" if excluded(hpcddp, cluster) == node else "not excluded", 120)
    start_slurmd(cluster, node)
    assert [attempt["end"] for attempt in finish()["attempts"]] == ["node failure", "finished"]


def test_a_run_goes_on_once_where_its_step_is_aborted_after_a_node_failure(
    hpcddp, cluster, start, finish, tmp_path
):
    job_id = start()
    node = cluster.show(job_id)["BatchHost"]
    kill_slurmd(cluster, node)
    wait_for_starts(cluster, tmp_path / "demo", 4)
    start_slurmd(cluster, node)
    cluster.run(["scancel", "--signal=KILL", f"{job_id}.0"])
    finished = finish(starts=6)
    assert [each["end"] for each in finished["attempts"]][::2] == ["node failure", "finished"]
    assert not hpcddp.events("demo", "failed")


@pytest.mark.slow  # srun and scontrol take their time to give up
def test_a_controller_that_is_away_at_the_last_act_is_waited_for(
    hpcddp, cluster, start, finish, tmp_path
):
    stop = tmp_path / "stop"
    job_id = start(
        command=["bash", "-c", STOPS[2].replace("sleep", f"[ -e {stop} ] && exit 75; sleep")]
    )
    end_controller(cluster)  # before anything asks it
    stop.touch()
    log = hpcddp.run_dir("demo").batch_log
    cluster.wait_until(lambda: "" if "does not answer" in log.read_text() else "it does", 240)
    stop.unlink()
    controller = cluster.node_exec("login", ["slurmctld", "-f", cluster.conf])
    assert controller.returncode == 0, controller.stderr
    assert hpcddp.wait_for_event("demo", "requeued", timeout=120)["exit_code"] == 75
    assert finish()["job_id"] == job_id
    assert restarts(cluster, job_id) == 1


@pytest.mark.slow
def test_a_controller_that_is_away_when_the_processes_are_to_start_costs_an_attempt(
    hpcddp, cluster, finish, tmp_path
):
    waits, is_away = tmp_path / "waits", tmp_path / "is-away"
    wait = f"touch {waits}; until [ -e {is_away} ]; do sleep 0.1; done"
    hpcddp.replace_tool(tmp_path, "srun", f'{wait}; exec srun "$@"')
    job_id = hpcddp.submit("demo", command=[*STOPS, str(tmp_path / "demo")])
    cluster.wait_until(lambda: "" if waits.exists() else "not started", 120)
    end_controller(cluster)
    is_away.touch()
    log = hpcddp.run_dir("demo").batch_log
    cluster.wait_until(lambda: "" if "Unable to" in log.read_text() else "srun still asks", 240)
    controller = cluster.node_exec("login", ["slurmctld", "-f", cluster.conf])
    assert controller.returncode == 0, controller.stderr
    assert "away" in hpcddp.wait_for_event("demo", "requeued", timeout=120)["reason"]
    assert finish(starts=2)["job_id"] == job_id


def test_of_an_array_only_the_element_that_asked_comes_back(hpcddp, cluster, tmp_path):
    hpcddp.submit("sweep", command=["true"], nodes=1)  # a run directory for the user's own script
    hpcddp.wait_for("sweep", "finished")
    run_dir = hpcddp.run_dir("sweep").path
    script = (
        f"#!/bin/bash\ncd {tmp_path}; code=0\n"
        '[ "$SLURM_ARRAY_TASK_ID" = 1 ] && [ ! -e once ] && touch once && code=75\n'
        f"cd {ROOT}\n"
        f"{sys.executable} -m hpcddp.launch.requeue --run-dir {run_dir} --exit-code $code\n"
    )
    job_id = cluster.sbatch(script, "--array=1-2", "--requeue")
    cluster.wait(job_id, {"COMPLETED"}, timeout=120)
    elements = {job["ArrayTaskId"]: job["Restarts"] for job in cluster.show_all(job_id)}
    assert elements == {"1": "1", "2": "0"}


def test_a_crash_is_tried_again_as_often_as_it_was_allowed(hpcddp, cluster, tmp_path):
    command = ["bash", "-c", 'echo start >> "$0"; exit 3', str(tmp_path / "crash")]
    job_id = hpcddp.submit("crash", "requeue.max_failures=1", command=command, nodes=1)
    failed = hpcddp.wait_for("crash", "failed", "exit code 3", timeout=120)
    assert failed["exit_code"] == 3
    assert restarts(cluster, job_id) == 1
    assert (tmp_path / "crash").read_text().split() == ["start"] * 2


def test_a_finished_run_that_is_requeued_does_nothing(hpcddp, cluster, tmp_path):
    command = ["bash", "-c", 'echo start >> "$0"', str(tmp_path / "short")]
    job_id = hpcddp.submit("short", command=command, nodes=1)
    cluster.wait(job_id, "COMPLETED")
    cluster.run(["scontrol", "requeue", job_id])
    cluster.wait_for_restart(job_id)
    cluster.wait(job_id, "COMPLETED", timeout=120)
    assert restarts(cluster, job_id) == 1
    assert (tmp_path / "short").read_text().split() == ["start"]
    assert hpcddp.status("short")["state"] == "finished"


@pytest.mark.parametrize("partition", ["preempt-grace", "preempt-nograce"])
def test_a_run_that_finishes_while_it_is_preempted_trains_no_more(
    hpcddp, cluster, tmp_path, partition
):
    """SIGTERM comes when all is evaluated and saved, but the process has not left. Without grace
    Slurm requeues; with grace the job completes, and here somebody requeues it afterwards.
    """
    last_word = tmp_path / "may-leave"
    hpcddp.begin_pythons_with(tmp_path / "site", LINGERS.format(str(last_word)))
    words = [*SMALLEST, f"resources.partition={partition}"]
    job_id = hpcddp.submit("demo", *words, nodes=1)
    hpcddp.wait_for_event("demo", "finished")
    cluster.preempt(job_id)
    hpcddp.wait_for_event("demo", "stop_reason")
    last_word.touch()
    if partition == "preempt-grace":
        cluster.wait(job_id, "COMPLETED")
        assert cluster.run(["scontrol", "requeue", job_id]).returncode == 0
    cluster.wait_until(lambda: "" if restarts(cluster, job_id) else "not requeued", 120)
    cluster.run(["scontrol", "update", f"jobid={job_id}", "StartTime=now"])
    cluster.wait(job_id, "COMPLETED", timeout=120)
    assert restarts(cluster, job_id) == 1
    assert (hpcddp.run_dir("demo").path / "logs" / "attempt-001").exists()
    told = [event["event"] for event in hpcddp.events("demo")]
    assert [told.count(kind) for kind in ("started", "checkpoint", "finished")] == [1, 1, 1]
    assert not {"requeued", "failed", "cancelled"} & set(told)
    assert list(losses(hpcddp.run_dir("demo"))) == [1]
    status = hpcddp.status("demo")
    assert status["state"] == "finished"


def test_a_signal_before_python_is_up_is_no_failure(hpcddp, cluster, finish, tmp_path):
    """The first start is killed as SIGTERM kills a Python that has no handler yet."""
    late = "if 'SLURM_RESTART_COUNT' not in env: time.sleep(300)"
    hpcddp.begin_pythons_with(tmp_path / "site", late)
    words = ["resources.partition=preempt-grace"]
    job_id = hpcddp.submit("demo", *words, command=[*STOPS, str(tmp_path / "demo")])
    cluster.wait_until(lambda: "" if dict(processes_of(cluster, job_id)) else "no process", 120)
    cluster.preempt(job_id)
    event = hpcddp.wait_for_event("demo", "requeued")
    assert (event["reason"], event["exit_code"]) == ("preempted", 143)
    assert "failure" not in event
    assert finish(starts=2)["state"] == "finished"


def test_one_process_that_is_told_while_all_meet_costs_no_attempt(hpcddp, tmp_path):
    hpcddp.begin_pythons_with(tmp_path / "site", TOLD_AS_THEY_MEET)
    hpcddp.submit("demo", *SMALLEST)
    event = hpcddp.wait_for_event("demo", "requeued")
    assert (event["exit_code"], "failure" in event) == (75, False)
    hpcddp.wait_for("demo", "finished", timeout=180)
    assert not hpcddp.events("demo", "failed")


def test_where_the_last_act_fails_the_shell_requeues(hpcddp, cluster, start, finish, tmp_path):
    is_last_act = "'hpcddp.launch.requeue' in sys.orig_argv"
    hpcddp.begin_pythons_with(tmp_path / "site", "os._exit(1)", is_last_act)
    job_id = start("resources.partition=preempt-grace")
    cluster.preempt(job_id)
    wait_for_starts(cluster, tmp_path / "demo", 4)
    assert restarts(cluster, job_id) == 1


# Moments at which a user cancels. The last act takes some tenths of a second on a busy machine.
MOMENTS = ("submitted", "running", "last_act", "requeued", "preempted")
PARTITIONS = dict.fromkeys(("preempted", "in_grace"), ("resources.partition=preempt-grace",))


def not_preempted(cluster, job_id):
    """Empty once it is; the requeue, which may come at once, forgets the time."""
    shown = cluster.show(job_id)
    is_so = shown["PreemptTime"] != "None" or shown["Restarts"] != "0"
    return "" if is_so else f"not preempted: {cluster.run(['sinfo', '--list-reasons']).stdout}"


def cancel_at(moment, draw, hpcddp, cluster, name, job_id, by_hpcddp):
    def cancel():
        if by_hpcddp:
            assert hpcddp("cancel", name).returncode == 0
        else:
            cluster.cancel(job_id)

    if moment == "running":
        time.sleep(draw.uniform(0, 0.5))
    elif moment == "last_act":
        cluster.run(["scancel", "--signal=TERM", job_id])  # to the processes only: they leave
        time.sleep(draw.uniform(0, 1.0))
    elif moment == "preempted":  # in the same second, so that Slurm has two equal times
        cluster.preempt(job_id, hold_s=1)
        cluster.wait_until(lambda: not_preempted(cluster, job_id), 120)
    elif moment == "in_grace":
        cluster.preempt(job_id, hold_s=1)
        time.sleep(draw.uniform(0, 3.0))
    elif moment == "requeued":
        cluster.run(["scancel", "--signal=TERM", job_id])
        hpcddp.wait_for_event(name, "requeued")
        cluster.wait_until(lambda: "" if restarts(cluster, job_id) else "not requeued", 120)
        time.sleep(draw.uniform(0, 3.0))
    cancel()


def cancel_once(number, moment, hpcddp, cluster, tmp_path, by_hpcddp):
    """Cancel one run at that moment; it must be over then, and stay so."""
    draw, name = random.Random(number), f"demo-{number}"
    words, command = PARTITIONS.get(moment, ()), [*STOPS, str(tmp_path / name)]
    job_id = hpcddp.submit(name, *words, command=command, nodes=1)
    if moment == "submitted":
        time.sleep(draw.uniform(0, 0.5))
    else:
        wait_for_starts(cluster, tmp_path / name, 1)
    cancel_at(moment, draw, hpcddp, cluster, name, job_id, by_hpcddp)
    return name, job_id


def assert_all_cancelled(cancelled, hpcddp, cluster):
    ends = []
    for name, job_id in cancelled:
        # `hpcddp cancel` tells the last act first, which may leave before Slurm hears of it.
        ends.append(cluster.wait(job_id, {"CANCELLED", "FAILED"}))
        assert hpcddp.status(name)["state"] == "cancelled", name
    time.sleep(12)  # longer than this cluster holds a requeued job back
    assert ends == [cluster.show(job_id)["JobState"] for _, job_id in cancelled]


@pytest.mark.parametrize("by_hpcddp", [False, True], ids=["scancel", "hpcddp_cancel"])
def test_a_cancelled_run_never_comes_back(hpcddp, cluster, tmp_path, by_hpcddp):
    moments = [*MOMENTS, "last_act", "last_act"]
    assert_all_cancelled(
        [
            cancel_once(number, moment, hpcddp, cluster, tmp_path, by_hpcddp)
            for number, moment in enumerate(moments)
        ],
        hpcddp,
        cluster,
    )


def test_a_run_that_is_cancelled_just_before_its_requeue_is_ordered_does_not_come_back(
    hpcddp, cluster, start, tmp_path
):
    """Slurm revives a cancelled job while that is still ending."""
    late = f"trap '' TERM; scancel $SLURM_JOB_ID; touch {tmp_path / 'ordered'}"
    lines = f'[ "$1" = requeue ] && {{ {late}; }}; exec scontrol "$@"'
    hpcddp.replace_tool(tmp_path, "scontrol", lines)
    job_id = start()
    cluster.run(["scancel", "--signal=TERM", job_id])  # to the processes only
    hpcddp.wait_for("demo", "cancelled")
    assert cluster.wait(job_id, {"CANCELLED", "PENDING", "RUNNING"}) == "CANCELLED"
    assert (tmp_path / "ordered").exists()
    assert [attempt["end"] for attempt in hpcddp.status("demo")["attempts"]] == ["cancelled"]


@pytest.mark.slow
@pytest.mark.parametrize("by_hpcddp", [False, True], ids=["scancel", "hpcddp_cancel"])
def test_a_cancelled_run_never_comes_back_in_many_trials(hpcddp, cluster, tmp_path, by_hpcddp):
    moments = [*MOMENTS, "in_grace"] * 17
    trials = [*enumerate(moments)]
    while trials:  # Slurm forgets an ended job after some minutes
        now, trials = trials[:10], trials[10:]
        assert_all_cancelled(
            [
                cancel_once(number, moment, hpcddp, cluster, tmp_path, by_hpcddp)
                for number, moment in now
            ],
            hpcddp,
            cluster,
        )
