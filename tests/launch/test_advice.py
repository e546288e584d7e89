"""What is put behind sbatch's own words."""

import pytest
from click.testing import CliRunner

from hpcddp.cli import group
from hpcddp.errors import SubmissionFailed
from hpcddp.launch.advice import advice

UNKNOWN = "error: invalid partition specified: {}; error: Invalid partition name specified"


def sinfo(*partitions):
    return lambda words: "".join(f"{name}\n" for name in partitions)


@pytest.mark.parametrize(
    "said",
    [
        "error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
        "error: ClusterName needs to be specified; fatal: Unable to process configuration file",
        "fatal: Could not establish a configuration source",
    ],
)
def test_where_slurm_does_not_answer_it_names_doctor_and_this_machine(said):
    words = advice(said)
    assert "python -m hpcddp doctor" in words
    assert "--cluster local" in words


def test_an_unknown_partition_is_answered_with_the_nearest_that_there_are():
    said = advice(UNKNOWN.format("gpuu"), sinfo("cpu-long", "gpu", "debug", "gpu"))
    assert said == "Choose another --partition: gpu, cpu-long, debug"


def test_without_a_partition_all_are_named_but_not_dozens():
    said = advice("No partition specified or system default partition", sinfo("b", "a"))
    assert said.endswith("partition: a, b")
    many = advice(UNKNOWN.format("p7"), sinfo(*(f"p{number}" for number in range(30))))
    assert many.startswith("Choose another --partition: p7, ")
    assert many.endswith(" and 22 more")
    assert many.count(", ") == 7


def test_who_asks_for_more_than_a_node_has_hears_what_nodes_have():
    refusal = "error: Batch job submission failed: Requested node configuration is not available"
    lines = ("gpu|64 CPUs, 500000 MB, gpu:a100:4", "cpu|8+ CPUs, 9+ MB, (null)")
    said = advice(refusal, sinfo(*lines, "long|8+ CPUs, 9+ MB, (null)"))
    assert said.startswith("No node has all that one node is asked for. Ask for less (resources.m")
    has = "Nodes have: 64 CPUs, 500000 MB, gpu:a100:4 (gpu); 8+ CPUs, 9+ MB (cpu, long)"
    assert said.endswith(f"or another --partition. {has}")
    assert advice(refusal, sinfo()).endswith("or another --partition")


@pytest.mark.parametrize("said", ["error: Invalid account", UNKNOWN.format("x")])
def test_where_nothing_is_known_nothing_is_added(said):
    assert advice(said, sinfo()) == ""


def install(workplace, **tools):
    """Programs that are found first, each a line of shell."""
    for tool, line in tools.items():
        program = workplace / "bin" / tool
        program.write_text(f"#!/bin/sh\n{line}\nexit 1\n")
        program.chmod(0o755)


def test_a_dry_run_says_it_behind_the_words_of_sbatch(fake_sbatch):
    refusal = "Requested node configuration is not available"
    install(fake_sbatch, sbatch=f"echo '{refusal}' >&2", sinfo="")
    done = CliRunner().invoke(group, ["submit", "--cluster", "generic-cpu", "--dry-run"])
    assert f"{refusal}\n# No node has all that one node is asked for." in done.stdout


def test_submit_says_it_behind_the_words_of_sbatch(fake_sbatch):
    refusal = "echo 'sbatch: error: invalid partition specified: mian' >&2"
    install(fake_sbatch, sbatch=refusal, sinfo="echo main; exit")
    with pytest.raises(SubmissionFailed, match=r"specified: mian\. Choose another.*: main$"):
        CliRunner().invoke(
            group, ["submit", "--cluster", "generic-cpu"],
            standalone_mode=False, catch_exceptions=False,
        )  # fmt: skip
