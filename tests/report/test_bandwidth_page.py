"""The page of `bench allreduce`: figure, table, and the line through all sizes."""

from hpcddp.report.pages import write_page


def test_sizes_bandwidths_and_the_line_are_on_the_page(tmp_path, bandwidths):
    text = write_page("allreduce", bandwidths, tmp_path).read_text().replace("\N{NBSP}", " ")
    assert "<h1>All-reduce, gloo</h1>" in text
    assert "32 MiB: bus bandwidth 11.7 Gbit/s" in text
    assert "latency 1 ms, bus bandwidth 12 Gbit/s" in text
    assert "n = 9 calls of each size; discarded before them: 3." in text
    assert "over its network" not in text
    assert "<td>32 KiB</td>" in text


def test_a_line_has_its_errors_and_is_not_recommended_where_it_misses_far(tmp_path, bandwidths):
    def page():
        return write_page("allreduce", bandwidths, tmp_path).read_text().replace("\N{NBSP}", " ")

    bandwidths["fit"] |= {"alpha_error_s": 2e-5, "beta_error_gb_per_s": 0.03, "is_line": True}
    assert "12 Gbit/s (standard errors 20 us and 3.0 %); it misses" in page()
    assert "No line describes" not in page()
    bandwidths["fit"]["is_line"] = False
    bandwidths["rows"][0]["seconds"] *= 1000  # the smallest is not always the fastest
    assert "of 32 KiB, for the latency, and the bus bandwidth of 32 MiB, 11.7 Gbit/s." in page()


def test_calls_that_nobody_counted_are_said_to_be_unknown(tmp_path, bandwidths):
    for row in bandwidths["rows"]:
        del row["n"], row["discarded"]
    text = write_page("allreduce", bandwidths, tmp_path).read_text()
    assert "n = unknown calls of each size; discarded before them: unknown." in text


def test_a_node_of_several_processes_has_a_speed_of_its_own(tmp_path, bandwidths):
    bandwidths["rows"][-1]["node_gb_per_s"] = 0.5
    text = write_page("allreduce", bandwidths, tmp_path).read_text()
    assert "at least 4 Gbit/s over its network" in text


def test_without_a_line_the_page_says_so(tmp_path, bandwidths):
    text = write_page("allreduce", bandwidths | {"fit": None}, tmp_path).read_text()
    assert "No line of latency and bandwidth: time does not grow with size here." in text
    assert "fitted line" not in text
    alone = bandwidths | {"fit": None, "rows": bandwidths["rows"][:1]}
    text = write_page("allreduce", alone, tmp_path).read_text()
    assert "No line of latency and bandwidth: one size." in text
