"""hpcddp's own check of sbatch options against the real sbatch, row by row of the tables."""

import re
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
