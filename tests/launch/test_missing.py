"""A sentence before the queue where the program, the data, the model or shared runs are missing."""

import pytest
from click.testing import CliRunner

from hpcddp.cli import group
from hpcddp.cluster.filesystems import Mount
from hpcddp.cluster.shared_runs import note_proof
from hpcddp.errors import ConfigError, SubmissionFailed
from hpcddp.launch.missing import _HELD, torchvision_models


def hpcddp(*words):
    """Run the command line in this process; errors come out as exceptions."""
    return CliRunner().invoke(group, words, standalone_mode=False, catch_exceptions=False)


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        (["python", "-u", "no_such.py"], ["no_such.py"]),
        (["./no_such", "no_such.sh"], ["./no_such", "no_such.sh"]),
        (["python", "-u", "here.py", "--out", "new.py"], []),
        (["bash", "-c", "cat > new.sh"], []),
        (["python", "-m", "package", "--out", "new.py"], []),
    ],
)
def test_submit_warns_of_a_program_that_is_not_there(workplace, command, missing):
    (workplace / "here.py").touch()
    result = hpcddp("submit", "--dry-run", "--cluster", "local", "--", *command)
    warned = [line for line in result.stderr.splitlines() if "is not found here" in line]
    assert warned == [f"Warning: `{name}` is not found here, in {workplace}." for name in missing]


@pytest.mark.parametrize(
    ("program", "mode", "said"),
    [
        ("./mine.py", 0o644, "not executable. Type `-- python ./mine.py ...`."),
        ("mine.py", 0o644, "not executable. Type `-- python mine.py ...`."),
        ("mine.py", 0o755, "not on PATH. Type `-- python mine.py ...`."),
        ("mine.sh", 0o644, "not executable. Type `-- bash mine.sh ...`."),
        ("mine", 0o755, "not on PATH. Type `-- ./mine ...`."),
        ("mine", 0o644, "not executable. Type `chmod +x mine`, then `-- ./mine ...`."),
        ("./mine", 0o755, None),
    ],
)
def test_submit_says_how_to_start_a_file_that_is_no_program(workplace, program, mode, said):
    (workplace / program).touch()
    (workplace / program).chmod(mode)
    result = hpcddp("submit", "--dry-run", "--cluster", "local", "--", program)
    expected = [f"Warning: `{program}` is there, but {said}"] if said else []
    assert [line for line in result.stderr.splitlines() if "mine" in line] == expected


@pytest.mark.parametrize(
    ("root", "is_said"), [("images", True), ("here", False), ("too-long-to-look-at" * 99, True)]
)
def test_submit_warns_of_data_that_are_not_there(workplace, root, is_said):
    (workplace / "here").mkdir()
    words = ["data.name=cifar10", f"data.root={root}"]
    result = hpcddp("submit", "--dry-run", "--cluster", "local", *words)
    assert (f"Warning: data.root={root} is not found here" in result.stderr) is is_said


CIFAR10, FASHION = "cifar-10-batches-py", "train-images-idx3-ubyte.gz"


@pytest.mark.parametrize(
    ("name", "root", "said"),
    [
        (
            "cifar10",
            None,
            f"data.root is not set, and {{}} holds no {CIFAR10} here. Type data.root",
        ),
        ("cifar10", "empty", f"data.root=empty holds no {CIFAR10} here. Do the nodes have it?"),
        ("cifar10", "full", None),
        ("fashion_mnist", None, f"data.root is not set, and {{}}/usual holds no {FASHION} here."),
        ("fashion_mnist", "empty", f"data.root=empty holds no {FASHION} here."),
        ("fashion_mnist", "full", None),
        ("imagenet", "empty", "data.root=empty holds no train here."),
        ("imagenet", "half", "data.root=half holds no val here."),
        ("imagenet", "full", None),
        ("digits", "empty", None),
    ],
)
def test_submit_warns_of_a_folder_without_the_data(workplace, monkeypatch, name, root, said):
    usual = {"fashion_mnist": (f"{workplace}/usual", _HELD["fashion_mnist"][1])}
    monkeypatch.setattr("hpcddp.launch.missing._HELD", {**_HELD, **usual})
    for folder in ("empty", "half/train", *(f"full/{held}" for held in (CIFAR10, "train", "val"))):
        (workplace / folder).mkdir(parents=True)
    (workplace / "full" / FASHION).touch()
    words = ["submit", "--dry-run", "--cluster", "local", f"data.name={name}"]
    words += [f"data.root={root}"] if root else []
    warned = [line for line in hpcddp(*words).stderr.splitlines() if "data.root" in line]
    assert len(warned) == (said is not None)
    assert said is None or warned[0].startswith(f"Warning: {said.format(workplace)}")


