"""Events as lines for people."""

import json

import pytest

from hpcddp.launch.watch.words import event_line, metrics_line
from hpcddp.run_dir import RunDir


def test_the_choices_of_the_network_are_one_line(tmp_path):
    run_dir = RunDir(tmp_path)
    choices = ["MASTER_ADDR=n1: so", "GLOO=eth0: so"]
    run_dir.append_event("network", attempt=0, host="n2", choices=choices)
    [event] = run_dir.read_events()
    assert event_line(event) == "network on n2: MASTER_ADDR=n1: so; GLOO=eth0: so"


def test_a_line_of_training_says_what_its_speed_is_of():
    record = {"step": 10, "images_per_s": 312.4}
    assert metrics_line(record, 20) == "step 10/20  312 images/s"
    assert metrics_line(record | {"label": "DP"}, 20) == "step 10/20  312 images/s (DP)"


@pytest.mark.parametrize("choices", [None, 7, "eth0", [1], []])
def test_choices_that_nobody_wrote_so_do_no_harm(tmp_path, choices):
    run_dir = RunDir(tmp_path)
    run_dir.events.write_text(json.dumps({"event": "network", "choices": choices}) + "\n")
    [event] = run_dir.read_events()
    assert event_line(event) == "network on ?: ?"
