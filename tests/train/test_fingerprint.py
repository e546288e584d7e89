"""A resume says what the bits depend on and has changed; asked to be strict, it refuses."""

import json
import os
from functools import partial

import pytest
import torch
from train_ranks import events_of, small_config, train_on

from hpcddp.checkpoint_dir import list_checkpoints, read_manifest
from hpcddp.config.identity import change_words
from hpcddp.config.layout import ProcessLayout
from hpcddp.errors import HpcddpError
from hpcddp.run_dir import RunDir
from hpcddp.train.fingerprint import changes, fingerprint_of
from hpcddp.train.process_group import LoneProcess


def test_every_fact_is_a_json_value_and_known():
    facts = fingerprint_of(torch.device("cpu"), ProcessLayout(world_size=2), LoneProcess())
    assert json.loads(json.dumps(facts)) == facts
    assert facts["world_size"] == 2
    assert facts["torch"] == torch.__version__
    assert all(value not in (None, "") for value in facts.values())


def test_changes_are_named_with_both_values():
    here = {"threads": 1, "torch": "1", "NCCL_ALGO": "Ring"}
    changed = changes({"threads": 4, "torch": "1"}, here)
    assert changed == {"threads": [4, 1], "NCCL_ALGO": [None, "Ring"]}
    assert change_words(changed) == "NCCL_ALGO was None and is Ring, threads was 4 and is 1"


def test_nothing_is_said_of_what_an_older_version_has_not_recorded():
    assert changes({"threads": 4}, {"threads": 4, "pillow": "11"}) == {}


def test_a_checkpoint_without_a_fingerprint_says_nothing():
    assert changes({}, {"threads": 1}) == {}


def train_changed(change, config, layout, run_dir):
    """In a child: the exit code and the warnings, or the code and message of the refusal."""
    import logging

    from hpcddp.stop_flag import StopFlag
    from hpcddp.train.loop import train

    said = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    change()
    try:
        return train(config, layout, RunDir(run_dir), StopFlag.install()), said
    except HpcddpError as error:
        return error.code, [error.message]


def use_two_threads():
    torch.set_num_threads(2)


def use_plain_instructions():
    """Before the first operation of the process, which decides for all."""
    os.environ["ATEN_CPU_CAPABILITY"] = "default"


train_with_two_threads = partial(train_changed, use_two_threads)
train_without_vectors = partial(train_changed, use_plain_instructions)


def test_a_resume_with_other_instructions_says_so(tmp_path):
    here = torch.backends.cpu.get_cpu_capability()
    if here == "DEFAULT":
        pytest.skip("this processor has no other instructions for torch")
    train_on(1, tmp_path, small_config("train.max_steps=1"))
    config = small_config("train.max_steps=2")
    [(code, [warning])] = train_on(1, tmp_path, config, train_without_vectors)
    assert code == 0
    assert f"cpu_capability was {here} and is DEFAULT" in warning
    assert "not be bit-identical" in warning
    [resumed] = [event for event in events_of(tmp_path) if event["event"] == "resumed"]
    assert resumed["changed"] == {"cpu_capability": [here, "DEFAULT"]}


def train_with_one_plain_process(config, layout, run_dir):
    """In a child: only the second process lacks the instructions of the first start."""
    change = use_plain_instructions if layout.global_rank else int
    return train_changed(change, config, layout, run_dir)


def test_a_resume_on_which_another_process_is_unlike_says_so_or_refuses(tmp_path):
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("this processor has no other instructions for torch")
    train_on(2, tmp_path, small_config("train.max_steps=1"))
    strict = small_config("train.max_steps=2", "checkpoint.strict_fingerprint=true")
    refused = train_on(2, tmp_path, strict, train_with_one_plain_process)
    assert [code for code, _ in refused] == ["other_fingerprint"] * 2
    config = small_config("train.max_steps=2")
    [(code, [warning]), _] = train_on(2, tmp_path, config, train_with_one_plain_process)
    assert code == 0
    assert "unlike_processes was None and is 1 (" in warning
    assert "cpu_capability" not in warning


def test_a_resume_under_another_fingerprint_says_what_has_changed_or_refuses(tmp_path):
    train_on(1, tmp_path, small_config("train.max_steps=1"))
    [info] = list_checkpoints(RunDir(tmp_path).checkpoints)
    assert read_manifest(info.path).extra["fingerprint"]["threads"] == 1
    longer = ("train.max_steps=2",)
    strict = small_config(*longer, "checkpoint.strict_fingerprint=true")
    [(code, [message])] = train_on(1, tmp_path, strict, train_with_two_threads)
    assert code == "other_fingerprint"
    assert "threads was 1 and is 2" in message
    assert "checkpoint.strict_fingerprint=false" in message
    [(code, [warning])] = train_on(1, tmp_path, small_config(*longer), train_with_two_threads)
    assert code == 0
    assert "threads was 1 and is 2" in warning
    assert "not be bit-identical" in warning
    [resumed] = [event for event in events_of(tmp_path) if event["event"] == "resumed"]
    assert resumed["changed"] == {"threads": [1, 2]}
    assert train_on(1, tmp_path, small_config("train.max_steps=3")) == [0]
