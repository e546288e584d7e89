"""What people read of a comparison: whole figures, no empty columns, the label of dp on CPUs."""

import pytest

from hpcddp.cli.compare_text import compare_text


def row(mode, devices, **more):
    return {
        "mode": mode,
        "devices": devices,
        "setting": {},
        "n": 50,
        "discarded": 5,
        "step_s_median": 0.1234567,
        "step_s_p95": 0.2,
        "step_s_iqr": 0.01,
        "images_per_s": 123456.7,
        "speedup": 1.5,
        "speedup_interval": [1.381, 1.629],
        "is_base": False,
        "efficiency": 0.75,
        "karp_flatt": 0.333 if devices > 1 else None,
        "phases": {"comm_s": 0.05, "exposed_comm_s": 0.01},
        "phases_iqr": {"comm_s": 0.024, "exposed_comm_s": 0.003},
        "exposed_comm_fraction": 0.08,
        "overlap_ratio": 0.8 if devices > 1 else None,
        "no_sync_exposed_fraction": None,
        "cpu_s_per_step_per_process": [0.1, 0.2],
        "memory_bytes_per_device": None,
        "gpu_utilisation": None,
        **more,
    }


def document(first, *others, **more):
    rows = [first | {"is_base": True}, *others]
    return {
        "title": "DataParallel against DDP",
        "machine": {"hosts": ["n1"], "cpus": 8, "processor": "A processor", "gpus": []},
        "date": "2026-11-29 12:00",
        "versions": {"torch": "2.14.1"},
        "model": "resnet50",
        "data": "synthetic, 32 x 32",
        "precision": "fp32",
        "global_batch": 64,
        "strong": True,
        "backend": "gloo",
        "label_of_dp": "DataParallel algorithm on CPU threads",
        "rows": rows,
        "amdahl": {"dp": {"serial_fraction": 0.25, "residual": 0.01}},
        "verdict": {"words": "Words.", "confidence": "low", "evidence": ["why"]},
        "not_measured": ["memory"],
        **more,
    }


def columns(text, figure="IMAGES/S"):
    """Header and rows of the table that has this figure."""
    lines = text.splitlines()
    [at] = [n for n, line in enumerate(lines) if figure in line]
    return lines[at].split(), [line.split() for line in lines[at + 1 :]]


def test_figures_are_whole_and_columns_without_any_are_left_out():
    text = compare_text(document(row("single", 1, speedup_interval=[1.0, 1.0]), row("dp", 4)))
    header, rows = columns(text)
    assert rows[0][-4:] == ["1.50", "-", "75", "%"]
    assert rows[1][:6] == ["dp", "4", "123.5", "200.0", "10.0", "50+5"]
    assert rows[1][-4:] == ["1.50", "1.38-1.63", "75", "%"]
    header, rows = columns(text, "EXPOSED ms")
    assert rows[1][:6] == ["dp", "4", "50.0", "±12", "10.0", "±1.5"]
    assert "300.0" in rows[1]  # CPU ms of both processes
    assert (rows[0][-2], rows[1][-3:-1]) == ("-", ["80", "%"])  # HIDDEN, left of the CPU ms
    for empty in ("MiB/DEVICE", "GPU", "SYNC"):
        assert empty not in header


def test_on_gpus_memory_and_use_have_columns():
    on_gpus = {"memory_bytes_per_device": [3 << 30, 1 << 30], "gpu_utilisation": [0.9, 0.5]}
    header, rows = columns(compare_text(document(row("dp", 2, **on_gpus))), "EXPOSED ms")
    assert {"MiB/DEVICE", "GPU"} <= set(header)
    assert "one that waits for another GPU" in compare_text(document(row("dp", 2, **on_gpus)))
    assert rows[0][-4:] == ["3072", "1024", "90", "50"]


def test_dp_verdict_and_what_is_missing_are_said():
    text = compare_text(document(row("single", 1), row("dp", 4)))
    for said in (
        "dp: DataParallel algorithm on CPU threads",
        "Words. Confidence: low.\n  - why\nNot measured here:\n  - memory",
        "dp (Amdahl): 0.25, misses step times by 0.01 of one device's;\n"
        "point by point (Karp-Flatt) 0.33 at 4",
        "global batch 64 (the same global batch)",
        "1 x 8 CPUs (A processor), gloo",
    ):
        assert said in text
    assert "dp:" not in compare_text(document(row("single", 1), row("ddp", 4)))


