"""What holds for all tests, a short path, a small disk, and a real browser to open pages in."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes, or takes to be found, is a matter of what else runs here.
settings.register_profile(
    "busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy machine")

OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr",
)  # fmt: skip


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def pytest_configure() -> None:
    """A shell starts background jobs deaf to Ctrl-C; programs under test would inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for signum in SIGNALS[1:]:
        signal.signal(signum, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def own_signals():
    """What a test lets this process do with a signal, or ignore, no later test's programs inherit:
    the last act and the local executor are deaf to SIGTERM in the end.
    """
    before = {signum: signal.getsignal(signum) for signum in SIGNALS}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.fixture
def short_tmp():
    """A folder whose path leaves room for sockets in it (107 bytes); pytest's may not."""
    with tempfile.TemporaryDirectory(prefix="hpcddp-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def small_disk(tmp_path):
    """Eight MiB of file system, all of its own."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "none", folder], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


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
