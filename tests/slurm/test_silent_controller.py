"""Slurm's controller stands still while it ends a job: whether the run goes on, on a real Slurm."""

import os
import signal

import pytest
from ended import has_ended
from test_requeue_on_slurm import STOPS, restarts, wait_for_starts

_LAST_ACT_S = 120
# The clock that tells the last act how long it has waited; its tools have their real time.
_HUNDREDFOLD = """
    import subprocess
    clock, began = time.monotonic, time.monotonic()
    time.monotonic = lambda: began + 100 * (clock() - began)
"""


@pytest.fixture
def controller(cluster):
    """Send a signal to Slurm's controller, which goes on after the test whatever that was."""
    pid = int((cluster.state_dir / "slurmctld.pid").read_text())
    yield lambda signum: os.kill(pid, signum)
    os.kill(pid, signal.SIGCONT)


class LastAct:
    """A last act that cannot reach the controller from a word of its scontrol on. `calls` are those
    words and the process that gave them.
    """

    def __init__(self, hpcddp, folder):
        self.cluster, self.hpcddp, self.folder = hpcddp.cluster, hpcddp, folder

    def loses_controller(self, word):
        """Jobs that are sent from now on stop it, and do not wait for it as long as others."""
        impatient, silent = self.folder / "slurm.conf", self.folder / "silent"
        impatient.write_text(f"{self.cluster.conf.read_text()}MessageTimeout=2\n")
        stop = f"kill -STOP $(cat {self.cluster.state_dir / 'slurmctld.pid'})"
        lines = f"""[ "$1" = {word} ] && mkdir {silent} 2>/dev/null && {stop}
            [ ! -e {silent} ] || echo "$1 $PPID" >> {self.folder / "calls"}
            SLURM_CONF={impatient} exec scontrol "$@"
        """
        self.hpcddp.replace_tool(self.folder, "scontrol", lines)

    @property
    def calls(self):
        path = self.folder / "calls"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_questions(self, count):
        """Wait until it asks so often since the controller is silent; its process id."""

        def problem():
            questions = [word for word, _ in self.calls].count("show")
            return "" if questions >= count else f"{self.calls}"

        self.cluster.wait_until(problem, _LAST_ACT_S)
        return int(self.calls[0][1])


@pytest.fixture
def last_act(hpcddp, tmp_path):
    return LastAct(hpcddp, tmp_path)


def start(hpcddp, cluster, path, partition="main"):
    words = [f"resources.partition={partition}"]
    job_id = hpcddp.submit("demo", *words, command=[*STOPS, str(path)], nodes=1)
    wait_for_starts(cluster, path, 1)
    return job_id


def start_and_end(hpcddp, cluster, path, partition):
    """A job that Slurm ends: by its user's order where nobody preempts, else by a preemption."""
    job_id = start(hpcddp, cluster, path, partition)
    if partition == "main":
        cluster.cancel(job_id)
    else:
        cluster.preempt(job_id, hold_s=1)
    return job_id


@pytest.mark.parametrize(
    ("partition", "event"), [("preempt-cancel-nograce", "requeued"), ("main", "cancelled")]
)
def test_a_controller_that_answers_while_the_script_lives_is_asked_until_it_does(
    long_kill_wait, hpcddp, cluster, tmp_path, last_act, controller, partition, event
):
    last_act.loses_controller("show")
    job_id = start_and_end(hpcddp, cluster, tmp_path / "demo", partition)
    last_act.wait_for_questions(2)
    controller(signal.SIGCONT)
    hpcddp.wait_for_event("demo", event)
    hpcddp.wait_for("demo", event)
    assert restarts(cluster, job_id) == int(event == "requeued")


@pytest.mark.parametrize(
    ("partition", "state"), [("preempt-nograce", "requeued"), ("main", "cancelled")]
)
def test_a_controller_that_answers_too_late_has_the_last_word(
    hpcddp, cluster, tmp_path, last_act, controller, partition, state
):
    """Nothing is recorded against the next start: Slurm makes that by itself, or nobody does."""
    last_act.loses_controller("show")
    job_id = start_and_end(hpcddp, cluster, tmp_path / "demo", partition)
    pid = last_act.wait_for_questions(1)
    cluster.wait_until(lambda: "" if has_ended(pid) else "it lives", _LAST_ACT_S)
    controller(signal.SIGCONT)
    if state == "cancelled":
        hpcddp.wait_for("demo", state)
    cluster.wait_until(
        lambda: "" if restarts(cluster, job_id) == int(state == "requeued") else "not requeued", 120
    )
    told = {event["event"] for event in hpcddp.events("demo")}
    assert not {"requeued", "cancelled", "failed"} & told


def test_an_order_that_a_silent_controller_hears_late_is_no_refusal(
    hpcddp, cluster, tmp_path, last_act, controller
):
    """Slurm carries it out once it can; a job that takes over would be one too many."""
    last_act.loses_controller("requeue")
    job_id = start(hpcddp, cluster, tmp_path / "demo")
    cluster.run(["scancel", "--signal=TERM", job_id])  # to the processes only
    last_act.wait_for_questions(2)
    controller(signal.SIGCONT)
    wait_for_starts(cluster, tmp_path / "demo", 2)
    assert len(hpcddp.events("demo", "submitted")) == restarts(cluster, job_id) == 1


@pytest.mark.slow
def test_an_order_that_slurm_has_not_heard_in_15_minutes_is_left_to_the_script(
    hpcddp, cluster, tmp_path, last_act, controller
):
    is_last_act = "'hpcddp.launch.requeue' in sys.orig_argv"
    hpcddp.begin_pythons_with(tmp_path / "site", _HUNDREDFOLD, is_last_act)
    last_act.loses_controller("show")
    job_id = start(hpcddp, cluster, tmp_path / "demo")
    cluster.run(["scancel", "--signal=TERM", job_id])  # to the processes only
    failed = hpcddp.wait_for_event("demo", "failed", timeout=240)
    assert failed["reason"].startswith("Slurm did not answer the order to requeue")
    assert not hpcddp.run_dir("demo").handled(0).exists()
    controller(signal.SIGCONT)
    hpcddp.wait_for("demo", "requeued", "BeginTime")
    wait_for_starts(cluster, tmp_path / "demo", 2)
    assert restarts(cluster, job_id) >= 1
    assert hpcddp.status("demo")["job_id"] == job_id
