"""What holds for all tests."""

import signal


def pytest_configure() -> None:
    """A shell starts background jobs deaf to Ctrl-C; programs under test would inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
