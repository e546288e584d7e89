"""From blocks of steps to rows, document and CSV, with numbers worked out by hand."""

import csv
import dataclasses
import json

import pytest

from hpcddp.config.load import Layer, command_line_layer, resolve
from hpcddp.measure.blocks import Block, CellRecord
from hpcddp.measure.cells import Cell
from hpcddp.measure.comparison import base_of, rounded, row_of, serial_fractions, with_speedups
from hpcddp.measure.document import compare_document, csv_text, not_measured
from hpcddp.measure.evidence import Circumstances
from hpcddp.measure.verdict import verdict_of

BUCKET = {"index": 0, "bytes": 8, "ready_s": 0.1, "start_s": 0.1, "end_s": 0.3}
# What others read: the report's page and programs that use --json.
ROW_KEYS = {
    *("mode", "devices", "setting", "n", "discarded", "step_s_median", "step_s_p95", "step_s_iqr"),
    *("images_per_s", "speedup", "speedup_interval", "is_base", "efficiency"),
    *("comm_fraction", "exposed_comm_fraction", "comm_fraction_iqr", "exposed_comm_fraction_iqr"),
    "overlap_ratio_iqr",
    *("exposed_comm_s_per_process", "no_sync_exposed_interval", "phases_iqr"),
    *("overlap_ratio", "no_sync_exposed_fraction", "memory_bytes_per_device", "memory_imbalance"),
    *("cpu_s_per_step_per_process", "gpu_utilisation", "karp_flatt", "phases"),
    *("comm_bytes_per_step", "buckets", "backward_s"),
}
DOCUMENT_KEYS = {
    *("title", "machine", "date", "versions", "model", "global_batch", "strong", "backend"),
    *("label_of_dp", "rows", "amdahl", "verdict", "not_measured"),
}


def block(*step_s, comm=0.0, exposed=0.0, memory=None, cpu_s=1.0):
    return Block(
        step_s=step_s,
        discarded=1,
        cpu_s=cpu_s,
        thread_cpu_s=(0.5, 0.0),
        resident_bytes=100,
        memory_bytes=memory,
        phases=[{"comm_s": comm, "exposed_comm_s": exposed} for _ in step_s],
        comm_bytes=8,
        buckets=[BUCKET],
        backward_s=0.25,
    )


def two_processes():
    """Two rounds of two steps in two processes, each step once slower in the one or the other."""
    return CellRecord(
        warm_up_steps=3,
        visits=[
            [
                block(1.0, 2.0, comm=0.6, exposed=0.3, memory=[20]),
                block(1.1, 1.9, comm=0.6, exposed=0.1, memory=[12]),
            ],
            [
                block(3.0, 4.0, comm=0.6, exposed=0.3, memory=[30], cpu_s=0.4),
                block(2.5, 4.4, comm=0.6, exposed=0.1, memory=[10], cpu_s=0.6),
            ],
        ],
        without_sync=[[block(1.0, 1.0), block(0.9, 0.9)], [block(2.0, 2.0), block(2.0, 2.0)]],
        utilisation=[[0.5, 0.3], [0.7, 0.5]],
    )


