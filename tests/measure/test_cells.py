"""What a comparison measures, worked out before anything is started."""

import pytest

from hpcddp.config.load import Layer, command_line_layer, resolve
from hpcddp.errors import ConfigError
from hpcddp.measure import cpus
from hpcddp.measure.cells import (
    MODES,
    Cell,
    Wanted,
    check_swept,
    check_wanted,
    config_of,
    config_of_setting,
    parse_devices,
    parse_modes,
)
from hpcddp.measure.cpus import (
    are_shared,
    are_too_few,
    cores_of,
    cores_used,
    cpus_near,
    cpus_of,
    shares,
    siblings_of,
)


def run(*overrides):
    return resolve(
        [Layer("test", {}), command_line_layer(["train.max_steps=5", *overrides])]
    ).config


def names(cells):
    return [cell.name for cell in cells]


def test_every_mode_is_measured_on_every_number_of_devices_and_single_on_one():
    wanted = Wanted(parse_modes("ddp, single,dp"), parse_devices("4,1,2,4"))
    assert names(wanted.cells) == [
        *("single x 1", "dp x 1", "ddp x 1"),
        *("dp x 2", "ddp x 2", "dp x 4", "ddp x 4"),
    ]
    assert [cell.processes for cell in wanted.cells] == [1, 1, 1, 1, 2, 1, 4]


@pytest.mark.parametrize(
    ("modes", "devices", "said"),
    [("single,ddp", "2,4", ["single: it trains on one"]), ("ddp", "2", []), ("single", "1,2", [])],
)
def test_single_is_said_to_be_left_out_where_one_device_is_not_asked_for(modes, devices, said):
    left_out = Wanted(parse_modes(modes), parse_devices(devices)).left_out
    assert [line[: len("single: it trains on one")] for line in left_out] == said


@pytest.mark.parametrize(
    ("words", "busy"),
    [(["train.global_batch=9"], 5), (["train.global_batch=4"], 4), (["train.global_batch=15"], 8)],
)
def test_devices_that_would_get_no_images_are_not_measured_as_devices(words, busy):
    wanted, config = Wanted(("single", "dp"), (1, 8)), run(*words)
    if busy == 8:
        check_wanted(wanted, config)
        return
    with pytest.raises(ConfigError, match=f"only {busy} of 8 devices.*a multiple of 8"):
        check_wanted(wanted, config)


def test_a_run_of_each_cell_has_the_same_global_batch():
    wanted, config = Wanted(MODES, (1, 4)), run("train.global_batch=64", "train.micro_batch=8")
    runs = {cell.name: config_of(cell, wanted, config).train for cell in wanted.cells}
    assert {train.global_batch for train in runs.values()} == {64}
    assert {name: train.micro_batch for name, train in runs.items()} == {
        **dict.fromkeys(["single x 1", "dp x 1", "ddp x 1", "ddp x 4"], 8),
        "dp x 4": 32,  # its one process feeds four devices
    }
    assert (runs["dp x 4"].replicas, runs["dp x 4"].dp_devices) == ("dp", 4)
    assert (runs["ddp x 4"].replicas, runs["ddp x 4"].dp_devices) == ("ddp", None)


def test_every_device_has_the_same_number_of_loader_workers_in_every_mode():
    wanted, config = Wanted(MODES, (1, 4)), run("train.global_batch=64", "data.workers=3")
    for cell in wanted.cells:
        assert config_of(cell, wanted, config).data.workers * cell.processes == 3 * cell.devices


def test_with_weak_scaling_each_device_has_the_same_number_of_images():
    wanted, config = Wanted(MODES, (1, 2, 4), is_weak=True), run("train.global_batch=64")
    for cell in wanted.cells:
        assert config_of(cell, wanted, config).train.global_batch == 16 * cell.devices


def test_a_measured_run_neither_ends_nor_evaluates_nor_logs_nor_diverges():
    config = config_of(
        Cell("dp", 2), Wanted(MODES, (1, 2)), run("optim.lr=10", "log.every_steps=1")
    )
    train = config.train
    assert train.max_steps > 10**8 < config.log.every_steps
    assert (train.max_epochs, train.eval_every_epochs, train.time_steps) == (None, None, True)
    assert config.optim.lr < 1e-3


