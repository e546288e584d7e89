"""Inheritance, blocks, variants and templates of profiles, and where each value is from."""

import pytest
import yaml

from hpcddp.cluster.profile import load_profile
from hpcddp.cluster.profile_file import list_profiles
from hpcddp.config.schema import Resources
from hpcddp.config.yaml_text import load_yaml_mapping
from hpcddp.errors import ConfigError

BASE = """
description: base
gpu_request: gres
env:
  A: {value: base, why: a reason for A}
  B: {value: base, why: a reason for B}
variants:
  many: {when: {nodes: "2+"}, env: {C: {value: many, why: a reason for C}}}
"""
SITE = """
description: site
extends: [base]
account: "{project}@{kind}"
env: {A: {value: site, why: a better reason}, B: null}
node: {gpus: 4}
nodes:
  small: {defaults: {resources: {cpus_per_process: 3}}}
  large: {node: {gpus: 8}, defaults: {resources: {cpus_per_process: 9, gpu_type: h100}}}
default_queue: day
queues:
  day: {node_type: small, defaults: {resources: {partition: day}}}
  night: {node_type: large, defaults: {resources: {partition: night, cpus_per_process: 7}}}
  quick: {node_type: small, defaults: {resources: {partition: day, qos: quick}}}
variants:
  whole: {when: {whole_node: true}, defaults: {resources: {mem: "0"}}}
  one: {when: {nodes: "1"}, env: {A: null}}
  calm: {env: {A: {value: calm, why: for those who ask}}}
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Loads the profile `site` of a folder; `write` adds files to it."""
    folder = tmp_path / "configs" / "clusters"
    folder.mkdir(parents=True)
    (folder / "base.yaml").write_text(BASE)
    (folder / "site.yaml").write_text(SITE)
    monkeypatch.chdir(tmp_path)

    def load(name="site", environ=None, **asked):
        return load_profile(name, {"HOME": "/nowhere", **(environ or {})}, Resources(**asked))

    load.folder = folder
    return load


def test_a_file_wins_over_what_it_extends_and_removes_with_null(site):
    profile = site(nodes=2)
    assert profile.env["A"].value == "site"
    assert "B" not in profile.env
    assert profile.gpu_request == "gres"
    assert profile.origins[("env", "A")] == "site"
    assert profile.origins[("gpu_request",)] == "base"


def test_what_a_file_says_of_itself_is_not_inherited(site):
    (site.folder / "child.yaml").write_text("extends: [site]\n")
    child = site("child")
    assert (child.description, child.status) == ("", "personal")
    assert [path.stem for path in child.files] == ["base", "site", "child"]


def test_a_queue_wins_over_its_kind_of_node_and_that_over_the_cluster(site):
    profile = site(queue="night")
    resources = profile.defaults["resources"]
    assert (profile.queue, profile.node_type, resources["gpu_type"]) == ("night", "large", "h100")
    assert (resources["partition"], resources["cpus_per_process"]) == ("night", 7)
    assert profile.node.gpus == 8
    origins = profile.origins
    assert origins[("defaults", "resources", "cpus_per_process")] == "site: queues.night"
    assert origins[("defaults", "resources", "gpu_type")] == "site: nodes.large"


@pytest.mark.parametrize(
    ("asked", "queue"),
    [
        ({}, "day"),
        ({"partition": "night"}, "night"),
        ({"partition": "day", "qos": "quick"}, "day"),
        ({"qos": "quick"}, "quick"),
        ({"partition": "elsewhere"}, ""),
        ({"queue": "night", "partition": "day"}, "night"),
    ],
)
def test_the_queue_is_the_one_asked_for_by_name_or_partition(site, asked, queue):
    assert site(**asked).queue == queue


@pytest.mark.parametrize(
    ("asked", "on"),
    [
        ({"nodes": 1}, ("whole", "one")),
        ({"nodes": 2}, ("many", "whole")),
        ({"nodes": 1, "gpus_per_node": 2}, ("one",)),
        ({"nodes": 2, "gpus_per_node": 4, "variant": "calm"}, ("many", "whole", "calm")),
    ],
)
def test_variants_follow_from_nodes_and_gpus_or_are_asked_for(site, asked, on):
    assert site(**asked).variants_on == on


