"""A made-up comparison, and a real browser to open pages in."""

import copy
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

CASES = Path(__file__).parents[1] / "cases"
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr",
)  # fmt: skip


@pytest.fixture
def document():
    """The made-up compare.json; a test may change it."""
    text = (CASES / "compare_document.yaml").read_text(encoding="utf-8")
    return copy.deepcopy(yaml.safe_load(text))


@pytest.fixture
def bandwidths():
    """A made-up allreduce.json of four sizes on a perfect line."""
    sizes = (1 << 10, 1 << 15, 1 << 20, 1 << 25)
    times = [1e-3 + size / 1e9 for size in sizes]
    rows = [
        {"bytes": size, "seconds": t, "algbw_gb_per_s": size / t / 1e9, "n": 9, "discarded": 3,
         "busbw_gb_per_s": 1.5 * size / t / 1e9, "seconds_quartile_1": 0.9 * t,
         "seconds_quartile_3": 1.2 * t}
        for size, t in zip(sizes, times, strict=True)
    ]  # fmt: skip
    fit = {"alpha_s": 1e-3, "beta_gb_per_s": 1.0, "bus_gb_per_s": 1.5, "worst_relative_miss": 0.0}
    return {"backend": "gloo", "world_size": 4, "nodes": 2, "hosts": ["a", "b"], "rows": rows,
            "fit": fit, "versions": {"torch": "0.0"}, "device": "CPU"}  # fmt: skip


@dataclass
class Visit:
    """What happened when the browser opened a page."""

    dom: str
    requests: list[str]
    complaints: list[str]


class Browser:
    """Chromium without a window, each time with an empty profile."""

    def __init__(self, program, folder):
        self.program, self.folder, self.visits = program, folder, 0

    def run(self, page, *options):
        self.visits += 1
        profile = f"--user-data-dir={self.folder}/profile-{self.visits}"
        command = [self.program, *OPTIONS, profile, *options, page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done

    def open(self, page):
        """Load a page as a reader would."""
        log = self.folder / "requests.json"
        done = self.run(page, f"--log-net-log={log}", "--dump-dom")
        complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        return Visit(done.stdout, self._requests_of_page(log), complaints)

    @staticmethod
    def _requests_of_page(log):
        """What the page asked for; the browser asks for things of its own, too."""
        asked = (event.get("params", {}) for event in json.loads(log.read_text())["events"])
        return [p["url"] for p in asked if "file://" in p.get("network_isolation_key", "")]

    def print_pages(self, page):
        """Print to PDF; the number of sheets."""
        pdf = self.folder / "page.pdf"
        self.run(page, "--no-pdf-header-footer", f"--print-to-pdf={pdf}")
        return len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf.read_bytes()))


@pytest.fixture
def browser(tmp_path):
    """Chromium; without one skip, or with HPCDDP_REQUIRE_BROWSER=1 fail."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        reason = "no chromium here (Debian: apt install chromium)"
        if os.environ.get("HPCDDP_REQUIRE_BROWSER") == "1":
            pytest.fail(f"HPCDDP_REQUIRE_BROWSER=1, but {reason}", pytrace=False)
        pytest.skip(reason)
    return Browser(program, tmp_path)