@pytest.mark.parametrize(
    ("wanted", "overrides", "said"),
    [
        (Wanted(MODES, (1, 3)), [], "global_batch=256 is not a multiple of world_size=3"),
        (Wanted(MODES, (1, 3), is_weak=True), [], "not a multiple of world_size=3"),
        (Wanted(MODES, (1,)), ["resources.nodes=2"], "Leave --nodes out, or compare settings of"),
        (Wanted(("ddp",), (2,)), ["resources.nodes=2"], "--sweep ddp.bucket_cap_mib"),
        (Wanted(("single",), (2, 4)), [], "`single` trains on one device. Add 1"),
    ],
)
def test_what_cannot_be_compared_is_refused(wanted, overrides, said):
    with pytest.raises(ConfigError, match=said):
        check_wanted(wanted, run(*overrides))


@pytest.mark.parametrize("text", ["", "0,1", "1,-2", "two", "1,,2", "1.5", "²"])
def test_devices_are_positive_numbers(text):
    with pytest.raises(ConfigError, match="for example 1,2,4"):
        parse_devices(text)


@pytest.mark.parametrize("text", ["", "dp,foo", "ddp,"])
def test_modes_are_those_there_are(text):
    with pytest.raises(ConfigError, match=r"is no mode\. Use some of single, dp, ddp"):
        parse_modes(text)


def test_a_sweep_is_every_combination_of_its_values():
    words = ["ddp.bucket_cap_mib=1, 25", "ddp.static_graph=true,false"]
    settings = check_swept(words, run(), 2)
    assert [tuple(setting.values()) for setting in settings] == [
        *((1, True), (1, False)),
        *((25, True), (25, False)),
    ]
    ddp = config_of_setting(settings[1], run()).ddp
    assert (ddp.bucket_cap_mib, ddp.static_graph) == (1, False)
    assert Cell("ddp", 2, settings[1]).name == (
        "ddp x 2, ddp.bucket_cap_mib=1, ddp.static_graph=False"
    )


