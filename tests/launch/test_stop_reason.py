"""Slurm's states to the reason of a stop, as a table of what was observed."""

from pathlib import Path

import pytest
import yaml

from hpcddp.launch import stop_reason as rules
from hpcddp.launch.scheduler import JobInfo, parse_show_job
from hpcddp.launch.stop_reason import (
    SlurmSays,
    StopReason,
    ask_stop_reason,
    settle_reason,
    stop_reason,
)

CASES = yaml.safe_load((Path(__file__).parents[1] / "cases/stop_reasons.yaml").read_text())
NOW = 1_800_000_000


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_the_reason_follows_from_what_slurm_says(case):
    fields = {k: v + NOW if k.endswith("_time") else v for k, v in case["job"].items()}
    job = JobInfo("7", **fields)
    assert stop_reason(job, restart_count=1, warn_before_s=120, now=NOW).value == case["means"]


def test_every_reason_has_a_case():
    assert {case["means"] for case in CASES} == {reason.value for reason in StopReason}


@pytest.mark.parametrize(("text", "time"), [("None", None), (str(NOW), NOW)])
def test_the_preemption_time_is_read(text, time):
    lines = f"JobId=7 JobName=x PreemptTime=5\n   JobState=RUNNING\n   PreemptTime={text} X=1\n"
    assert parse_show_job("7", lines).preempt_time == time


@pytest.mark.parametrize(
    ("state", "grace", "preempt_type", "reason"),
    [
        ("COMPLETING", "20", "partition_prio", StopReason.CANCELLED),
        ("CANCELLED", "20", "partition_prio", StopReason.CANCELLED),
        ("PREEMPTED", "20", "partition_prio", StopReason.PREEMPTED),  # Slurm is sure
        ("COMPLETING", "0", "partition_prio", StopReason.PREEMPTED),
        ("COMPLETING", "1", "partition_prio", StopReason.PREEMPTED),  # the two look the same
        ("COMPLETING", "20", "qos", StopReason.PREEMPTED),  # what partitions say does not count
    ],
)
def test_a_job_that_ends_when_its_grace_begins_was_cancelled(
    tmp_path, monkeypatch, state, grace, preempt_type, reason
):
    (tmp_path / "scontrol").write_text(
        f"""#!/bin/sh
case "$*" in
*"show job"*) printf 'JobId=7\n JobState={state} Restarts=0 EndTime={NOW}\n'
    printf ' PreemptTime={NOW} Partition=p\n' ;;
*config*) echo 'PreemptType = preempt/{preempt_type}' ;;
*partition*) echo 'PartitionName=p PriorityTier=1 GraceTime={grace}' ;;
esac
"""
    )
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert ask_stop_reason({"SLURM_JOB_ID": "7"}, 120).reason is reason


def test_grace_and_requeueing_are_asked_for_the_partition_and_the_qos_of_the_job(monkeypatch):
    said = {"partition": "p", "qos": "spare", "end_time": NOW, "preempt_time": NOW, "restarts": 0}
    jobs = [JobInfo("7", "COMPLETING", **said), JobInfo("7", "PENDING", **said | {"restarts": 1})]
    monkeypatch.setattr(rules, "show_job", lambda job_id: jobs.pop(0))
    for question in ("leaves_grace", "requeues_preempted"):
        monkeypatch.setattr(rules, question, lambda *queue: queue == ("p", "spare"))
    assert ask_stop_reason({"SLURM_JOB_ID": "7"}, 120).reason is StopReason.CANCELLED
    assert ask_stop_reason({"SLURM_JOB_ID": "7"}, 120).is_preemptible


PREEMPTED_EARLY = {"reason": "preempted", "end_time": NOW + 20}


@pytest.mark.parametrize(
    ("ended", "settled"), [(NOW + 1, "cancelled by its user"), (NOW + 20, "preempted")]
)
def test_a_cancel_in_the_first_second_of_a_grace_is_no_preemption(ended, settled):
    now = SlurmSays(StopReason.PREEMPTED, ended)
    assert settle_reason(now, PREEMPTED_EARLY).value == settled


@pytest.mark.parametrize(
    ("now", "early", "ended_s", "settled"),
    [
        (StopReason.TIME_LIMIT, {}, 5, StopReason.TIME_LIMIT),
        (StopReason.UNKNOWN, PREEMPTED_EARLY, 5, StopReason.PREEMPTED),
        (StopReason.SIGNALLED, PREEMPTED_EARLY, 5, StopReason.PREEMPTED),
        (StopReason.REQUEUED, PREEMPTED_EARLY, 25, StopReason.REQUEUED),
        (StopReason.CANCELLED, PREEMPTED_EARLY, 25, StopReason.PREEMPTED),  # its grace was over
        (StopReason.CANCELLED, PREEMPTED_EARLY, 5, StopReason.CANCELLED),  # it was not
        (StopReason.CANCELLED, {"reason": "preempted"}, 25, StopReason.CANCELLED),
        (StopReason.CANCELLED, {"reason": "time limit"}, 25, StopReason.CANCELLED),
        (StopReason.UNKNOWN, {"reason": "of another version"}, 5, StopReason.UNKNOWN),
    ],
)
def test_the_early_reason_counts_where_the_late_one_cannot_know(now, early, ended_s, settled):
    assert settle_reason(SlurmSays(now, NOW + ended_s), early) is settled
