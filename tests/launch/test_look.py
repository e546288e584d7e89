"""The options of the short job that looks at one node."""

import pytest

from hpcddp.launch.look import one_node_options

SITE = """
description: d
account: "{project}@h100"
node: {gpus: 4}
queues:
  day:
    defaults: {resources: {gpu_type: h100, partition: gpu, qos: short, constraint: h100}}
default_queue: day
"""


@pytest.fixture
def site(workplace):
    """Write a profile called `site`; returns an environment that finds it."""

    def write(text):
        folder = workplace / "configs" / "clusters"
        folder.mkdir(parents=True)
        (folder / "site.yaml").write_text(text)
        return {"HOME": str(workplace)}

    return write


def test_a_node_is_asked_for_like_one_of_the_default_queue_with_one_gpu(site):
    environ = {**site(SITE), "HPCDDP_PROJECT": "abc", "HPCDDP_CLUSTER": "lumi"}
    assert one_node_options("site", environ) == (
        "--partition=gpu",
        "--account=abc@h100",
        "--qos=short",
        "--constraint=h100",
        "--gpus-per-node=h100:1",
    )


def test_a_node_without_gpus_is_asked_for_without(site):
    environ = site("description: d\ngpu_request: none\n")
    assert one_node_options("site", environ) == ()
    assert one_node_options("site", {**environ, "SBATCH_ACCOUNT": "me"}) == ("--account=me",)
