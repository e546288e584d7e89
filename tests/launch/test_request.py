"""Which layer wins, which files are read, and sizes that do not fit are refused at once."""

import dataclasses
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcddp.cli import group
from hpcddp.config.files import shipped_dir
from hpcddp.config.schema import OptimConfig, TrainConfig
from hpcddp.data.datasets import build_dataset
from hpcddp.errors import ConfigError
from hpcddp.launch.request import Request, check_sizes, resolve_request, world_size


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def layers(workplace):
    """One value in every layer: `seed` is set by the lowest two, and so on upwards."""
    write(
        workplace / "configs/clusters/mine.yaml",
        "description: d\ngpu_request: none\n"
        "defaults: {train: {seed: 1, max_steps: 1}, resources: {account: profile, time: '1'}}\n",
    )
    write(workplace / "configs/train/exp.yaml", "train: {seed: 2, max_steps: 2}\noptim: {lr: 2}\n")
    write(
        workplace / "job.yaml",
        "experiment: exp\noptim: {lr: 3}\nresources: {account: job, partition: job, nodes: 3}\n",
    )
    return workplace


@pytest.mark.parametrize("name", ["lr=1.yaml", "{}/seed=2/job.yaml"])
def test_a_job_file_may_have_an_equals_sign_in_its_path(layers, name):
    name = name.format(layers)
    write(layers / name, "experiment: exp\noptim: {lr: 7}\n")
    words = ["render", name, "--cluster", "mine", "--time", "10:00"]
    done = CliRunner().invoke(group, words, standalone_mode=False, catch_exceptions=False)
    assert f"run {Path(name).stem}-" in done.stdout


def test_every_layer_wins_over_the_one_below(layers):
    request = Request(
        job="job.yaml",
        cluster="mine",
        resources={"nodes": 4},
        overrides=("resources.partition=typed",),
    )
    environ = {"SBATCH_ACCOUNT": "environment", "SBATCH_PARTITION": "environment"}
    answer = resolve_request(request, environ)
    config, sources = answer.config, answer.resolved.sources
    assert (config.resources.time, sources["resources.time"]) == ("1", "cluster mine")
    assert (config.train.seed, sources["train.seed"]) == (2, str(layers / "configs/train/exp.yaml"))
    assert (config.optim.lr, sources["optim.lr"]) == (3.0, str(layers / "job.yaml"))
    assert (config.resources.account, sources["resources.account"]) == ("environment",) * 2
    assert (config.resources.partition, sources["resources.partition"]) == ("typed", "command line")
    assert config.resources.nodes == 4
    assert (config.cluster, config.experiment, answer.job_name) == ("mine", "exp", "job")


@pytest.mark.parametrize(
    ("request_", "environ", "cluster"),
    [
        (Request(cluster="local"), {"HPCDDP_CLUSTER": "generic-cpu"}, "local"),
        (Request(), {"HPCDDP_CLUSTER": "generic-cpu"}, "generic-cpu"),
        (Request(overrides=("cluster=local",)), {"HPCDDP_CLUSTER": "generic-cpu"}, "local"),
    ],
)
def test_the_profile_is_chosen_like_any_value(workplace, request_, environ, cluster):
    assert resolve_request(request_, environ).config.cluster == cluster


def test_whoever_says_nothing_gets_resnet50_on_the_ten_digits(workplace):
    answer = resolve_request(Request(), {"HPCDDP_CLUSTER": "local"})
    train, data = answer.config.train, answer.config.data
    assert (answer.job_name, train.model, train.replicas) == ("digits", "resnet50", "ddp")
    assert (data.name, data.image_size) == ("digits", 32)
    dataset = build_dataset(data, "test")
    assert dataset.num_classes == 10
    images_nchw, _ = dataset.fetch([(0, 0)])
    assert images_nchw.shape == (1, 3, 32, 32)


@pytest.mark.parametrize("path", sorted(shipped_dir("jobs").glob("*.yaml")), ids=lambda p: p.stem)
@pytest.mark.parametrize("cluster", ["generic", "local"])
def test_every_shipped_job_resolves(workplace, path, cluster):
    request = Request(job=str(path), cluster=cluster, overrides=("data.root=/data",))
    answer = resolve_request(request, {})
    check_sizes(answer.config, answer.profile)


def test_one_process_per_gpu(workplace):
    request = Request(cluster="generic", resources={"nodes": 2, "gpus_per_node": 4})
    answer = resolve_request(request, {})
    assert world_size(answer.config, answer.profile) == 8


def test_one_process_for_all_gpus_of_a_node(workplace):
    request = Request(None, "generic", {"gpus_per_node": 4}, ("train.replicas=dp",))
    answer = resolve_request(request, {})
    assert world_size(answer.config, answer.profile) == 1


