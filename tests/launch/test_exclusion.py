"""Which nodes are kept from the next attempt of a run."""

import pytest
from last_act import FIRST, IN_ANY_CASE, NOT_REACHED, WHILE_IT_RUNS, srun_said

from hpcddp.config.load import Layer, resolve
from hpcddp.config.write import config_text
from hpcddp.launch import exclusion, order, requeue
from hpcddp.launch.requeue import finish_attempt
from hpcddp.launch.scheduler import JobInfo

pytestmark = pytest.mark.usefixtures("slurm_says")


@pytest.fixture
def accepted(run_dir, monkeypatch):
    """Whether sbatch would accept the run's job without the nodes that are to be excluded."""
    run_dir.script.write_text("#!/bin/sh\n")
    accepted = [True]
    monkeypatch.setattr(exclusion, "ask_sbatch", lambda *_: (accepted[0], ""))
    return accepted


@pytest.mark.parametrize(
    ("exclude", "lost", "accepts", "update"),
    [
        (None, ["n2"], True, [["update", "jobid=7", "ExcNodeList=n2"]]),
        ("n9", ["n2"], True, [["update", "jobid=7", "ExcNodeList=n9,n2"]]),
        ("n9", [], True, []),
        (None, ["n2"], False, []),  # without it the job would wait for ever
    ],
)
def test_after_a_failure_a_lost_node_is_kept_from_the_next_attempt(
    run_dir, monkeypatch, accepted, exclude, lost, accepts, update
):
    accepted[0] = accepts
    asked = []
    sbatch = {"exclude": exclude} if exclude else {}
    values = {
        "train": {"max_steps": 1},
        "requeue": {"max_failures": 1},
        "resources": {"sbatch": sbatch},
    }
    run_dir.config.write_text(config_text(resolve([Layer("test", values)])))
    monkeypatch.setattr(exclusion, "lost_nodes", lambda hosts: lost)
    monkeypatch.setattr(requeue.signal, "signal", lambda *_: None)
    monkeypatch.setattr(order, "_scontrol", lambda words: asked.append(words))
    finish_attempt(run_dir, 1, {"SLURM_JOB_ID": "7"})
    assert asked == [WHILE_IT_RUNS, *update]
    asked.clear()
    finish_attempt(run_dir, 75, {"SLURM_JOB_ID": "7"})
    assert asked == [WHILE_IT_RUNS]


def test_a_node_whose_loss_slurm_tells_is_kept_from_the_next_attempt(
    run_dir, monkeypatch, accepted, slurm_says
):
    asked = []
    monkeypatch.setattr(exclusion, "lost_nodes", lambda hosts: ["n2"])
    monkeypatch.setattr(exclusion, "ask_sbatch", lambda *_: asked.append("?") or (True, ""))
    monkeypatch.setattr(order, "_scontrol", lambda words: asked.append(words))
    slurm_says[0] = JobInfo("7", state="COMPLETING", reason="NodeDown", restarts=0)
    finish_attempt(run_dir, 137, {"SLURM_JOB_ID": "7"}, terminated=True)
    # the order comes first: Slurm ends this script within KillWait
    assert asked[2:] == ["?", ["update", "jobid=7", "ExcNodeList=n2"]]
    assert asked[:2] == [WHILE_IT_RUNS, IN_ANY_CASE]


@pytest.mark.parametrize(
    ("why", "event", "excluded"),
    [
        ("Communication connection failure", "requeued", [["update", "jobid=7", "ExcNodeList=n2"]]),
        ("Socket timed out on send/recv operation", "requeued", ...),
        ("Slurmd could not execve job", "failed", []),
    ],
)
def test_a_node_that_srun_does_not_reach_is_a_lost_one_and_kept_from_the_next_attempt(
    own_run, run_dir, accepted, monkeypatch, why, event, excluded
):
    asked = []
    monkeypatch.setattr(order, "_scontrol", lambda words: asked.append(words))
    srun_said(own_run, 0, NOT_REACHED.format(why), "srun: error: n1: task 0: Killed")
    finish_attempt(own_run, 233, FIRST)
    told = own_run.read_events()[-1]
    assert (told["event"], "node failure" in told["reason"]) == (event, event == "requeued")
    assert excluded in (..., asked[1:])
