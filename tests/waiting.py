"""How tests wait for what other processes and threads do."""

import time
from collections.abc import Callable

PATIENCE_S = 120.0  # on a busy machine a process may stand still for half a minute


def wait_until(is_true: Callable[[], object], limit_s: float = PATIENCE_S) -> None:
    """Return once `is_true()`; fail where it never is."""
    deadline = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline, f"not within {limit_s:g} s"
        time.sleep(0.02)
