"""Slurm's answers are read from text; silence and errors are answers too."""

import stat
from pathlib import Path

import pytest
import yaml

from hpcddp.launch import scheduler
from hpcddp.launch.scheduler import (
    leaves_grace,
    parse_sacct,
    parse_show_job,
    parse_squeue,
    query_jobs,
    requeues_preempted,
    restarted_nodes,
    show_job,
)

CASES = yaml.safe_load(
    (Path(__file__).parents[1] / "cases" / "slurm_answers.yaml").read_text(encoding="utf-8")
)
RUNNING_38 = "38|RUNNING|main|0|0|1795963854|1795967454|gpu-01|None|"


def named(cases):
    return [pytest.param(case, id=case["name"]) for case in cases]


def assert_fields(job, expected):
    assert {key: getattr(job, key) for key in expected} == expected


@pytest.mark.parametrize("case", named(CASES["squeue"]))
def test_squeue_lines_become_jobs(case):
    jobs, readable = parse_squeue(case["text"])
    assert readable
    assert set(jobs) == set(case["jobs"])
    for job_id, expected in case["jobs"].items():
        assert_fields(jobs[job_id], expected)


@pytest.mark.parametrize("case", named(CASES["scontrol"]))
def test_the_lines_of_show_job_become_a_job(case):
    assert_fields(parse_show_job(case["job_id"], case["text"]), case["job"])