def test_a_row_by_hand():
    row = row_of(Cell("ddp", 2), two_processes(), 10)
    assert row_keys_missing(row) == {
        *("speedup", "speedup_interval", "is_base", "efficiency", "karp_flatt")
    }  # they need others
    # the slower process counts: 1.1, 2.0 and 3.0, 4.4
    assert (row["n"], row["discarded"]) == (4, 3 + 2 + 2)  # warm-up, with and without exchange
    assert row["round_s_medians"] == pytest.approx([1.55, 3.7])
    assert row["step_s_median"] == pytest.approx(2.5)
    assert row["images_per_s"] == pytest.approx(4.0)
    assert row["no_sync_exposed_fraction"] == pytest.approx(1 - (1.0 / 1.55 * 2.0 / 3.7) ** 0.5)
    low, high = row["no_sync_exposed_interval"]  # of two rounds: it says nothing
    assert low < 0 < row["no_sync_exposed_fraction"] < high < 1
    assert row["memory_bytes_per_device"] == [30, 12]  # the second visit's, the first visit's
    assert row["memory_imbalance"] == 2.5
    assert row["cpu_s_per_step_per_process"] == pytest.approx([1.4 / 4, 1.6 / 4])
    assert row["cpu_s_per_step_per_thread"] == [[0.25], [0.25]]
    assert row["gpu_utilisation"] == pytest.approx([0.6, 0.4])
    # of 0.6/1.0, 0.6/2.0, 0.6/1.1 ... the middle ones are 0.6/2.0 and 0.6/2.5
    assert row["comm_fraction"] == pytest.approx((0.6 / 2.0 + 0.6 / 2.5) / 2)
    # 0.3 of 1, 2, 3, 4 and 0.1 of 1.1, 1.9, 2.5, 4.4: in the middle 0.3/4 and 0.1/1.1
    assert row["exposed_comm_fraction"] == pytest.approx((0.3 / 4 + 0.1 / 1.1) / 2)
    assert row["exposed_comm_s_per_process"] == [0.3, 0.1]  # the second is late
    # of eight the quartiles are 1.75 from the ends, interpolated: between the second and the third
    shares = sorted(0.6 / seconds for seconds in (1, 2, 3, 4, 1.1, 1.9, 2.5, 4.4))
    low, high = (
        shares[n] + part * (shares[n + 1] - shares[n]) for n, part in ((1, 0.75), (5, 0.25))
    )
    assert row["comm_fraction_iqr"] == pytest.approx(high - low)
    assert row["overlap_ratio"] == pytest.approx((0.5 + 5 / 6) / 2)
    assert row["overlap_ratio_iqr"] == pytest.approx(5 / 6 - 0.5)
    assert row["phases"] == pytest.approx({"comm_s": 0.6, "exposed_comm_s": 0.2})
    assert row["phases_iqr"] == pytest.approx({"comm_s": 0.0, "exposed_comm_s": 0.2})
    assert row["buckets"] == [BUCKET]


def row_keys_missing(row):
    return ROW_KEYS - set(row)


def test_the_buckets_shown_are_those_of_a_typical_visit():
    slow, usual = dataclasses.replace(block(9.0), backward_s=5.0), block(1.0)
    record = CellRecord(visits=[[usual], [usual], [slow]])
    assert row_of(Cell("ddp", 2), record, 4)["backward_s"] == 0.25


def test_what_was_not_measured_is_none():
    record = CellRecord(visits=[[Block(step_s=[1.0], discarded=0, cpu_s=0.5)]])
    row = row_of(Cell("single", 1), record, 4)
    names = [
        "overlap_ratio",
        "comm_fraction",
        "exposed_comm_fraction",
        "comm_fraction_iqr",
        "overlap_ratio_iqr",
        "no_sync_exposed_fraction",
        "no_sync_exposed_interval",
        "backward_s",
    ]
    names += ["memory_bytes_per_device", "memory_imbalance", "gpu_utilisation"]
    assert [row[name] for name in names] == [None] * len(names)


def test_a_step_without_communication_hides_none():
    record = CellRecord(visits=[[block(1.0)]])
    row = row_of(Cell("dp", 2), record, 4)
    assert (row["overlap_ratio"], row["cpu_s_per_step_per_thread"]) == (None, [[0.5]])


def rows_of(*measured, images=lambda devices: 64):
    """Rows of (mode, devices, seconds of a step)."""
    return [
        row_of(Cell(mode, n), CellRecord(visits=[[block(seconds)]] * 3), images(n))
        for mode, n, seconds in measured
    ]


def keyed(rows, *, is_weak=False):
    finished = with_speedups(rows, base_of(rows, {}), is_weak=is_weak)
    return {(row["mode"], row["devices"]): row for row in finished}


def test_speed_ups_refer_to_one_device():
    measured = [("dp", 2, 0.8), ("ddp", 4, 0.4), ("single", 1, 1.0), ("ddp", 1, 1.2)]
    rows = keyed(rows_of(*measured))
    assert rows["single", 1]["speedup"] == 1.0
    assert rows["single", 1]["karp_flatt"] is None
    assert rows["dp", 2]["speedup"] == pytest.approx(1.25)
    assert rows["dp", 2]["efficiency"] == pytest.approx(0.625)
    assert rows["ddp", 4]["speedup"] == pytest.approx(2.5)


