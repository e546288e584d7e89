"""hpcddp's own check of sbatch options against the real sbatch, row by row of the tables; and what
processes make of the GPUs of nodes with four.
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from hpcddp.cluster.options import long_name

CASES = Path(__file__).parents[1] / "cases"
OPTIONS = yaml.safe_load((CASES / "sbatch_options.yaml").read_text(encoding="utf-8"))["cases"]
TIMES = yaml.safe_load((CASES / "time_limits.yaml").read_text(encoding="utf-8"))["cases"]


@pytest.fixture(scope="module")
def wide_cluster(new_cluster):
    """Nodes large enough for every row, so that a refusal is due to the options alone."""
    cluster = new_cluster("wide", "--nodes=4", "--cpus=32", "--gpus=4", "--memory=32768")
    yield cluster
    cluster.stop()


@pytest.mark.parametrize("case", OPTIONS.values(), ids=OPTIONS)
def test_sbatch_refuses_what_is_refused_here_or_the_row_says_why_not(wide_cluster, case):
    done = wide_cluster.run(["sbatch", "--test-only", *case["args"]], input="#!/bin/sh\n")
    refused = done.returncode != 0
    assert refused == case.get("sbatch_refuses", False), done.stderr
    assert ("error" in case) == (refused or "slurm_accepts" in case)
    assert not (refused and "slurm_accepts" in case)


def labelled(cluster, *options):
    """What `hpcddp env` says in each task of a step, in their order."""
    words = ["--label", *options, sys.executable, "-m", "hpcddp", "env"]
    pipes = {"capture_output": False, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = cluster.run(["srun", *words], **pipes)
    tasks = defaultdict(str)
    for task, said in re.findall(r"^ *(\d+): (.*\n)", done.stdout, re.MULTILINE):
        tasks[int(task)] += said
    return [tasks[number] for number in sorted(tasks)]


def devices(tasks):
    return [int(n) for said in tasks for n in re.findall(r"^device_index +(\d+)", said, re.M)]


def test_tasks_that_share_a_mask_of_gpus_count_among_those(wide_cluster):
    masks = "--gpu-bind=mask_gpu:0xC,0xC,0x3,0x3"
    tasks = labelled(wide_cluster, "-N1", "-n4", "--gpus-per-node=4", masks)
    assert devices(tasks) == [0, 1, 0, 1]


def test_more_tasks_than_gpus_on_one_node_and_fewer_on_the_other_are_told(wide_cluster):
    tasks = labelled(wide_cluster, "-N2", "-n6", "--gpus=6")  # Slurm makes 5 and 1 of them, 4 and 2
    assert all("5 processes on this node, but 4 visible GPUs" in said for said in tasks[:5])
    assert devices(tasks) == [0]
    assert "1 task on this node, but 2 GPUs: 1 would idle" in tasks[5]


def test_a_letter_is_short_for_what_slurms_programs_say(cluster):
    named = [
        pair
        for program in ("sbatch", "srun")
        for pair in re.findall(r"^  -(\w),? +--([a-z-]+)", helped(cluster, program), re.MULTILINE)
    ]
    assert ("x", "exclude") in named
    assert [
        (letter, name) for letter, name in named if long_name(letter) not in (name, letter)
    ] == []


def helped(cluster, program):
    return cluster.run([program, "--help"]).stdout


def minutes_of(limit):
    """The minutes of a limit as squeue shows it: `30:00`, `3-00:00:00`."""
    days, _, clock = limit.rpartition("-")
    hours, minutes, _ = f"00:{clock}".split(":")[-3:]
    return (24 * int(days or 0) + int(hours)) * 60 + int(minutes)


@pytest.mark.parametrize("case", TIMES.values(), ids=TIMES)
def test_slurm_reads_a_time_limit_as_the_same_minutes(cluster, case):
    words = ["sbatch", "--parsable", "--hold", f"--time={case['text']}"]
    sent = cluster.run(words, input="#!/bin/sh\n", cwd=cluster.work_dir)
    assert (sent.returncode == 0) == ("minutes" in case or "slurm_reads" in case), sent.stderr
    if sent.returncode:
        return
    read = cluster.run(["squeue", "--noheader", "--format=%l", "-j", sent.stdout]).stdout.strip()
    if "minutes" in case:
        assert minutes_of(read) == case["minutes"]
    else:
        assert read == case["slurm_reads"]