@pytest.mark.parametrize("verb", ["submit", "compare", "rehearse"])
def test_imagenet_without_a_folder_is_refused_before_anything_is_sent(fake_sbatch, verb):
    (fake_sbatch / "refuse").touch()  # so that nobody waits for it
    with pytest.raises(ConfigError, match=r"data\.name=imagenet needs data\.root"):
        hpcddp(verb, "--cluster", "generic-cpu", "data.name=imagenet")
    assert not (fake_sbatch / "runs").exists()


def test_a_program_of_ones_own_may_know_itself_where_imagenet_lies(fake_sbatch):
    words = ["--cluster", "generic-cpu", "data.name=imagenet", "--", "true"]
    assert "job 4711" in hpcddp("submit", *words).stdout


def describe_site(workplace, text):
    """Write the profile `site`."""
    profile = workplace / "configs/clusters/site.yaml"
    profile.parent.mkdir(parents=True)
    profile.write_text(text)


@pytest.mark.parametrize(
    ("scratch", "days", "is_said"),
    [
        ("$HERE", "14", True),
        ("{project}/link/", "14", True),
        ("$HERE/ru", "14", False),
        ("$HERE", "null", False),
        ("$NOT_SET", "14", False),
        ("", "14", False),
    ],
)
def test_submit_warns_where_the_site_deletes_old_runs(
    workplace, monkeypatch, scratch, days, is_said
):
    monkeypatch.setenv("HERE", str(workplace))
    monkeypatch.delenv("NOT_SET", raising=False)
    (workplace / "link").symlink_to(workplace)
    describe_site(
        workplace,
        f'gpu_request: none\nscratch: "{scratch}"\nscratch_purge_days: {days}\n'
        f"defaults: {{resources: {{project: {workplace}}}}}\n",
    )
    result = hpcddp("submit", "--dry-run", "--cluster", "site")
    assert ("site deletes files on " in result.stderr) is is_said
    assert not is_said or "after 14 days, and the runs are there" in result.stderr


@pytest.mark.parametrize(
    ("scratch", "is_said"),
    [("$HERE/scratch", True), ("$HERE/link", False), ("$HERE", False), ("$NOT_SET", False)],
)
def test_submit_says_where_a_site_wants_the_runs(workplace, monkeypatch, scratch, is_said):
    monkeypatch.setenv("HERE", str(workplace))
    monkeypatch.delenv("NOT_SET", raising=False)
    (workplace / "link").symlink_to(workplace)
    lines = f'gpu_request: none\nscratch: "{scratch}"\nruns_on_scratch: home cannot be written to\n'
    describe_site(workplace, lines)
    result = hpcddp("submit", "--dry-run", "--cluster", "site")
    wanted = f"site wants runs below {workplace}/scratch (home cannot be written to), and these are"
    assert (wanted in result.stderr) is is_said
    assert (f"export HPCDDP_RUNS_DIR={workplace}/scratch/runs" in result.stderr) is is_said


@pytest.mark.parametrize(
    ("machine", "more", "is_said"),
    [
        ("x86_64", "", True),
        ("aarch64", "", False),
        ("x86_64", "setup: ['python=/arm/bin/python']", False),
        ("x86_64", "defaults: {resources: {container: image}}", False),
        ("x86_64", "queues: {a: {node: {arch: x86_64}}}\ndefault_queue: a", False),
        ("x86_64", "launcher: local", False),
    ],
)
def test_submit_warns_of_a_python_for_other_processors(
    workplace, monkeypatch, machine, more, is_said
):
    monkeypatch.setattr("platform.machine", lambda: machine)
    describe_site(
        workplace,
        "gpu_request: none\nnode: {arch: aarch64}\ncontainer: {runtime: apptainer}\n" + more,
    )
    result = hpcddp("submit", "--dry-run", "--cluster", "site", "train.global_batch=4")
    said = "The nodes of site are aarch64, and this host with its python is x86_64"
    assert (said in result.stderr) is is_said
    assert not is_said or "resources.container=IMAGE" in result.stderr


