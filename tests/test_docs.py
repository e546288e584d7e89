"""What the documents say exists: keys, files, verbs and links."""

import dataclasses
import re
from pathlib import Path

import pytest

from hpcddp.cli import VERBS
from hpcddp.cluster.profile import load_profile
from hpcddp.cluster.profile_schema import ProfileFile
from hpcddp.config.load import ENVIRONMENT_KEYS, type_at
from hpcddp.config.schema import RunConfig

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def keys(section=RunConfig, prefix=""):
    for field in dataclasses.fields(section):
        kind = type_at(f"{prefix}{field.name}")
        if dataclasses.is_dataclass(kind):
            yield from keys(kind, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


def test_every_key_is_documented_and_no_other():
    text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    tables = text.split("## Keys")[1]
    documented = re.findall(r"^\| `([\w.]+)` \| `", tables, flags=re.MULTILINE)
    assert sorted(documented) == sorted(keys())


def test_every_environment_variable_is_documented():
    text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    sources = "".join(path.read_text() for path in (ROOT / "hpcddp").rglob("*.py"))
    for variable in ENVIRONMENT_KEYS:
        assert variable in text
    internal = re.compile(r"_(RANK|SIZE|NODES|ID|COUNT|ATTEMPT|TIME|SUFFIX|CHOSEN)$")
    for variable in set(re.findall(r'"(HPCDDP_\w+)"', sources)):
        assert internal.search(variable) or f"`{variable}`" in text, variable


def test_the_readme_shows_every_verb():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for verb in VERBS:
        assert re.search(rf"hpcddp {verb}\b", text), verb


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_a_document_names_exist(path):
    text = path.read_text(encoding="utf-8")
    named = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    named += re.findall(r"`((?:hpcddp|jobs|slurm|configs|tests|docs|benchmarks)/[\w./-]+)`", text)
    for name in named:
        if any(word in name for word in ("NAME", "mycluster")):
            continue
        assert (path.parent / name).exists() or (ROOT / name).exists(), f"{path.name}: {name}"


def test_verbs_used_in_documents_exist():
    for path in DOCUMENTS:
        for verb in re.findall(r"python -m hpcddp (\w+)", path.read_text(encoding="utf-8")):
            assert verb in VERBS, f"{path.name}: {verb}"


def test_every_key_of_a_profile_is_documented_and_no_other():
    text = (ROOT / "docs/clusters.md").read_text(encoding="utf-8").split("## Writing a profile")[1]
    cells = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", text, flags=re.MULTILINE)
    documented = [name for cell in cells for name in re.findall(r"\w+", cell)]
    assert sorted(documented) == sorted(field.name for field in dataclasses.fields(ProfileFile))


def test_numbers_of_profiles_in_the_documents_are_true():
    statuses = [load_profile(name, {"HOME": "/nowhere"}).status for name in shipped_profiles()]
    families = statuses.count("family")
    clusters = len(statuses) - families - statuses.count("generic")
    for name in ("README.md", "CHANGELOG.md", "docs/clusters.md"):
        text = " ".join((ROOT / name).read_text(encoding="utf-8").split())
        assert f"{clusters} clusters and {families} families" in text, name


def shipped_profiles():
    return [
        path.stem for path in (ROOT / "configs/clusters").glob("*.yaml") if "." not in path.stem
    ]