@pytest.mark.parametrize(
    ("word", "overrides", "world_size", "said"),
    [
        ("ddp.bucket_cap_mib=1,x", [], 2, "needs a whole number such as 2, found x"),
        ("ddp.bucket_cap_mib=0", [], 2, "must be at least 1"),
        ("ddp.bucket_cap=1", [], 2, "unknown key `ddp.bucket_cap`"),
        ("train.seed=1,2", [], 2, "varies options of DistributedDataParallel only"),
        ("ddp.bucket_cap_mib", [], 2, "it needs values, for example ddp.bucket_cap_mib=1,2,4"),
        ("ddp.bucket_cap_mib=", [], 2, "it needs values, for example ddp.bucket_cap_mib=1,2,4"),
        ("ddp.bucket_cap_mib=1", [], 1, "One process exchanges no gradients"),
        ("ddp.bucket_cap_mib=1", [], 3, "not a multiple of world_size=3"),
        ("ddp.bucket_cap_mib=1", ["train.replicas=dp"], 2, "Use train.replicas=ddp"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(word, overrides, world_size, said):
    with pytest.raises(ConfigError, match=said):
        check_swept([word], run(*overrides), world_size)


def test_a_key_is_swept_once_and_its_values_may_be_equal():
    with pytest.raises(ConfigError, match=r"give all values of ddp\.static_graph in one --sweep"):
        check_swept(["ddp.static_graph=true", "ddp.static_graph=false"], run(), 2)
    assert len(check_swept(["ddp.bucket_cap_mib=25,25"], run(), 2)) == 2


@pytest.mark.parametrize(
    ("cores", "most", "expected"),
    [
        ([[0], [1], [2], [3]], 2, [[0, 1], [2, 3]]),
        ([[2], [4], [9]], 2, [[2], [4]]),  # the third is nobody's
        ([[0], [1]], 4, [[0], [1], [0], [1]]),
        ([[0, 4], [1, 5], [2, 6], [3, 7]], 4, [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ([[0, 4], [1, 5], [2, 6], [3, 7]], 2, [[0, 4, 1, 5], [2, 6, 3, 7]]),
        ([[0, 1]], 2, [[0, 1], [0, 1]]),  # two threads of a core are not two cores
    ],
)
def test_devices_have_equal_shares_of_the_cores(cores, most, expected):
    assert shares(cores, most) == expected
    assert are_shared(expected) == (most > len(cores))


def test_threads_of_a_core_are_kept_together_as_far_as_this_process_may_use_them():
    siblings = {0: [0, 4], 4: [0, 4], 1: [1, 5], 5: [1, 5], 2: [2, 6]}
    assert cores_of([0, 1, 4, 5], siblings.get) == [[0, 4], [1, 5]]
    assert cores_of([1, 2, 4], siblings.get) == [[1], [2], [4]]


def test_what_threads_take_is_counted_in_cores():
    siblings = {cpu: [cpu % 4, cpu % 4 + 4] for cpu in range(8)}.get
    assert cores_used([*range(8)], 4, siblings) == ([0, 1, 2, 3], 2)
    assert cores_used([4], 1, siblings) == cores_used([0, 4], 2, siblings) == ([0], 1)
    assert cores_used([0, 1, 4], 9, siblings) == ([0, 1], 2)


@pytest.mark.parametrize(("processes", "threads"), [(8, 1), (4, 2), (2, 4), (1, 8)])
def test_the_same_number_of_threads_takes_as_many_cores_in_any_number_of_processes(
    processes, threads
):
    siblings = {cpu: [cpu % 4, cpu % 4 + 4] for cpu in range(8)}.get
    places = [("a", *cores_used([*range(8)], threads, siblings))] * processes
    assert not are_too_few(places)
    assert are_too_few([*places, ("a", *cores_used([4], 1, siblings))])


def test_the_kernels_list_of_threads_is_read(monkeypatch, tmp_path):
    monkeypatch.setattr(cpus, "_SIBLINGS", f"{tmp_path}/cpu{{}}")
    for cpu, text in enumerate(["0,4\n", "0-2,8\n", "rubbish\n"]):
        (tmp_path / f"cpu{cpu}").write_text(text)
    assert [siblings_of(cpu) for cpu in range(4)] == [[0, 4], [0, 1, 2, 8], [2], [3]]


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([("a", [0, 1], 1), ("a", [0, 1], 1)], False),
        ([("a", [0, 1], 2), ("b", [0, 1], 2)], False),  # each host has CPUs of its own
        ([("a", [0, 1], 1)] * 3, True),
        ([("a", [0], 1), ("a", [0], 1), ("b", [0], 1)], True),
        ([("a", [0, 1], 2), ("a", [2, 3], 2)], False),
        ([("a", [0], 1), ("a", [0], 1), ("a", [1, 2, 3], 1)], True),  # the others are no help
        ([("a", [0, 1], 2), ("a", [1, 2], 2)], True),
        ([("a", [0, 1], 1), ("a", [1, 2], 2)], False),
    ],
)
def test_processes_that_nobody_bound_may_take_no_more_cores_than_they_have(places, expected):
    assert are_too_few(places) == expected


EVEN, ODD = frozenset(range(0, 8, 2)), frozenset(range(1, 8, 2))


@pytest.mark.parametrize(
    ("most", "near", "expected"),
    [
        (2, [ODD, EVEN], [[1, 3, 5, 7], [0, 2, 4, 6]]),
        (2, [frozenset(range(8))] * 2, [[0, 1, 2, 3], [4, 5, 6, 7]]),  # one side only
        (4, [ODD, ODD, EVEN, EVEN], [[1, 3], [5, 7], [0, 2], [4, 6]]),
        (2, [ODD, ODD], [[1, 3, 0, 2], [5, 7, 4, 6]]),  # neither gets all that are near
        (2, [None, frozenset({0, 1, 2, 3})], [[4, 5, 6, 7], [0, 1, 2, 3]]),
        (2, [None, None], [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (2, [frozenset(), ODD], [[0, 2, 4, 6], [1, 3, 5, 7]]),  # of CPUs that the job lacks
        (1, [ODD, EVEN], [[1, 3, 5, 7, 0, 2, 4, 6]]),
    ],
)
def test_a_device_has_its_cores_on_its_side_of_the_node(most, near, expected):
    """Of a node with two sockets whose CPUs are numbered in turn."""
    assert shares([[cpu] for cpu in range(8)], most, near) == expected


def test_both_threads_of_a_core_are_near_or_none():
    cores = [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert shares(cores, 2, [frozenset({2, 3, 6, 7}), None]) == [[2, 6, 3, 7], [0, 4, 1, 5]]


def test_the_kernels_list_of_near_cpus_is_read(monkeypatch, tmp_path):
    monkeypatch.setattr(cpus, "_NEAR", f"{tmp_path}/{{}}")
    for name, text in (("a", "0-2,8\n"), ("b", "\n")):
        (tmp_path / name).write_text(text)
    assert [cpus_near(name) for name in ("a", "b", "c")] == [frozenset({0, 1, 2, 8}), None, None]


def test_the_same_number_of_devices_has_the_same_cpus_in_every_mode():
    per_device = shares([[cpu] for cpu in range(8)], 4)
    assert cpus_of(Cell("ddp", 2), per_device) == [[0, 1], [2, 3]]
    assert cpus_of(Cell("dp", 2), per_device) == [[0, 1, 2, 3]]
    assert cpus_of(Cell("single", 1), per_device) == [[0, 1]]
    assert cpus_of(Cell("dp", 4), shares([[0], [1]], 4)) == [[0, 1]]