def test_who_has_proven_that_the_nodes_see_the_runs_is_not_warned_again(fake_sbatch, monkeypatch):
    def is_warned(mount="/dev/a"):
        on = Mount("/", "ext4", mount)
        monkeypatch.setattr("hpcddp.launch.missing.mount_of", lambda path: on)
        monkeypatch.setattr("hpcddp.cluster.shared_runs.mount_of", lambda path: on)
        warned = hpcddp("submit", "--dry-run", "--cluster", "generic").stderr
        return "doctor --nodes 2" in warned

    assert is_warned()
    (fake_sbatch / "runs").mkdir()
    note_proof(fake_sbatch / "runs")
    assert not is_warned()
    assert is_warned("/dev/b")  # copied to another disk
    (fake_sbatch / "runs").rename(fake_sbatch / "others")
    monkeypatch.setenv("HPCDDP_RUNS_DIR", str(fake_sbatch / "others"))
    assert is_warned()


def test_the_proof_that_the_nodes_see_the_runs_does_not_advise_itself(fake_sbatch, monkeypatch):
    on = Mount("/", "ext4", "/dev/a")
    monkeypatch.setattr("hpcddp.launch.missing.mount_of", lambda path: on)
    monkeypatch.setattr("hpcddp.cli.doctor._is_hopeless", lambda findings: False)
    (fake_sbatch / "refuse").touch()  # so that nobody waits for it

    def said(*verb):
        words = [*verb, "--cluster", "generic-cpu", "--nodes", "2"]
        return CliRunner().invoke(group, words, standalone_mode=False).stderr

    assert "prove that this one is: python -m hpcddp doctor" in said("bench", "allreduce")
    assert "doctor --nodes" not in said("doctor")


def test_submit_warns_where_the_nodes_may_not_see_the_runs(fake_sbatch, monkeypatch):
    def mounted_as(kind):
        mount = Mount("/", kind, "source")
        monkeypatch.setattr("hpcddp.launch.missing.mount_of", lambda path: mount)

    mounted_as("tmpfs")
    words = ["submit", "--cluster", "generic", "--name"]
    result = hpcddp(*words, "a")
    assert f"Warning: {fake_sbatch / 'runs'} is on tmpfs" in result.stderr
    assert "job 4711" in result.stdout
    mounted_as("lustre")
    assert "Warning" not in hpcddp(*words, "b").stderr
    mounted_as("tmpfs")
    dry = hpcddp("submit", "--dry-run", "--cluster", "local")
    assert "tmpfs" not in dry.stderr


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("resnet5", "Did you mean resnet50 or resnet152?"),
        ("transformer_of_mine", "Do the nodes have a newer one?"),
        ("vit_b_16", None),
    ],
)
def test_submit_warns_of_a_model_that_torchvision_lacks(workplace, name, hint):
    said = hpcddp("submit", "--dry-run", "--cluster", "local", f"train.model={name}").stderr
    sentence = f"Warning: train.model={name}: the torchvision here has no such model. {hint}"
    assert (sentence in said) is (hint is not None)
    assert ("train.model" in said) is (hint is not None)


def test_a_verb_that_trains_asks_for_data_and_model_and_another_does_not(fake_sbatch, monkeypatch):
    (fake_sbatch / "refuse").touch()  # so that nobody waits for it
    job = ["--cluster", "generic-cpu", "train.model=resnet5", "data.name=cifar10", "data.root=no"]

    def warned(*verb):
        result = CliRunner().invoke(group, [*verb, *job], standalone_mode=False)
        assert isinstance(result.exception, SubmissionFailed)
        sentences = ("train.model=resnet5", "data.root=no")
        return [each for each in sentences if f"Warning: {each}" in result.stderr]

    assert warned("compare", "--devices", "1,2") == ["train.model=resnet5", "data.root=no"]
    monkeypatch.delattr("hpcddp.launch.missing.torchvision_models")  # nor is its source read
    assert warned("bench", "allreduce", "--nodes", "2") == []


def test_the_models_read_from_source_are_those_that_torchvision_lists():
    import torchvision

    known = torchvision.models.list_models(module=torchvision.models)
    assert torchvision_models() == frozenset(known)


@pytest.mark.parametrize("package", [None, "empty"])
def test_without_a_source_to_read_no_model_is_called_unknown(workplace, monkeypatch, package):
    (workplace / "empty").mkdir()
    spec = package and type("Spec", (), {"submodule_search_locations": [str(workplace / package)]})
    monkeypatch.setattr("hpcddp.launch.missing.find_spec", lambda name: spec)
    assert not torchvision_models()
    said = hpcddp("submit", "--dry-run", "--cluster", "local", "train.model=mine").stderr
    assert "train.model" not in said