@pytest.mark.parametrize(
    ("modes", "against"),
    [
        (("single", "dp", "ddp"), "the mean of single and ddp"),
        (("single", "dp"), "single"),
        (("dp", "ddp"), "ddp"),
        (("dp",), "dp"),
    ],
)
def test_what_serial_fractions_are_against_is_named(modes, against):
    rows = [row(mode, devices) for mode in modes for devices in (1, 2)]
    assert f"Serial fractions are against {against} on one device." in compare_text(document(*rows))


def test_what_speed_ups_refer_to_is_named():
    text = " ".join(compare_text(document(row("dp", 2), row("dp", 4))).split())
    assert "SPEED-UP: of images per second against dp on 2, round by round" in text
    settings = [row("ddp", 2, setting={"ddp.bucket_cap_mib": mib}) for mib in (25, 50)]
    text = " ".join(compare_text(document(*settings, amdahl={})).split())
    assert "against bucket_cap_mib=25, round by round" in text


def test_weak_scaling_has_its_own_law():
    fitted = {"gustafson": {"ddp": {"serial_fraction": 0.1, "residual": 0.0}}, "amdahl": {}}
    text = compare_text(document(row("ddp", 4, karp_flatt=None), strong=False, **fitted))
    assert "serial fraction of ddp (Gustafson): 0.10, misses speed-ups by 0.00\n" in text
    assert "(the same images per device)" in text


@pytest.mark.parametrize("mib", [1, 25])
def test_a_sweep_names_settings_in_the_place_of_modes(mib):
    swept = row("ddp", 2, setting={"ddp.bucket_cap_mib": mib}, efficiency=None)
    for figure in ("IMAGES/S", "EXPOSED ms"):
        text = compare_text(document(swept, amdahl={}))
        assert "erial fraction" not in text
        header, rows = columns(text, figure)
        assert header[0] == "SETTING"
        assert rows[0][0] == f"bucket_cap_mib={mib}"
        assert "EFF" not in header
    assert rows[0][1:6] == ["50.0", "±12", "10.0", "±1.5", "8"]  # total, exposed, of the step


def test_tables_fit_a_terminal():
    slow = {"step_s_median": 1.6789, "step_s_p95": 1.7, "step_s_iqr": 0.4, "overlap_ratio": 0.8}
    slow |= {"no_sync_exposed_fraction": -0.11, "cpu_s_per_step_per_process": [1.5] * 2}
    slow["phases"] = dict.fromkeys(("comm_s", "exposed_comm_s"), 1.2679)
    slow["phases_iqr"] = dict.fromkeys(slow["phases"], 0.2)
    swept = row("ddp", 2, setting={"ddp.bucket_cap_mib": 100}, efficiency=None, **slow)
    for given in (document(row("single", 1), row("ddp", 4, **slow)), document(swept)):
        lines = compare_text(given).splitlines()
        tables = lines[4 : lines.index("Words. Confidence: low.") - 1]
        assert len(tables) > 10
        assert max(map(len, tables)) <= 80


def test_what_the_points_say_is_said_where_there_are_several():
    said = "a rise is communication"
    one, two = document(row("dp", 4)), document(row("dp", 2), row("dp", 4))
    assert (said in compare_text(one), said in compare_text(two)) == (False, True)


def test_a_fraction_of_one_point_has_no_miss():
    fitted = {"amdahl": {"ddp": {"serial_fraction": 0.1, "residual": None}}}
    text = compare_text(document(row("ddp", 2), **fitted))
    assert "serial fraction of ddp (Amdahl): 0.10; point by point" in text


def test_a_serial_fraction_above_one_is_explained():
    slower = {"amdahl": {"ddp": {"serial_fraction": 2.4, "residual": 0.0}}}
    assert "above 1: more devices are slower than one" in compare_text(
        document(row("ddp", 2), **slower)
    )
    assert "above 1" not in compare_text(document(row("ddp", 2)))


def test_a_sweep_says_how_many_processes_took_part():
    of_a_job = document(row("ddp", 4), world_size=4, processes_per_node=2)
    assert "\n4 processes, 2 per node; 1 x 8 CPUs (" in compare_text(of_a_job)
    assert "processes, " not in compare_text(document(row("ddp", 4)))
