"""The page says all that a comparison knows, and says so where it knows nothing."""

import re

import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from hpcddp.errors import HpcddpError
from hpcddp.report.pages import write_page
from hpcddp.report.step_time import paint_step_time
from hpcddp.report.sweep import paint_sweep
from hpcddp.report.throughput import paint_throughput

ON_CPU = "DataParallel algorithm on CPU threads"


@pytest.fixture
def page(tmp_path, document):
    """Return a function that writes the page of the document as it then is; its text."""

    def page():
        return write_page("compare", document, tmp_path).read_text(encoding="utf-8")

    return page


def figure(text, title):
    """The figure with that title; its texts alone."""
    [found] = [part for part in text.split("<figure>")[1:] if f"<h2>{title}" in part]
    return found.split("</figure>")[0]


def cells(text, caption):
    """The rows of a table below its caption."""
    table = text.split(f"<h2>{caption}")[1].split("</table>")[0].replace("\N{NO-BREAK SPACE}", " ")
    rows = re.findall(r"<tr>(.*?)</tr>", table)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]


def test_verdict_confidence_and_evidence_stand_on_top(page, document):
    text = page()
    assert text.index(document["verdict"]["words"]) < text.index("<figure>")
    assert "Confidence: medium" in text
    for line in document["verdict"]["evidence"]:
        assert f"<li>{line}</li>" in text
    assert "within noise" not in text
    document["verdict"]["within_noise"] = True
    assert "The difference is within noise." in page()


def test_every_row_is_in_the_tables_with_its_counts(page, document):
    text = page()
    header, *rows = cells(text, "Speed")
    assert header[-2:] == ["n", "discarded"]
    assert [row[1] for row in rows] == ["1", "2", "4", "2", "4"]
    assert rows[-1] == [
        "ddp", "4", "250 ms", "290 ms", "20 ms", "256", "3.2", "80.0 %", "8.3 %", "40", "6"
    ]  # fmt: skip
    communication = cells(text, "Communication")
    assert communication[-1][2:5] == ["97.49 MiB", "5", "60.0 %"]
    machine = cells(text, "Use of the machine")
    assert machine[3][4:7] == ["858.3 MiB", "1.4 s", "350 ms"]
    assert machine[5][5:7] == ["240 ms, 230 ms, 230 ms, 230 ms", "not measured here"]
    assert cells(text, "Part of the work that does not scale")[2] == ["ddp", "9.0 %", "0.02"]


def test_a_speed_up_has_its_interval(page, document):
    document["rows"][-1]["speedup_interval"] = [3.1234, 3.3]
    assert cells(page(), "Speed")[-1][6] == "3.2 (3.12 to 3.3)"


def test_what_speed_ups_refer_to_is_named(page, document):
    assert "<h2>Speed</h2>" in page()
    document["rows"][1]["is_base"] = True
    assert f"<h2>Speed (against dp: {ON_CPU}, 2 devices)</h2>" in page()


def test_a_share_of_the_step_has_its_spread(page, document):
    assert cells(page(), "Communication")[-1][4] == "60.0 %"
    document["rows"][-1]["comm_fraction_iqr"] = 0.05
    assert cells(page(), "Communication")[-1][4] == "60.0 %, IQR 5.0 %"


def test_what_dp_copies_is_shown_and_told_from_what_ddp_reduces(page, document):
    for row, number in zip(document["rows"][1:3], (3 << 20, 0), strict=True):
        row["comm_bytes_per_step"] = number
    text = page()
    assert [row[2] for row in cells(text, "Communication")[2:4]] == ["3 MiB", "0 B"]
    assert "of ddp: gradients; of dp: gradients and parameters" in text


def test_every_figure_says_how_many_steps_stand_behind_it(page):
    text = page()
    buckets = "Buckets of one step: ddp, 4 devices"
    for title in ("Throughput", "What a step is spent on"):
        assert "n = 40 steps each; discarded as warm-up: 6" in figure(text, title)
        assert "whiskers are as long as the interquartile range" in figure(text, title)
    assert "The typical one of 40 steps, so without a spread" in figure(text, buckets)
    assert "discarded" not in figure(text, buckets)


def test_the_ideal_line_is_as_many_times_as_devices(document):
    axes = painted(paint_throughput, document["rows"], document)
    [ideal] = [line for line in axes[0].lines if line.get_label().startswith("ideal: ")]
    assert [*zip(*ideal.get_data(), strict=True)] == [(1, 80), (4, 320)]  # from one device's 80


def test_perfect_scaling_goes_through_what_speed_ups_refer_to(document):
    document["rows"][1]["is_base"] = True
    rate, figure = document["rows"][1]["images_per_s"], Figure()
    paint_throughput(figure, document["rows"], document)
    [ideal] = [line for line in figure.axes[0].lines if line.get_label().startswith("ideal")]
    assert [*ideal.get_ydata()] == [rate / 2, 2 * rate]  # it has two of the four devices


def test_phases_have_whiskers_of_their_own_spread(document):
    row = document["rows"][-1] | {"phases_iqr": {"comm_s": 0.04, "exposed_comm_s": 0.02}}
    rows = [row | {"setting": {"ddp.bucket_cap_mib": mib}} for mib in (1, 25)]
    _, below = painted(paint_sweep, rows)
    found = [each for each in below.containers if isinstance(each, ErrorbarContainer)]
    whiskers = [each.lines[2][0].get_segments()[0] for each in found]
    assert [high - low for (_, low), (_, high) in whiskers] == pytest.approx([40, 20])  # ms