@pytest.mark.parametrize("block", ["{defaults: }", "{defaults: {resources: }}"])
def test_a_queue_of_which_all_is_left_to_the_cluster_is_one_like_any_other(site, block):
    (site.folder / "odd.yaml").write_text(f"gpu_request: none\nqueues:\n  quiet: {block}\n")
    assert site("odd", queue="quiet").queue == "quiet"
    assert site("odd", partition="other").queue == ""


def test_a_variant_may_remove_and_the_one_asked_for_comes_last(site):
    assert "A" not in site(nodes=1).env
    assert site(nodes=1, variant="calm").env["A"].value == "calm"
    assert site(nodes=2).env["C"].value == "many"


def test_a_variant_may_depend_on_a_file_or_a_variable(site, tmp_path):
    (site.folder / "odd.yaml").write_text(
        f"variants: {{f: {{when: {{file: {tmp_path}/flag}}}}, e: {{when: {{env: FLAG}}}}}}\n"
    )
    assert site("odd").variants_on == ()
    (tmp_path / "flag").touch()
    assert site("odd", environ={"FLAG": "1"}).variants_on == ("f", "e")


def test_all_gpus_of_a_node_are_the_default(site):
    assert site().defaults["resources"]["gpus_per_node"] == 4
    assert site(queue="night").defaults["resources"]["gpus_per_node"] == 8


def test_templates_are_filled_where_the_value_is_known(site):
    text = SITE.replace("@{kind}", "@h100") + "scratch: /s/{project}\n"
    (site.folder / "site.yaml").write_text(
        text + 'caches: {X: {value: "{scratch}/x", why: a reason}}\n'
    )
    profile = site(project="abc")
    assert profile.defaults["resources"]["account"] == "abc@h100"
    assert (profile.scratch, profile.caches["X"].value) == ("/s/abc", "/s/abc/x")
    assert site().scratch == "/s/{project}"
    assert "account" not in site().defaults["resources"]


def test_a_personal_file_adds_to_a_profile_and_wins(site):
    (site.folder / "site.local.yaml").write_text(
        "account: '{project}@h100'\ndefaults: {resources: {project: mine, queue: night}}\n"
        "queues: {night: {defaults: {resources: {qos: gold}}}}\n"
    )
    profile = site()
    assert (profile.name, profile.queue) == ("site", "night")
    assert profile.defaults["resources"]["account"] == "mine@h100"
    assert profile.defaults["resources"]["qos"] == "gold"
    assert profile.description == "site"
    origin = profile.origins[("defaults", "resources", "qos")]
    assert origin == "site.local: queues.night"
    assert site(queue="day").queue == "day"
    assert site(partition="day").queue == "day"


def test_a_list_is_added_to_by_whoever_extends_and_by_each_block_that_holds(site):
    (site.folder / "base.yaml").write_text(f"{BASE}modules: [purge]\n")
    (site.folder / "site.yaml").write_text(
        f"{SITE}  more: {{+modules: [load b], when: {{nodes: '2+'}}}}\n+modules: [load a]\n"
    )
    assert site().modules == ("purge", "load a")
    profile = site(nodes=2)
    assert profile.modules == ("purge", "load a", "load b")
    assert profile.origins[("modules",)] == "site: variants.more"
    (site.folder / "child.yaml").write_text("extends: [site]\n+modules: [load c]\n+notes: [n]\n")
    (site.folder / "child.local.yaml").write_text("+sources: [a letter]\n")
    child = site("child")
    assert child.documents["child.local"] == ("a letter",)
    assert (child.modules, child.notes) == (("purge", "load a", "load c"), ("n",))


def test_a_profile_is_found_by_its_other_names_too(site):
    (site.folder / "site.yaml").write_text(f"{SITE}aliases: [place, base]\n")
    (site.folder / "child.yaml").write_text("extends: [place]\nsite: child of place\n")
    assert site("place").name == "site"
    assert site("base").name == "base"  # a name of its own wins
    assert site("child").files[-2].stem == "site"
    (site.folder / "even.yaml").write_text("aliases: 5  # no list: nowhere\n")
    with pytest.raises(ConfigError, match="No cluster profile `nowhere`"):
        site("nowhere")
    (site.folder / "odd.yaml").write_text("aliases: [place\n")
    assert site("place").name == "site"
    with pytest.raises(ConfigError, match="No cluster profile `of`"):
        site("of")


def test_another_name_of_a_shipped_profile_is_the_user_s_own_where_he_has_it(site):
    assert site("alps").name == "clariden"
    (site.folder / "site.yaml").write_text(f"{SITE}aliases: [alps]\n")
    assert site("alps").name == "site"


