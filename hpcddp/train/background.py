"""One piece of work beside the loop, never two. Knows nothing of what the work is."""

import threading
from collections.abc import Callable


class Background:
    """Runs a call in a thread that ends with it; an error of the call comes out of `wait`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Begin `work`; waits for the work before it."""
        self.wait()
        # A daemon: who leaves without waiting, after an error, must not be held up by a slow disk.
        self._thread = threading.Thread(
            target=self._run, args=(work,), name=self._name, daemon=True
        )
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """True once nothing is under way, False when time is up; raises what the work raised."""
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                return False
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
        return True

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error
