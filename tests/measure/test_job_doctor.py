"""How the processes of a doctor's job share their work."""

import dataclasses

from hpcddp.config.layout import ProcessLayout
from hpcddp.config.schema import RunConfig
from hpcddp.measure import job_doctor


def test_only_the_first_process_of_a_node_reads_the_facts_of_the_node(monkeypatch):
    monkeypatch.setattr(job_doctor, "read_node_facts", lambda *words, **more: {"read": True})
    first = ProcessLayout(world_size=2, local_world_size=2)
    second = dataclasses.replace(first, global_rank=1, local_rank=1)
    assert job_doctor._node_facts(first, {}, RunConfig()) == {"read": True}
    assert job_doctor._node_facts(second, {}, RunConfig()) is None
