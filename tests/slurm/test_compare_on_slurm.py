"""`compare` on a real Slurm: one job that holds a node, and a sweep over two nodes whose link has
a known speed.
"""

import json

import pytest
from hpcddp_user import Hpcddp

BYTES_PER_S = 125e6  # 1 Gbit/s
TINY = [
    *("train.model=shufflenet_v2_x0_5", "train.model_options.zero_init_residual=null"),
    *("data.name=synthetic", "data.synthetic_samples=16", "train.global_batch=4"),
]
CLUSTER = ["--cluster", "testcluster", "--json"]


def test_one_job_holds_the_node_and_measures_all_modes(cluster, hpcddp):
    """With as many images per device in each: two of four."""
    words = ["--weak", "--devices", "1,2", "--rounds", "1", "--steps", "1", "--name", "c", *TINY]
    done = hpcddp("compare", *CLUSTER, *words)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(row["mode"], row["devices"]) for row in rows] == [
        *(("single", 1), ("dp", 1), ("ddp", 1), ("dp", 2), ("ddp", 2))
    ]
    assert [row["global_batch"] for row in rows] == [2, 2, 2, 4, 4]
    [sent] = hpcddp.events("c", "submitted")
    job = cluster.show(sent["job_id"])
    assert (job["NumNodes"], job["NumTasks"], job["CPUs/Task"]) == ("1", "1", "2")
    assert job["OverSubscribe"] == "NO"  # of a node that other jobs may share: OK
    document = json.loads((hpcddp.run_dir("c").reports / "compare.json").read_text())
    assert document["rows"] == rows
    assert (document["strong"], set(document["gustafson"])) == (False, {"dp", "ddp"})
    assert document["machine"]["hosts"] == [job["NodeList"]]


@pytest.fixture(scope="module")
def slow(new_cluster):
    """Two nodes with 1 Gbit/s each way."""
    cluster = new_cluster("slow", "--nodes", "2", "--rate", "1gbit")
    yield cluster
    cluster.stop()


def test_a_sweep_over_two_nodes_tells_exposed_from_total_communication(slow, tmp_path):
    hpcddp = Hpcddp(slow, tmp_path / "runs")
    sweep = ["--nodes", "2", "--sweep", "ddp.bucket_cap_mib=1,100", "--rounds", "2", "--steps", "2"]
    model = ["train.model=resnet18", *TINY[2:]]
    done = hpcddp("compare", *CLUSTER, *sweep, "--name", "s", *model)
    assert done.returncode == 0, done.stderr
    many, one = json.loads(done.stdout)
    assert (len(many["buckets"]) > 10, len(one["buckets"])) == (True, 1)
    for row in (many, one):
        on_the_wire = row["comm_bytes_per_step"]  # x 2(n-1)/n, which is 1 between two
        assert sum(bucket["bytes"] for bucket in row["buckets"]) == on_the_wire
        # No step can have been faster than its link, but for what its queue holds.
        assert row["phases"]["comm_s"] > 0.8 * on_the_wire / BYTES_PER_S
    hidden = [1 - row["exposed_comm_fraction"] / row["comm_fraction"] for row in (many, one)]
    # What is ready early is sent while backward goes on: how much that hides is a matter of how
    # fast the processor is for its link.
    assert hidden[0] > 0.01
    assert hidden[1] == pytest.approx(0, abs=1e-3)  # a single bucket has nothing to hide behind
    # Two ways to the same: the moments in the step, and the same step without any exchange.
    # How well they agree is a matter of noise; that the exchange costs much, both must say.
    assert one["exposed_comm_fraction"] > 0.1
    assert one["no_sync_exposed_fraction"] > 0.1
    hosts = json.loads((hpcddp.run_dir("s").reports / "compare.json").read_text())["machine"]
    assert hosts["hosts"] == list(slow.nodes)