def test_no_two_shipped_profiles_share_a_name():
    names = [
        name
        for known, path in list_profiles({}).items()
        for name in (known, *(load_yaml_mapping(path).get("aliases") or ()))
    ]
    assert sorted(names) == sorted({name.casefold() for name in names})


def test_without_internet_libraries_are_told_to_work_offline(site):
    (site.folder / "base.yaml").write_text(BASE + "internet: none\n")
    profile = site()
    assert profile.env["HF_HUB_OFFLINE"].value == "1"
    assert profile.origins[("env", "HF_HUB_OFFLINE")] == "base: internet none"


@pytest.mark.parametrize(
    ("text", "must_say"),
    [
        ("extends: [sitee]", "`site`"),
        ("extends: [odd]", "odd -> odd"),
        ("default_queue: x\nqueues: {day: {}}", "default_queue=x"),
        ("test_queue: x\nqueues: {day: {}}", "test_queue=x"),
        ("queues: {day: {node_type: x}}", "queues.day.node_type=x"),
        ("queues: {day: {partition: x}}", "unknown key `partition`"),
        ("nodes: {a: {when: {nodes: '2'}}}", "`when` belongs into a block of `variants`"),
        ("node: {gpus: four}", "node.gpus needs a whole number"),
        ("node: {gpu: 4}", 'node.gpu must be text; quote it: "4"'),
        ("variants: {v: {when: {nodes: two}}}", 'use "1", or "2+"'),
        ("limits: {time_by_nodes: {few: '1'}}", "`few` is no number of nodes"),
        ("internet: false", "use one of"),
        ("verified_on: 2026-8-1", 'verified_on=2026-8-1: write year and month, "2026-08"'),
        ("verified_on: August 2025", "verified_on=August 2025"),
        ("verified_on: 2026-13", "verified_on=2026-13"),
        ("modules: load x", "modules needs a list"),
        ("+modules: load x", "`+modules` adds a list to a list"),
        ("+modules:", "found None"),
        ("+module: [load x]", "Did you mean `modules`"),
        ("+scratch: /x", "odd.yaml: `+scratch` adds"),
        ("+extends: [base]", "`+extends` adds"),
        ("queues: {q: {+env: {A: {value: x, why: w}}}}", "`+env` adds"),
        ("container: {+mounts: /x}", "`+mounts` adds"),
        ("sbatch: {hint: {value: x}}", "`why` is missing"),
        ("detect: [{env: A, file: /x}]", "exactly one of env, file, host"),
        ("detect: [{env: A, matches: '('}]", "detect[0]: `(` is no regular expression"),
        ("detect: [{host: 'a**'}]", "detect[0]: `a**` is no regular expression"),
        ("env: [A]", "env needs `key: value` lines, found ['A']"),
        ("queues: [a]", "queues needs `key: value` lines, found ['a']"),
        ("queues: {q: {caches: x}}", "queues.q.caches needs `key: value` lines"),
        ("defaults: {resources: x}", "defaults.resources needs `key: value` lines, found 'x'"),
        ("defaults: {resources: {queue: [a]}}\nqueues: {a: {}}", "resources.queue=['a'] is"),
        ("defaults: {resources: {variant: [a]}}\nvariants: {a: {}}", "resources.variant=['a'] is"),
        ("nodes: {n: {defaults: {resources: [x]}}}", "nodes.n: defaults.resources needs"),
        ("env: {A: {value: '$(date)', why: w}}", "env.A.value"),
        ("env: {A: {value: '$X\"; date', why: w}}", "env.A.value"),
        ("env: {'A B': {value: 'x', why: w}}", "no name of a variable"),
        ("queues: {q: {env: {T_TOKEN: {value: x, why: w}}}}", "looks like a credential"),
    ],
)
def test_a_mistake_in_a_file_is_named(site, text, must_say):
    yaml.safe_load(text)
    (site.folder / "odd.yaml").write_text(text + "\n")
    with pytest.raises(ConfigError) as caught:
        site("odd")
    assert must_say in caught.value.message


@pytest.mark.parametrize("asked", [{"queue": "dya"}, {"variant": "clam"}])
def test_a_mistyped_queue_or_variant_is_corrected(site, asked):
    with pytest.raises(ConfigError, match=r"Did you mean `(day|calm)`"):
        site(**asked)
