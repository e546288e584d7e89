"""The bytes that a step reduces by its record are those that leave each node by the kernel."""

import pytest

from hpcddp.run_dir import read_json_lines

# ResNet-18: 44.7 MB of gradients, beside which 38 kB of running means and the vote are nothing.
WORDS = (
    "train.model=resnet18", "data.name=synthetic", "data.synthetic_samples=96",
    "train.global_batch=12", "train.max_epochs=null", "train.eval_every_epochs=null",
    "checkpoint.every_steps=1000", "train.time_steps=true",
)  # fmt: skip
FEW, MANY = 2, 10


def sent_bytes(cluster, node):
    counter = "/sys/class/net/eth0/statistics/tx_bytes"
    return int(cluster.node_exec(node, ["cat", counter]).stdout)


@pytest.mark.parametrize("nodes", [2, 3])
def test_each_node_sends_its_share_of_a_ring_for_every_byte_reduced(hpcddp, cluster, nodes):
    """The difference of two runs: what starting, saving and leaving send does not count."""
    used = cluster.nodes[:nodes]
    sent = {}
    for steps in (FEW, MANY):
        before = [sent_bytes(cluster, node) for node in used]
        hpcddp.submit(f"steps-{steps}", *WORDS, f"train.max_steps={steps}", nodes=nodes)
        hpcddp.wait_for(f"steps-{steps}", "finished", timeout=300)
        sent[steps] = [sent_bytes(cluster, node) - b for node, b in zip(used, before, strict=True)]
    records = list(read_json_lines(hpcddp.run_dir(f"steps-{MANY}").metrics))
    [reduced] = {record["comm_bytes_per_step"] for record in records if "loss" in record}
    assert reduced > 44e6
    expected = 2 * (nodes - 1) / nodes * reduced
    per_step = [(m - f) / (MANY - FEW) for f, m in zip(sent[FEW], sent[MANY], strict=True)]
    assert per_step == pytest.approx([expected] * nodes, rel=0.01)