@pytest.mark.parametrize("case", named(CASES["sacct"]))
def test_sacct_lines_become_jobs(case):
    jobs = parse_sacct(case["text"])
    assert set(jobs) == set(case["jobs"])
    for job_id, expected in case["jobs"].items():
        assert_fields(jobs[job_id], expected)


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Make `squeue` and the like of shell lines; calls are noted in `calls`."""
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    monkeypatch.setenv("PATH", f"{bin_dir}:/usr/bin:/bin")
    calls = tmp_path / "calls"
    calls.touch()

    def make(**scripts):
        for name in ("squeue", "scontrol", "sacct", "sacctmgr"):
            path = bin_dir / name
            body = scripts.get(name, f"echo {name}: not expected >&2; exit 99")
            path.write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\n{body}\n')
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return calls

    return make


NO_ACCOUNTING = "echo 'Slurm accounting storage is disabled' >&2; exit 1"


def test_all_jobs_are_asked_for_in_one_call(tools):
    answer = f"echo '{RUNNING_38}'; echo '{RUNNING_38.replace('38', '39_1', 1)}'"
    calls = tools(squeue=answer)
    jobs = query_jobs(["38", "39_1", "38"])
    assert [jobs["38"].state, jobs["39_1"].state] == ["RUNNING", "RUNNING"]
    assert calls.read_text().count("\n") == 1
    assert "--jobs=38,39_1 " in calls.read_text()


def test_nothing_is_asked_for_no_jobs_and_for_ids_that_are_not_slurms(tools):
    calls = tools()
    assert query_jobs([]) == {}
    assert query_jobs(["local-12"])["local-12"].reason == "not a Slurm job id"
    assert calls.read_text() == ""


def test_sacct_knows_what_squeue_has_forgotten(tools):
    ended = CASES["sacct"][0]["text"].splitlines()[2]
    tools(squeue=f"echo '{RUNNING_38}'", sacct=f"echo '{ended}'")
    jobs = query_jobs(["38", "40"])
    assert [jobs["38"].state, jobs["40"].state] == ["RUNNING", "OUT_OF_MEMORY"]


def test_a_job_that_nobody_knows_is_forgotten_also_without_accounting(tools):
    # One unknown id is an error to squeue, one among several is not (22.05).
    single = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    for squeue in (single, "exit 0"):
        tools(squeue=squeue, sacct=NO_ACCOUNTING)
        job = query_jobs(["9999"])["9999"]
        assert (job.state, job.forgotten) == ("", True)
        assert "knows no job 9999" in job.reason


def test_an_accounting_that_fails_leaves_the_end_open(tools):
    tools(squeue="exit 0", sacct="echo 'sacct: error: slurmdbd is down' >&2; exit 1")
    job = query_jobs(["9999"])["9999"]
    assert not job.forgotten
    assert "slurmdbd is down" in job.reason


@pytest.mark.parametrize(
    ("squeue", "words"),
    [
        (
            "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1",
            "Slurm cannot be asked: slurm_load_jobs error: Unable to contact slurm controller",
        ),
        ("sleep 30", "Slurm cannot be asked: `squeue` gave no answer within"),
        ("exit 3", "Slurm cannot be asked: `squeue` exited 3"),
    ],
)
def test_a_controller_that_does_not_answer_is_said_so(tools, monkeypatch, squeue, words):
    monkeypatch.setattr(scheduler, "_TIMEOUT_S", 0.5 if "sleep" in squeue else 100.0)
    tools(squeue=squeue, sacct=NO_ACCOUNTING)
    job = query_jobs(["38"])["38"]
    assert (job.state, job.forgotten) == ("", False)
    assert words in job.reason


def test_who_asks_about_one_job_says_how_long_the_answer_may_take(tools):
    tools(scontrol="exec sleep 100")
    assert show_job("38", timeout_s=1.0).reason.endswith("gave no answer within 1 s")


def test_a_machine_without_slurm_is_said_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    job = query_jobs(["38"])["38"]
    assert job.reason == "Slurm cannot be asked: `squeue` was not found on PATH"


def test_a_squeue_without_one_of_the_columns_is_replaced_by_scontrol(tools):
    # 22.05 complains of an unknown column, leaves it out, and exits with 0.
    squeue = "echo '2|FAILED|'; echo 'squeue: error: Invalid job format specification: x' >&2"
    show_job = f"cat <<'END'\n{CASES['scontrol'][0]['text']}END"
    tools(squeue=squeue, scontrol=show_job)
    assert_fields(query_jobs(["2"])["2"], CASES["scontrol"][0]["job"])


def test_jobs_unknown_to_scontrol_are_looked_up_in_accounting(tools):
    squeue = "echo 'squeue: error: Invalid job format specification: x' >&2"
    unknown = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    tools(squeue=squeue, scontrol=unknown, sacct=NO_ACCOUNTING)
    assert query_jobs(["2"])["2"].forgotten


def test_why_a_job_ends_is_answered_though_slurm_signals_who_asks(tools):
    signals = "; ".join(f"kill -{name} $$" for name in ("TERM", "USR1", "USR2"))
    case = CASES["scontrol"][0]
    tools(scontrol=f"{signals}\ncat <<'END'\n{case['text']}END")
    assert_fields(show_job(case["job_id"]), case["job"])


def test_the_users_own_display_settings_do_not_change_the_answer(tools, monkeypatch):
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    tools(
        squeue=f'test -z "$SQUEUE_STATES" && test "$SLURM_TIME_FORMAT" = %s && echo "{RUNNING_38}"'
    )
    assert query_jobs(["38"])["38"].state == "RUNNING"


def test_the_nodes_whose_daemon_began_later_are_told_node_by_node(tools):
    """One whose daemon has never answered has no such time, and takes none from the next."""
    nodes = (("n1", "None"), ("n2", "200"), ("n3", "100"))
    show = "".join(
        f"NodeName={name} BootTime=300 SlurmdStartTime={begin} Comment=x\n" for name, begin in nodes
    )
    tools(scontrol=f"cat <<'END'\n{show}END")
    assert restarted_nodes(["n1", "n2", "n3"], 150.0) == ["n2"]
    assert restarted_nodes([], 150.0) == []


@pytest.mark.parametrize(("kind", "top"), [("partition_prio", False), ("none", True)])
def test_of_the_highest_partition_nobody_is_preempted_whatever_mode_it_prints(tools, kind, top):
    partitions = "".join(
        f"PartitionName={name} PriorityTier={tier} PreemptMode=REQUEUE State=UP\n"
        for name, tier in (("low", 1), ("top", 9))
    )
    config = f"PreemptMode = REQUEUE\nPreemptType = preempt/{kind}\n"
    tools(scontrol=f"case $2 in config) echo '{config}';; *) echo '{partitions}';; esac")
    assert [requeues_preempted(name, "") for name in ("low", "top", "gone")] == [True, top, False]


def test_where_preemption_goes_by_qos_the_partition_says_nothing_of_it(tools):
    part = "PartitionName=p GraceTime=0 PreemptMode=OFF State=UP"
    config = "PreemptMode = REQUEUE\nPreemptType = preempt/qos\n"
    tools(
        scontrol=f"case $2 in config) echo '{config}';; *) echo '{part}';; esac",
        sacctmgr="printf 'spare||||cluster|00:00:20\nowners|||spare|cancel|00:00:00\n'",
    )
    qos = ("spare", "owners", "gone")
    assert [requeues_preempted("p", name) for name in qos] == [True, False, False]
    assert [leaves_grace("p", name) for name in qos] == [True, False, False]