@pytest.mark.parametrize(
    ("overrides", "must_say"),
    [
        (("train.global_batch=100",), "train.global_batch to 96 or 104"),
        (("train.replicas=single",), "train.replicas=ddp"),
        (("train.replicas=dp",), "all devices of one node"),
        (("train.replicas=dp", "resources.nodes=1", "resources.processes_per_node=2"), "one node"),
        (("train.replicas=dp", "resources.nodes=1", "train.dp_devices=8"), "--gpus-per-node 8"),
    ],
)
def test_sizes_that_do_not_fit_fail_before_the_queue(workplace, overrides, must_say):
    resources = {"nodes": 2, "gpus_per_node": 4}
    answer = resolve_request(Request(None, "generic", resources, overrides), {})
    with pytest.raises(ConfigError, match=must_say):
        check_sizes(answer.config, answer.profile)


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ("generic", ("train.dp_devices=4",)),
        ("generic", ("train.dp_devices=8", "train.device=cpu")),
        ("generic-cpu", ("train.dp_devices=8",)),
    ],
)
def test_dataparallel_may_have_all_gpus_of_the_job_and_any_number_of_threads(
    workplace, cluster, words
):
    resources = {"gpus_per_node": 4} if cluster == "generic" else {}
    request = Request(None, cluster, resources, ("train.replicas=dp", *words))
    answer = resolve_request(request, {})
    check_sizes(answer.config, answer.profile)


def test_a_job_file_may_name_the_users_own_command(workplace):
    write(workplace / "mine.yaml", "command: [python, x.py]\n")
    answer = resolve_request(Request(job="mine.yaml", cluster="local"), {})
    assert answer.config.command == ("python", "x.py")
    typed = Request(job="mine.yaml", cluster="local", command=("ls",))
    assert resolve_request(typed, {}).config.command == ("ls",)


def test_a_job_file_without_an_experiment_gets_nothing_of_the_demo(workplace):
    write(workplace / "mine.yaml", "train: {model: resnet18, max_epochs: 3}\n")
    config = resolve_request(Request(job="mine.yaml", cluster="local"), {}).config
    assert (config.train, config.optim) == (
        dataclasses.replace(TrainConfig(), model="resnet18", max_epochs=3),
        OptimConfig(),
    )
    named = Request(job="mine.yaml", cluster="local", overrides=("experiment=resnet50_cifar10",))
    assert resolve_request(named, {}).config.data.name == "cifar10"


@pytest.mark.parametrize("text", ["{}", "train: {model: resnet18}", "experiment: null"])
def test_a_job_file_that_does_not_say_how_long_is_told_of_experiments(workplace, text):
    write(workplace / "mine.yaml", text)
    with pytest.raises(ConfigError, match=r"both unset.*experiment=NAME"):
        resolve_request(Request(job="mine.yaml", cluster="local"), {})
    own_program = Request(job="mine.yaml", cluster="local", command=("ls",))
    assert resolve_request(own_program, {}).config.command == ("ls",)


@pytest.mark.parametrize(
    ("path", "way_out"),
    [
        (
            shipped_dir("configs") / "train/resnet50_cifar10.yaml",
            "experiment=resnet50_cifar10 instead, or its job file jobs/resnet50_cifar10.yaml.",
        ),
        ("configs/train/mine.yaml", "experiment=mine instead."),
    ],
)
def test_an_experiment_is_no_job_file(workplace, path, way_out):
    write(workplace / "configs/train/mine.yaml", "train: {max_steps: 1}\n")
    with pytest.raises(ConfigError) as caught:
        resolve_request(Request(job=str(path), cluster="local"), {})
    expected = f"`{path}` is an experiment, and a job file was needed. Type {way_out}"
    assert caught.value.message == expected


@pytest.mark.parametrize("path", sorted(shipped_dir("jobs").glob("*.yaml")), ids=lambda p: p.stem)
def test_a_shipped_job_trains_on_the_data_in_its_name(workplace, path):
    data = resolve_request(Request(job=str(path), cluster="local"), {}).config.data
    assert path.stem.endswith(data.name)


def test_a_users_own_command_has_no_batch_to_divide(workplace):
    request = Request(cluster="local", overrides=("train.global_batch=3",), command=("ls", "-l"))
    answer = resolve_request(request, {})
    check_sizes(answer.config, answer.profile)
    assert answer.job_name == "ls"
    assert answer.config.command == ("ls", "-l")


def test_a_users_own_command_may_be_one_process_with_all_gpus_of_its_node(workplace):
    request = Request(
        cluster="generic",
        resources={"nodes": 2, "gpus_per_node": 4},
        overrides=("resources.processes_per_node=1",),
        command=("python", "x.py"),
    )
    answer = resolve_request(request, {})
    assert world_size(answer.config, answer.profile) == 2
    training = resolve_request(dataclasses.replace(request, command=()), {})
    with pytest.raises(ConfigError, match="one process drives one GPU"):
        world_size(training.config, training.profile)
