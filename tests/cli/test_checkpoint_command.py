"""`checkpoint list`, `verify`, `diff` and `export`, as a user types them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torchvision
from click.testing import CliRunner

from hpcddp.cli.checkpoint import command
from hpcddp.errors import HpcddpError
from hpcddp.train.checkpoint import save_checkpoint

ROOT = Path(__file__).parents[2]


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two finished runs, `red` and `blue`, with equal weights at step 20."""
    monkeypatch.setenv("HPCDDP_RUNS_DIR", str(tmp_path / "runs"))
    for name in ("red", "blue"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.yaml").write_text("{}")
        for step in (10, 20):
            save(tmp_path / "runs" / name, step)
    return tmp_path / "runs"


def state_of(step, **changed):
    weights = torch.arange(6.0).reshape(2, 3) + step
    state = {
        "model": {"fc.weight": weights, "fc.bias": torch.tensor([float("nan"), 1.0])},
        "optimizer": {
            "state": {0: {"momentum_buffer": weights / 7}},
            "param_groups": [{"lr": 0.1}],
        },
        "step": step,
    }
    for key, value in changed.items():
        part, name = key.split("__")
        state[part][name.replace("_", ".")] = value
    return state


def save(run, step, **changed):
    return save_checkpoint(run / "checkpoints", step, state_of(step, **changed), {}, 10).path


def hpcddp(*words):
    result = CliRunner().invoke(command, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def answer(*words):
    result = hpcddp(*words, "--json")
    return result.exit_code, json.loads(result.stdout)


# ---------------------------------------------------------------- list


def test_list_shows_steps_sizes_and_damage(runs):
    (runs / "red" / "checkpoints" / "step_000000010" / "state.pt").write_bytes(b"short")
    lines = hpcddp("list", "red").stdout.splitlines()
    assert "step        10  damaged:" in lines[0]
    assert "has 5 bytes, its manifest says" in lines[0]
    assert lines[1].startswith("step        20")
    assert "MiB" in lines[1]
    code, document = answer("list", "red")
    assert code == 0
    assert [entry["step"] for entry in document["checkpoints"]] == [10, 20]
    assert document["checkpoints"][0]["problem"]
    assert document["checkpoints"][1]["problem"] is None


def test_list_of_a_run_without_checkpoints_says_so(runs):
    (runs / "new").mkdir()
    (runs / "new" / "config.yaml").write_text("{}")
    assert "No checkpoints in" in hpcddp("list", "new").stdout
    assert answer("list", "new")[1]["checkpoints"] == []


def test_a_run_may_be_named_or_given_as_a_directory(runs):
    documents = [
        answer("list", text)[1] for text in ("red", runs / "red", runs / "red" / "checkpoints")
    ]
    assert documents[0] == documents[1] == documents[2]


def test_an_unknown_run_is_an_error_with_the_nearest_name(runs):
    with pytest.raises(HpcddpError, match=r"No run `rad`.*`red`"):
        hpcddp("list", "rad")


# ---------------------------------------------------------------- verify


def test_verify_takes_the_newest_of_a_run_or_the_one_given(runs):
    assert answer("verify", "red") == (0, answer("verify", "red")[1])
    assert answer("verify", "red")[1]["step"] == 20
    code, document = answer("verify", runs / "red" / "checkpoints" / "step_000000010")
    assert (code, document["step"], document["problem"]) == (0, 10, None)
    assert hpcddp("verify", "red").stdout.startswith("In order: step        20")


def test_verify_reads_every_byte_and_names_the_file(runs):
    state = runs / "red" / "checkpoints" / "step_000000020" / "state.pt"
    raw = bytearray(state.read_bytes())
    raw[len(raw) // 2] ^= 4
    state.write_bytes(raw)
    result = hpcddp("verify", "red")
    assert result.exit_code == 1
    assert "state.pt is damaged: its CRC-32" in result.stderr
    assert answer("list", "red")[1]["checkpoints"][1]["problem"] is None  # looks at sizes only
    code, document = answer("verify", "red")
    assert code == 1
    assert "CRC-32" in document["problem"]


def test_verify_of_a_copy_under_another_name_works(runs, tmp_path):
    (runs / "red" / "checkpoints" / "step_000000020").rename(tmp_path / "kept")
    assert answer("verify", tmp_path / "kept")[1]["step"] == 20


def test_verify_of_something_else_says_what_it_needs(runs, tmp_path):
    with pytest.raises(HpcddpError, match="holds no checkpoint"):
        hpcddp("verify", tmp_path)


# ---------------------------------------------------------------- diff


def test_equal_checkpoints_of_two_runs_are_identical(runs):
    result = hpcddp("diff", "red", "blue")
    assert result.exit_code == 0
    assert result.stdout == "identical: 3 tensors, step 20 (model, optimizer, step)\n"
    code, document = answer("diff", "red", runs / "blue" / "checkpoints" / "step_000000020")
    assert (code, document["identical"], document["num_differing"]) == (0, True, 0)
    assert document["first_differing"] is None


def test_one_changed_element_is_found_and_measured(runs):
    weights = state_of(30)["model"]["fc.weight"]
    weights[1, 1] += 0.25
    save(runs / "red", 30, model__fc_weight=weights)
    save(runs / "blue", 30)
    result = hpcddp("diff", "red", "blue")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == (
        "different: 1 of 3 tensors differ, first model.fc.weight, largest difference 0.25"
    )
    code, document = answer("diff", "red", "blue")
    assert code == 1
    assert (document["num_differing"], document["max_abs_difference"]) == (1, 0.25)
    assert document["first_differing"] == "model.fc.weight"
    parts = {section["name"]: section["num_differing"] for section in document["sections"]}
    assert parts == {"model": 1, "optimizer": 0, "step": 0}


@pytest.mark.parametrize(
    ("bias", "measured"),
    [
        ([float("nan"), 1.0 + 2**-23], 2**-23),
        ([0.0, 1.0], None),  # a NaN became a number: infinitely far
        ([float("nan"), 1.0, 2.0], 0.0),  # another shape cannot be measured
    ],
)
def test_bits_decide(runs, bias, measured):
    save(runs / "red", 30, model__fc_bias=torch.tensor(bias))
    save(runs / "blue", 30)
    code, document = answer("diff", "red", "blue")
    assert code == 1
    assert document["first_differing"] == "model.fc.bias"
    assert document["max_abs_difference"] == measured


def test_zero_and_minus_zero_are_different_bits(runs):
    save(runs / "red", 30, model__new=torch.tensor(0.0))
    save(runs / "blue", 30, model__new=torch.tensor(-0.0))
    assert answer("diff", "red", "blue")[1]["num_differing"] == 1


def test_a_tensor_on_one_side_only_and_another_type_are_differences(runs):
    save(runs / "red", 30, model__new=torch.zeros(2), model__fc_bias=torch.ones(2).half())
    save(runs / "blue", 30, model__fc_bias=torch.ones(2))
    document = answer("diff", "red", "blue")[1]
    assert document["num_differing"] == 2
    assert document["num_tensors"] == 4


def test_steps_and_plain_values_are_compared_too(runs):
    save(runs / "red", 30, optimizer__param_groups=[{"lr": 0.05}])
    red, blue = (runs / name / "checkpoints" for name in ("red", "blue"))
    result = hpcddp("diff", red / "step_000000030", blue / "step_000000020")
    assert result.exit_code == 1
    assert "  step 30 against step 20" in result.stdout.splitlines()
    save(runs / "blue", 30)
    lines = hpcddp("diff", "red", "blue").stdout.splitlines()
    assert lines[0] == "different: all 3 tensors are identical"
    assert any("param" in line and "0.05 against" in line for line in lines)


def test_a_damaged_checkpoint_is_not_compared(runs):
    os.truncate(runs / "red" / "checkpoints" / "step_000000020" / "state.pt", 20)
    with pytest.raises(HpcddpError, match="has 20 bytes"):
        hpcddp("diff", "red", "blue")


@pytest.mark.parametrize("words", [("list", "red"), ("verify", "red")])
def test_list_and_verify_do_without_torch(runs, words):
    probe = (
        "import atexit, os, sys; from hpcddp.cli.checkpoint import command; "
        "atexit.register(lambda: os._exit('torch' in sys.modules)); "
        f"command.main({list(words)!r}, standalone_mode=False)"
    )
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------- export


@pytest.fixture
def trained(runs):
    model = torchvision.models.shufflenet_v2_x0_5(num_classes=10)
    ema = {name: value.clone().fill_(2) for name, value in model.state_dict().items()}
    state = {"model": model.state_dict(), "ema": ema, "optimizer": {}, "step": 30}
    extra = {"train.model": "shufflenet_v2_x0_5"}
    save_checkpoint(runs / "red" / "checkpoints", 30, state, extra, 10)
    return model


def test_exported_weights_load_into_torchvisions_model(trained, tmp_path):
    out = tmp_path / "weights.pt"
    assert hpcddp("export", "red", out).stdout.startswith(
        "Weights of step 30 of shufflenet_v2_x0_5: "
    )
    fresh = torchvision.models.shufflenet_v2_x0_5(num_classes=10)
    fresh.load_state_dict(torch.load(out, weights_only=True))
    pairs = zip(fresh.state_dict().values(), trained.state_dict().values(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_file()] == ["weights.pt"]


def test_the_average_is_exported_instead_if_asked_for(trained, tmp_path):
    out = tmp_path / "average.pt"
    assert hpcddp("export", "--ema", "red", out).stdout.startswith("EMA weights of step 30 of ")
    trained.load_state_dict(torch.load(out, weights_only=True))
    assert all((value == 2).all() for value in trained.state_dict().values())


def test_an_average_that_was_not_kept_cannot_be_exported(runs, tmp_path):
    with pytest.raises(HpcddpError, match=r"train\.ema_decay=0\. Leave out --ema"):
        hpcddp("export", "red", tmp_path / "average.pt", "--ema")
    assert not (tmp_path / "average.pt").exists()


def test_an_export_never_replaces_a_file_and_names_a_missing_folder(trained, tmp_path):
    out = tmp_path / "mine.pt"
    out.write_text("mine")
    with pytest.raises(HpcddpError, match="File exists"):
        hpcddp("export", "red", out)
    assert out.read_text() == "mine"
    with pytest.raises(HpcddpError, match="No such file"):
        hpcddp("export", "red", tmp_path / "not" / "there.pt")
