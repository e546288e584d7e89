"""Notices Slurm's stop signals, from before any heavy import on. Knows no torch and no rank.

A signal is only written down here; what to do about it is decided between two steps, by all
processes together (`hpcddp.train.stop`).
"""

import os
import signal
import socket
import threading
import time
from dataclasses import dataclass
from types import FrameType

# Preemption, and what sites and `--signal` send ahead of a time limit or instead of SIGTERM.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True, slots=True)
class StopNotice:
    """Which signal came first, and when, in Unix seconds."""

    signum: int
    time: float


class StopFlag:
    """Set by the first stop signal this process gets; never cleared.

    Python runs a signal handler only between two bytecodes of the main thread, which may wait in
    a collective for as long as its slowest peer. So the interpreter also writes each signal's
    number to a socket, at once and from C, and a thread reads it there.
    """

    def __init__(self) -> None:
        self.notice: StopNotice | None = None
        self.leaves_together = False
        self.leaving = threading.Lock()  # for who is about to leave alone; held till the end
        # Set by the reader thread only: a handler could interrupt itself while it holds the lock.
        self._told = threading.Event()

    @classmethod
    def install(cls) -> "StopFlag":
        """Catch the stop signals in this process from now on; call it in the main thread.

        Processes forked from this one ignore them instead: Slurm signals every process of a step,
        and the training process alone decides when the others end.
        """
        flag = cls()
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        flag.rearm()
        os.register_at_fork(after_in_child=_ignore_stop_signals)
        threading.Thread(
            target=flag._read, args=(reader, writer), name="stop-signals", daemon=True
        ).start()
        return flag

    @property
    def is_set(self) -> bool:
        """True once a stop signal has come."""
        return self.notice is not None

    def wait(self) -> StopNotice:
        """Return once a stop signal has come; for threads that have something to do then."""
        self._told.wait()
        assert self.notice is not None
        return self.notice

    def comes_within(self, seconds: float) -> bool:
        """True as soon as a stop signal has come, False if none has come by then."""
        return self._told.wait(seconds)

    def leave_together(self) -> None:
        """From now on a stop is agreed on; until now a process that is told may leave by itself.

        Does not return where it does that right now.
        """
        with self.leaving:
            self.leaves_together = True

    def hear(self, signum: int) -> None:
        """Another process got a stop signal, and all have agreed to follow it."""
        self._note(signum)
        self._told.set()

    def rearm(self) -> None:
        """Take the signals back from libraries that installed a handler of their own."""
        for signum in STOP_SIGNALS:
            signal.signal(signum, self._handle)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self._note(signum)

    def _read(self, reader: socket.socket, writer: socket.socket) -> None:
        """Runs in a thread for the life of the process; `writer` must not be collected before."""
        while signums := reader.recv(64):
            for signum in signums:
                if signum in STOP_SIGNALS:
                    self._note(signum)
                    self._told.set()

    def _note(self, signum: int) -> None:
        if self.notice is None:
            self.notice = StopNotice(signum, time.time())


def _ignore_stop_signals() -> None:
    signal.set_wakeup_fd(-1)
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
