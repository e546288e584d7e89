"""A real browser opens and prints the pages: nothing is fetched, nothing is run."""

import re

import pytest

from hpcddp.report.pages import write_page

HOSTILE = '<script>document.title="run"</script><img src="http://192.0.2.1/a.png">$x^2$ & "q"'


def test_the_browser_of_these_tests_sees_what_a_bad_page_does(browser, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text('<img src="http://192.0.2.1/a.png"><script>nowhere.to()</script>')
    visit = browser.open(page)
    assert visit.requests == ["http://192.0.2.1/a.png"]
    assert "nowhere is not defined" in visit.complaints[0]


@pytest.mark.parametrize("kind", ["compare", "allreduce"])
def test_a_page_renders_without_a_request_or_a_complaint(
    browser, tmp_path, kind, document, bandwidths
):
    given = {"compare": document, "allreduce": bandwidths}[kind]
    visit = browser.open(write_page(kind, given, tmp_path))
    assert visit.requests == []
    assert visit.complaints == []
    num_figures = {"compare": 3, "allreduce": 1}[kind]
    assert visit.dom.count("<svg") == num_figures
    ids = re.findall(r'\bid="([^"]+)"', visit.dom)
    assert len(ids) == len(set(ids)) > 100


def test_a_name_cannot_become_part_of_the_page(browser, tmp_path, document):
    document |= {"title": HOSTILE, "label_of_dp": HOSTILE, "not_measured": [HOSTILE]}
    document["machine"]["hosts"] = [HOSTILE]
    document["verdict"] |= {"words": HOSTILE, "evidence": [HOSTILE]}
    document["rows"][-1]["setting"] = {HOSTILE: HOSTILE}
    visit = browser.open(write_page("compare", document, tmp_path))
    assert (visit.requests, visit.complaints) == ([], [])
    assert "<script" not in visit.dom
    assert "<img" not in visit.dom
    assert '<title>&lt;script&gt;document.title="run"' in visit.dom
    assert "$x^2$" in visit.dom  # also in figures, where it could become a formula


def test_figures_and_tables_are_printed_on_few_sheets(browser, tmp_path, document):
    assert browser.print_pages(write_page("compare", document, tmp_path)) == 3
