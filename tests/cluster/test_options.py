"""sbatch options before submission: every row of the tables, and what may not be in a path."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcddp.cluster.option_values import (
    WarningSignal,
    parse_gres_gpus,
    parse_memory,
    parse_signal,
    parse_time_limit,
)
from hpcddp.cluster.options import check_options, check_text
from hpcddp.errors import HpcddpError
from hpcddp.run_dir import runs_root


def cases(name):
    text = (Path(__file__).parents[1] / "cases" / name).read_text(encoding="utf-8")
    return yaml.safe_load(text)


OPTIONS = cases("sbatch_options.yaml")["cases"]
TIMES = cases("time_limits.yaml")["cases"]
PATHS = cases("log_paths.yaml")


def options_of(args):
    """What a command line says, as a mapping: `-N2`, `--mem=4G`, `--requeue`."""
    options = {}
    for arg in args:
        if arg.startswith("--"):
            name, equals, value = arg[2:].partition("=")
            options[name] = value if equals else True
        else:
            options[arg[1]] = arg[2:]
    return options


@pytest.mark.parametrize("case", OPTIONS.values(), ids=OPTIONS)
def test_options_pass_or_are_warned_about_or_refused(case):
    options = options_of(case["args"])
    if "error" in case:
        with pytest.raises(HpcddpError) as caught:
            check_options(options)
        assert caught.value.code == case["error"]
        assert all(word in caught.value.message for word in case.get("must_say", ()))
        return
    said = " ".join(check_options(options))
    assert all(word in said for word in case.get("warns", ()))
    assert not (said and "warns" not in case)


def test_options_that_are_off_do_not_count():
    assert check_options({"mem": "4G", "mem-per-cpu": None, "no_requeue": False}) == ()


def test_names_may_have_underscores_and_values_may_be_numbers():
    with pytest.raises(HpcddpError, match="8 tasks"):
        check_options({"nodes": 2, "ntasks_per_node": 4, "ntasks": 9})


@pytest.mark.parametrize("case", TIMES.values(), ids=TIMES)
def test_a_time_limit_is_minutes_or_refused(case):
    if "error" not in case:
        assert parse_time_limit(case["text"]) == case["minutes"]
        return
    with pytest.raises(HpcddpError) as caught:
        parse_time_limit(case["text"])
    assert caught.value.code == case["error"]


@settings(deadline=None)
@given(st.integers(0, 30), st.integers(0, 23), st.integers(0, 59), st.integers(1, 59))
def test_all_forms_of_one_time_limit_give_the_same_minutes(days, hours, minutes, seconds):
    full = parse_time_limit(f"{days}-{hours:02d}:{minutes:02d}:{seconds:02d}")
    assert full == (days * 24 + hours) * 60 + minutes + 1
    assert full == parse_time_limit(f"{days * 24 + hours}:{minutes:02d}:{seconds:02d}")
    assert full == parse_time_limit(f"{(days * 24 + hours) * 60 + minutes}:{seconds:02d}")
    assert full == parse_time_limit(full)


@settings(deadline=None)
@given(st.one_of(st.text(max_size=12), st.text(alphabet="0123456789:-@BRUS.KMGTib", max_size=12)))
def test_any_text_is_a_value_or_the_one_error(text):
    for parse in (parse_time_limit, parse_memory, parse_signal, parse_gres_gpus):
        assert code_of(parse, text) in (None, "bad_value", "conflict")


def test_endless_numbers_are_refused_too():
    for parse in (parse_time_limit, parse_memory, parse_signal):
        assert code_of(parse, "9" * 5000) == "bad_value"


def code_of(parse, text):
    """None, or the code of the error."""
    try:
        parse(text)
    except HpcddpError as error:
        return error.code


@pytest.mark.parametrize(
    ("text", "mib"),
    [("100", 100), (100, 100), ("16G", 16_384), ("16GB", 16_384), ("2t", 2_097_152), ("0", 0),
     ("1K", 1), ("1025k", 2)],
)  # fmt: skip
def test_memory_is_read_as_slurm_does(text, mib):
    assert parse_memory(text) == mib


@pytest.mark.parametrize("text", ["16GiB", "1.5G", "-1", "16 G", "10B", "1P", "", "G"])
def test_memory_that_slurm_refuses_is_refused(text):
    with pytest.raises(HpcddpError) as caught:
        parse_memory(text, "mem-per-cpu")
    assert caught.value.code == "bad_value"
    assert "mem-per-cpu" in caught.value.message


@pytest.mark.parametrize(
    ("text", "signal"),
    [
        ("USR2@90", WarningSignal("USR2", 90)),
        ("SIGUSR2@90", WarningSignal("USR2", 90)),
        ("usr1", WarningSignal("USR1", 60)),
        ("10@0", WarningSignal("USR1", 0)),
        ("R:TERM@5", WarningSignal("TERM", 5)),
    ],
)
def test_a_signal_is_its_name_and_its_lead(text, signal):
    assert parse_signal(text) == signal


@pytest.mark.parametrize(
    ("text", "gpus"),
    [("gpu:4", 4), ("gpu:a100:4", 4), ("gpu", 1), ("gpu:a100", 1), ("nvme:1,gpu:2", 2),
     ("gpu:a100:2,gpu:v100:1", 3), ("nvme:1", None), ("none", None)],
)  # fmt: skip
def test_gpus_of_a_gres_request_are_counted(text, gpus):
    assert parse_gres_gpus(text) == gpus


@pytest.mark.parametrize("path", PATHS["accept"].values(), ids=PATHS["accept"])
def test_a_path_that_survives_quoting_is_accepted(path):
    check_text(path, "path")


@pytest.mark.parametrize("path", PATHS["refuse"].values(), ids=PATHS["refuse"])
def test_a_path_that_would_be_rewritten_is_refused(path):
    with pytest.raises(HpcddpError) as caught:
        check_text(path, "path")
    assert caught.value.code == "unsafe_path"
    assert caught.value.message.isprintable()


def test_the_message_names_what_was_checked():
    with pytest.raises(HpcddpError, match="run name '50%'"):
        check_text("50%", "run name")


def test_a_relative_folder_of_runs_is_made_absolute():
    assert runs_root({"HPCDDP_RUNS_DIR": PATHS["accept"]["LP13"]}).is_absolute()