def test_the_spread_of_a_step_is_drawn_around_its_median(document):
    row = document["rows"][-1] | {"step_s_median": 0.3, "step_s_iqr": 0.02}
    row["phases"] = {"forward_s": 0.1, "backward_s": 0.1}  # medians, which add up to less
    (axes,) = painted(paint_step_time, [row], document)
    (whiskers,) = (each for each in axes.containers if isinstance(each, ErrorbarContainer))
    (low, _), (high, _) = whiskers.lines[2][0].get_segments()[0]
    assert (low, high) == pytest.approx((290, 310))  # ms


def painted(paint, *arguments):
    """The axes of a figure that nobody writes to a page."""
    drawn = Figure()
    paint(drawn, *arguments)
    return drawn.axes


def test_wherever_dp_ran_on_cpus_its_figures_say_so(page):
    text = page()
    assert figure(text, "Throughput").count(f"dp: {ON_CPU}") == 1
    assert figure(text, "What a step").count(f"dp: {ON_CPU}, ") == 2
    for caption in ("Speed", "Communication", "Use of the machine", "Part of the work"):
        names = {row[0] for row in cells(text, caption)[1:]}
        assert f"dp: {ON_CPU}" in names
        assert "dp" not in names


def test_what_is_missing_is_said_in_its_place(page, document):
    text = page()
    for title in ("Memory per device", "What a step"):
        assert ("not measured here" in figure(text, title)) == (title == "Memory per device")
    assert "<li>memory per device and use of the GPUs: there is no GPU here</li>" in text
    assert {row[2] for row in cells(text, "Use of the machine")[1:]} == {"not measured here"}
    for row in document["rows"]:
        row["phases"], row["buckets"] = {}, []
    text = page()
    assert "phases not measured here" in figure(text, "What a step")
    assert "not measured here" in figure(text, "The buckets of a DDP step")


def test_memory_is_drawn_for_every_device_with_its_imbalance(page, document):
    document["rows"][2] |= {"memory_bytes_per_device": [3 << 30, *[2 << 30] * 3],
                            "memory_imbalance": 1.5}  # fmt: skip
    text = page()
    drawn = figure(text, "Memory per device")
    assert [drawn.count(f"device {index}<") for index in range(5)] == [1, 1, 1, 1, 0]
    assert "CUDA&#39;s context and NCCL&#39;s buffers come on top" in drawn
    assert cells(text, "Use of the machine")[3][3] == "1.5"


def test_the_timeline_shows_what_outlasts_backward(page, document):
    drawn = figure(page(), "Buckets of one step").replace("\N{NO-BREAK SPACE}", " ")
    assert "97.49 MiB in 5 buckets." in drawn
    for bucket in document["rows"][-1]["buckets"]:
        assert f"bucket {bucket['index']}, " in drawn


def test_a_sweep_is_drawn_by_setting_with_a_timeline_for_each(page, document):
    row = document["rows"][-1]
    document["rows"] = [row | {"setting": {"ddp.bucket_cap_mib": v}} for v in (1, 25, 100)]
    text = page()
    assert "Throughput" not in text
    drawn = figure(text, "Step and communication by setting")
    assert all(f">{words}<" in drawn for words in ("1", "25", "100", "ddp.bucket_cap_mib"))
    for value in (1, 25, 100):
        assert figure(text, f"Buckets of one step: ddp, 4 devices, ddp.bucket_cap_mib={value}<")
    assert cells(text, "Speed")[1][2] == "ddp.bucket_cap_mib=1"


def test_what_the_times_depend_on_is_among_the_facts(page, document):
    assert "train.deterministic" not in page()  # of an older report
    document["settings"] = {"train.deterministic": False, "data.workers": 0}
    text = page()
    for name, value in document["settings"].items():
        assert re.search(rf"<dt>{name}</dt>\s*<dd>{value}</dd>", text)


def test_weak_scaling_says_what_was_kept_the_same(page, document):
    assert "<dd>the global batch</dd>" in page()
    assert cells(page(), "Part of the work")[0][2].startswith(
        "residual of the step times, as a share"
    )
    document |= {"strong": False, "gustafson": document.pop("amdahl")}
    document["gustafson"]["ddp"]["residual"] = None  # of a single point
    text = page()
    assert cells(text, "Part of the work")[0][2] == "residual of the speed-ups"
    assert cells(text, "Part of the work")[-1][2] == "-"
    assert "<dd>the micro-batch</dd>" in text
    assert "Karp-Flatt" not in cells(text, "Speed")[0]  # it is about a fixed size of the problem
    assert "Gustafson&#39;s law" in text


def test_the_same_document_is_the_same_page(page):
    assert page() == page()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": []}, "it has no rows"),
        ({"rows": [{"devices": 1, "step_s_median": 0.1}]}, "row 1 has no number `images_per_s`"),
        ({"rows": [{"devices": True}]}, "row 1 has no number `devices`"),
        ({"rows": ["x"]}, "row 1 has no number"),
    ],
)
def test_a_document_without_numbers_is_refused(tmp_path, document, change, said):
    with pytest.raises(HpcddpError, match=said):
        write_page("compare", document | change, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_barest_row_makes_a_page(tmp_path):
    bare = {"devices": 2, "step_s_median": 0.5, "images_per_s": 4.0}
    text = write_page("compare", {"rows": [bare]}, tmp_path).read_text()
    assert "n = unknown steps each; discarded as warm-up: unknown" in figure(text, "Throughput")
    assert cells(text, "Speed")[1][2:4] == ["500 ms", "not measured here"]
