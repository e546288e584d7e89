"""Nodes that a run is to keep off, on a real Slurm: the user's choice, and what Slurm has lost."""

import pytest

# Writes its node and job to $0, fails once $0.fail exists, and ends by itself once $0.told does.
PROGRAM = """
echo $(hostname) $SLURM_JOB_ID >> "$0"
until [ -e "$0.told" ]; do [ ! -e "$0.fail" ] || exit 3; sleep 0.1; done
"""


@pytest.fixture
def no_requeue(hpcddp, tmp_path):
    """Let Slurm refuse every requeue, so that a new job has to take over."""
    hpcddp.replace_tool(tmp_path, "scontrol", '[ "$1" != requeue ] && exec scontrol "$@"')


@pytest.fixture
def mark(cluster):
    """Return a function that sets a node's state, as its health check would; all end well."""

    def mark(node, state):
        update = ["scontrol", "update", f"nodename={node}", f"state={state}", "reason=test"]
        return cluster.run(update)

    yield mark
    for node in cluster.nodes:
        mark(node, "resume")


@pytest.mark.parametrize("again", ["requeued", "new_job"])
def test_after_a_failure_a_run_keeps_off_the_nodes_of_its_user_and_off_a_bad_one(
    hpcddp, cluster, tmp_path, mark, request, again
):
    if again == "new_job":
        request.getfixturevalue("no_requeue")
    path, (chosen, first, bad, spare) = tmp_path / "nodes", cluster.nodes

    def used(count):
        starts = path.read_text().splitlines() if path.exists() else []
        return "" if len(starts) == count else f"{count} starts are not these: {starts}"

    words = [f"resources.sbatch.exclude={chosen}", "requeue.max_failures=1"]
    job_id = hpcddp.submit("r", *words, command=["bash", "-c", PROGRAM, str(path)])
    cluster.wait_until(lambda: used(2), 120)
    assert mark(bad, "fail").returncode == 0
    fail = path.with_suffix(".fail")
    fail.touch()
    hpcddp.wait_for_event("r", "requeued")
    fail.unlink()
    if again == "requeued":
        cluster.wait_for_restart(job_id)
    else:
        hpcddp.wait_for_event("r", "submitted", 2)
    assert mark(bad, "resume").returncode == 0
    cluster.wait_until(lambda: used(4), 120)
    path.with_suffix(".told").touch()
    finished = hpcddp.wait_for("r", "finished")
    assert (finished["job_id"] == job_id) is (again == "requeued")
    nodes = [line.split()[0] for line in path.read_text().splitlines()]
    assert [sorted(nodes[:2]), sorted(nodes[2:])] == [[first, bad], [first, spare]]
