"""How a process of a job ends: at once, whatever became of the others. Knows no job."""

import multiprocessing
import os
import shutil
import sys
from contextlib import suppress
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End this process with that code, and wait for nobody.

    What multiprocessing keeps below TMPDIR, the sockets of its fork server, goes with it: only an
    orderly end would have removed it. A child's folder is its parent's, and still in use.
    """
    folder = getattr(multiprocessing.current_process(), "_config", {}).get("tempdir")
    if folder and multiprocessing.parent_process() is None:
        shutil.rmtree(folder, ignore_errors=True)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # a log on a full disk
            stream.flush()
    os._exit(code)
