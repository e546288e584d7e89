"""Layers win in order, sources are remembered, mistakes name the layer and the nearest key."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcddp.config.load import (
    ENVIRONMENT_KEYS,
    Layer,
    command_line_layer,
    environment_layer,
    resolve,
    type_at,
)
from hpcddp.config.schema import RunConfig, value_at
from hpcddp.config.write import config_text, read_config, read_resolved
from hpcddp.config.yaml_text import parse_yaml
from hpcddp.errors import ConfigError
from hpcddp.run_dir import RunDir

BASE = Layer("base.yaml", {"train": {"max_epochs": 3}})


def resolve_words(*words):
    return resolve([BASE, command_line_layer(words)])


def all_keys(section=RunConfig, prefix=""):
    for field in dataclasses.fields(section):
        kind = type_at(f"{prefix}{field.name}")
        if dataclasses.is_dataclass(kind):
            yield from all_keys(kind, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("optim.lr=0,1", "optim.lr needs a number such as 0.1, found 0,1."),
        ("train.max_epochs=1h", "train.max_epochs needs a number such as 0.1, found 1h."),
        ("train.max_steps=1.5", "train.max_steps needs a whole number such as 2, found 1.5."),
        ("train.deterministic=maybe", "train.deterministic needs true or false, found maybe."),
        ("train.seed=null", "train.seed needs a whole number such as 2, found null."),
        ("train.model=null", "train.model needs text, found null."),
        ("resources.srun=x", "resources.srun: Cannot assign str to Dict[str, Any]"),
    ],
)
def test_a_value_of_the_wrong_kind_is_told_what_is_needed(word, said):
    with pytest.raises(ConfigError) as caught:
        resolve_words(word)
    assert caught.value.message == f"command line: {said}"


def test_later_layers_win_and_sources_are_remembered():
    resolved = resolve(
        [
            Layer("low", {"train": {"max_epochs": 1, "seed": 1}, "optim": {"lr": 1}}),
            Layer("high", {"train": {"seed": 2}}),
        ]
    )
    assert (resolved.config.train.seed, resolved.config.optim.lr) == (2, 1.0)
    assert resolved.sources["train.seed"] == "high"
    assert resolved.sources["optim.lr"] == "low"
    assert "train.global_batch" not in resolved.sources


def test_free_maps_merge_key_by_key():
    resolved = resolve(
        [
            Layer("low", {"train": {"max_steps": 1}, "resources": {"sbatch": {"a": 1, "b": 1}}}),
            Layer("high", {"resources": {"sbatch": {"b": 2}}}),
        ]
    )
    assert resolved.config.resources.sbatch == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("resources.time=30:00", "resources.time", "30:00"),  # YAML 1.1 would say 1800
        ("resources.time=1:30:00", "resources.time", "1:30:00"),
        ("resources.time=90", "resources.time", "90"),
        ("resources.mem=16GB", "resources.mem", "16GB"),
        ("resources.account=no", "resources.account", "no"),  # YAML 1.1 would say False
        ("resources.account=1e3", "resources.account", "1e3"),
        ("resources.account=null", "resources.account", None),
        ("optim.lr=1e-3", "optim.lr", 0.001),
        ("optim.lr=2", "optim.lr", 2.0),
        ("train.max_epochs=null", "train.max_epochs", None),
        ("data.root=/a b/ü$x", "data.root", "/a b/ü$x"),
        ("resources.sbatch.comment=hi there", "resources.sbatch", {"comment": "hi there"}),
        ("data.root=a=b", "data.root", "a=b"),
    ],
)
def test_words_mean_what_people_type(word, key, value):
    words = [word, "train.max_steps=5"]
    assert value_at(resolve_words(*words).config, key) == value


@pytest.mark.parametrize(
    ("layer", "must_say"),
    [
        ({"train": {"global_bach": 3}}, ["x.yaml", "train.global_bach", "`train.global_batch`"]),
        ({"trian": {"seed": 3}}, ["x.yaml", "`trian`", "`train`"]),
        ({"train": {"lr": 1}}, ["x.yaml", "`train.lr`", "Did you mean `optim.lr`?"]),
        ({"train": {"log_every_steps": 1}}, ["Did you mean `log.every_steps`?"]),
        ({"nodes": 2}, ["`nodes`", "Did you mean `resources.nodes`?"]),
        ({"train": 3}, ["x.yaml", "`train` is a section"]),
        ({"train": {"global_batch": "many"}}, ["x.yaml", "train.global_batch", "many"]),
        ({"train": {"global_batch": 0}}, ["train.global_batch=0", "at least 1", "x.yaml"]),
        ({"train": {"replicas": "dpd"}}, ["train.replicas=dpd", "ddp", "x.yaml"]),
        ({"data": {"workers": 2.5}}, ["x.yaml", "data.workers", "2.5"]),
        ({"resources": {"account": False}}, ["x.yaml", "resources.account", "Quote it"]),
        ({"train": {"max_epochs": 0}}, ["train.max_epochs=0", "above 0"]),
    ],
)
def test_a_mistake_names_layer_key_and_remedy(layer, must_say):
    with pytest.raises(ConfigError) as caught:
        resolve([BASE, Layer("x.yaml", layer)])
    for words in must_say:
        assert words in caught.value.message


def test_a_run_without_an_end_is_refused():
    with pytest.raises(ConfigError, match=r"train\.max_steps and train\.max_epochs"):
        resolve([])


@pytest.mark.parametrize("word", ["train.seed", "=3", ""])
def test_a_word_without_a_value_is_refused(word):
    with pytest.raises(ConfigError, match="key=value"):
        command_line_layer([word])


def test_documented_environment_variables_set_existing_keys():
    layer = environment_layer(dict.fromkeys(ENVIRONMENT_KEYS, "7") | {"HOME": "/root"})
    resolved = resolve([BASE, layer])
    for key in ENVIRONMENT_KEYS.values():
        assert value_at(resolved.config, key) == "7"
        assert resolved.sources[key] == "environment"


def test_config_text_reads_back_equal_and_names_every_source(tmp_path):
    resolved = resolve_words(
        "data.root=/a: b #c",
        "resources.sbatch.comment=it's",
        "resources.account=no",
        "resources.time=30:00",
        "optim.lr=1e-05",
        "train.max_grad_norm=1e10",
    )
    run_dir = RunDir(tmp_path)
    text = config_text(resolved)
    run_dir.config.write_text(text, encoding="utf-8")
    assert read_config(run_dir) == resolved.config
    assert "# command line" in text
    assert "# base.yaml" in text
    again = read_resolved(run_dir, Layer("later", {"optim": {"lr": 0.5}}))
    expected = dict.fromkeys(all_keys(), "default") | resolved.sources | {"optim.lr": "later"}
    assert again.sources == expected


def test_a_line_that_somebody_wrote_into_config_yaml_is_the_files_own(tmp_path):
    run_dir = RunDir(tmp_path)
    text = config_text(resolve_words("train.seed=3", "log.every_steps=5"))
    edited = text.replace("  seed: 3  # command line", "  seed: 4")
    run_dir.config.write_text(edited, encoding="utf-8")
    sources = read_resolved(run_dir).sources
    assert sources["train.seed"] == str(run_dir.config)
    assert (sources["train.max_epochs"], sources["log.every_steps"]) == (
        "base.yaml",
        "command line",
    )


# Words that some reader of YAML or of OmegaConf takes for a number, a reference or nothing.
MISREAD = [
    "1e3", "1e-3", ".5e3", "1_000", "0x1F", "12:30", "no", "~", "null", "", "# x", "a: b", "-",
    "${RANK}", r"\${RANK}", r"\\${x:y}", "$x", "\x85", "\u2028", " x ", "?",
]  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(st.lists(st.one_of(st.sampled_from(MISREAD), st.text()), min_size=1))
def test_the_words_of_a_program_come_back_from_config_yaml_as_they_were_typed(words):
    if "???" in words:
        return  # refused: OmegaConf has no other word for "not set"
    text = config_text(resolve([BASE, Layer("chosen", {"command": words})]))
    [line] = [line for line in text.split("\n") if line.startswith("command: ")]
    assert resolve([BASE, Layer("read", parse_yaml(line, "line"))]).config.command == tuple(words)


@pytest.mark.parametrize("word", ["train.max_steps=", "data.root="])
def test_a_forgotten_value_is_not_taken_for_none(word):
    with pytest.raises(ConfigError, match="gives no value"):
        command_line_layer([word])


def test_dollar_braces_are_text_everywhere():
    resolved = resolve_words("data.root=/d/${x}", "resources.sbatch.comment='${oc.env:HOME}'")
    assert resolved.config.data.root == "/d/${x}"
    assert resolved.config.resources.sbatch == {"comment": "${oc.env:HOME}"}
