"""Whether a process has ended, for tests of what is left behind."""

import psutil


def has_ended(pid: int) -> bool:
    """True also where nobody has asked how it ended: a container's first process may take its
    time, or never care.
    """
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