def test_what_disturbs_a_round_disturbs_no_speed_up():
    """Of two devices that are twice as fast in every round of a machine that gets slower."""
    one, two = (
        CellRecord(visits=[[block(n * seconds)] for n in (1, 1, 3, 4, 5)]) for seconds in (1.0, 0.5)
    )
    two.visits[1] = [block(0.4)]
    rows = [row_of(Cell("ddp", n), record, 64) for n, record in ((1, one), (2, two))]
    rows[1] |= {"images_per_s": 1.0}  # of all steps, so that it is nobody's business
    finished = keyed(rows)["ddp", 2]
    assert finished["speedup"] == pytest.approx(2 * 1.25**0.2)
    assert finished["efficiency"] == pytest.approx(1.25**0.2)
    assert finished["karp_flatt"] == pytest.approx(2 / finished["speedup"] - 1)
    low, high = finished["speedup_interval"]
    assert 1.8 < low < finished["speedup"] < high < 2.4
    assert keyed(rows)["ddp", 1]["speedup_interval"] == [1.0, 1.0]


def test_the_speed_up_of_one_round_has_no_interval():
    record = CellRecord(visits=[[block(1.0)]])
    [row] = with_speedups([base := row_of(Cell("ddp", 1), record, 4)], base, is_weak=False)
    assert (row["speedup"], row["speedup_interval"]) == (1.0, None)


def test_serial_fractions_of_all_modes_refer_to_the_same_one_device():
    """single and ddp are the same code there: what they differ by is noise, and no mode's own."""
    measured = [("single", 1, 1.2**0.5), ("dp", 2, 0.72), ("ddp", 2, 0.6), ("ddp", 4, 0.6)]
    measured += [("ddp", 1, 1.2**1.5)]  # 1.2 in the geometric mean
    rows = keyed(rows_of(*measured, ("dp", 1, 2.0)))  # its threads are its own
    assert rows["ddp", 2]["karp_flatt"] == pytest.approx(0)
    assert rows["ddp", 4]["karp_flatt"] == pytest.approx((1 / 2 - 1 / 4) / (1 - 1 / 4))
    assert rows["dp", 2]["karp_flatt"] == pytest.approx((0.6 - 1 / 2) / (1 - 1 / 2))
    assert rows["dp", 2]["speedup"] == pytest.approx(1.2**0.5 / 0.72)  # of single alone
    fitted = serial_fractions([*rows.values()], is_weak=False)
    assert set(fitted) == {"dp", "ddp"}
    assert fitted["dp"]["serial_fraction"] == pytest.approx(0.2)
    assert fitted["ddp"]["serial_fraction"] == pytest.approx((1 / 4 * 3 / 4) / (1 / 4 + 9 / 16))


def test_dp_alone_has_its_own_one_device():
    rows = keyed(rows_of(("dp", 1, 1.2), ("dp", 2, 0.9)))
    assert rows["dp", 2]["karp_flatt"] == pytest.approx((0.75 - 1 / 2) / (1 - 1 / 2))


def test_without_one_device_the_smallest_number_is_the_measure():
    rows = keyed(rows_of(("ddp", 2, 1.0), ("ddp", 8, 0.5)))
    assert rows["ddp", 8]["speedup"] == 2.0
    assert [place for place, row in rows.items() if row["is_base"]] == [("ddp", 2)]
    assert rows["ddp", 8]["efficiency"] == 0.5
    assert rows["ddp", 8]["karp_flatt"] is None
    assert serial_fractions([*rows.values()], is_weak=False) == {}


def test_weak_scaling_counts_images():
    cells = [("single", 1, 1.0), ("ddp", 1, 1.0), ("ddp", 4, 1.25)]
    measured = rows_of(*cells, images=lambda devices: 16 * devices)
    rows = keyed(measured, is_weak=True)
    assert rows["ddp", 4]["speedup"] == pytest.approx(3.2)
    assert rows["ddp", 4]["karp_flatt"] is None
    fitted = serial_fractions([*rows.values()], is_weak=True)
    assert fitted["ddp"]["serial_fraction"] == pytest.approx(0.8 / 3)


def test_of_a_sweep_the_value_that_the_run_has_is_the_measure():
    cells = [(Cell("ddp", 2, {"ddp.bucket_cap_mib": mib}), 1.0 / mib) for mib in (1, 2, 4)]
    rows = [row_of(cell, CellRecord(visits=[[block(s)]]), 8) for cell, s in cells]
    base = base_of(rows, {"ddp.bucket_cap_mib": 2})
    finished = with_speedups(rows, base, is_weak=False)
    assert [row["speedup"] for row in finished] == pytest.approx([0.5, 1.0, 2.0])
    assert [row["is_base"] for row in finished] == [False, True, False]
    assert {row["efficiency"] for row in finished} == {None}
    assert base_of(rows, {"ddp.bucket_cap_mib": 25}) is rows[0]


def document(*words, **more):
    cells = [("dp", 1, 1.0), ("dp", 2, 0.8), ("ddp", 1, 1.0), ("ddp", 2, 0.6)]
    rows = [*keyed(rows_of(("single", 1, 1.0), *cells)).values()]
    config = resolve([Layer("test", {}), command_line_layer(["train.max_steps=1", *words])]).config
    given = {"backend": "gloo", "is_strong": True, "missing": ["this"], "cpus": 2}
    fitted = serial_fractions(rows, is_weak=False)
    verdict = verdict_of(rows, Circumstances("gloo"))
    return compare_document(config, rows, verdict, fitted=fitted, **given | more)


def test_the_document_has_what_its_readers_look_for_and_is_json():
    found = document()
    assert set(found) >= DOCUMENT_KEYS
    assert all(not row_keys_missing(row) for row in found["rows"])
    assert set(found["amdahl"]) == {"dp", "ddp"}
    assert found["label_of_dp"] == "DataParallel algorithm on CPU threads"
    assert document(backend="nccl")["label_of_dp"] == "torch.nn.DataParallel"
    labels = {(row["mode"], row["label"]) for row in found["rows"]}
    assert labels == {("single", None), ("ddp", None), ("dp", found["label_of_dp"])}
    assert found["verdict"]["words"].endswith(f"DP is the {found['label_of_dp']}.")
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_the_document_says_what_else_the_times_depend_on():
    """By default a step has deterministic operators, which are slower on GPUs."""
    assert document()["settings"] == {
        "train.deterministic": True,
        "train.channels_last": False,
        "train.micro_batch": None,
        "data.workers": 0,
        "data.augment": "none",
        "ddp.bucket_cap_mib": 25,
        "ddp.static_graph": True,
    }
    words = ["train.deterministic=false", "train.channels_last=false", "data.workers=3"]
    found = document(*words, backend="nccl")["settings"]
    assert (found["train.deterministic"], found["data.workers"]) == (False, 3)
    assert found["train.channels_last"] is False
    assert document(backend="nccl")["settings"]["train.channels_last"] is True


def test_the_csv_has_a_line_for_each_row_and_a_column_for_each_phase():
    lines = [*csv.DictReader(csv_text(document()["rows"]).splitlines())]
    assert [(line["mode"], line["devices"]) for line in lines] == [
        *(("single", "1"), ("dp", "1"), ("dp", "2"), ("ddp", "1"), ("ddp", "2"))
    ]
    assert float(lines[4]["speedup"]) == pytest.approx(1 / 0.6, rel=1e-4)
    assert lines[0]["comm_s"] == "0.0"
    dp = "DataParallel algorithm on CPU threads"
    assert [line["label"] for line in lines] == ["", dp, dp, "", ""]
    assert lines[0]["no_sync_exposed_fraction"] == ""


def test_what_is_missing_is_said():
    cells = (Cell("dp", 2), Cell("ddp", 2), Cell("ddp", 4))
    rows = rows_of(("dp", 2, 1.0), ("ddp", 2, 1.0))
    on_cpus = not_measured(cells, cells, rows, has_gpus=False, no_use="why")
    assert any("torch.nn.DataParallel: it needs GPUs" in line for line in on_cpus)
    on_gpus = not_measured(cells, cells[:2], rows, has_gpus=True, no_use="why")
    assert on_gpus[0] == "ddp x 4: this node does not show 4 GPUs"
    assert on_gpus[1] == "use of the GPUs: why"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.123456789, 0.123457), (123456789.0, 123457000.0), (0.0, 0.0), (7, 7), (None, None)],
)
def test_no_more_digits_than_can_be_measured(value, expected):
    assert rounded({"a": [value]}) == {"a": [expected]}
