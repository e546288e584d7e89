"""Real processes with gloo between them, for the tests of this folder.

They come from a fork server that has torch loaded, so one more costs milliseconds.
"""

import dataclasses
import faulthandler
import multiprocessing
import os
import socket
import sys
import time
import traceback
from multiprocessing import connection
from pathlib import Path

from hpcddp.config.layout import ProcessLayout
from hpcddp.config.schema import (
    CheckpointConfig,
    DataConfig,
    LogConfig,
    OptimConfig,
    RunConfig,
    TrainConfig,
)

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["hpcddp.train.loop"])
DEADLINE_S = 120


def free_ports(count):
    """Ports that were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = tuple(each.getsockname()[1] for each in sockets)
    for each in sockets:
        each.close()
    return ports


def layouts(world_size, *, ports=None, job_key="test", **fields):
    port, *more = ports or free_ports(2)
    return [
        ProcessLayout(
            global_rank=rank,
            world_size=world_size,
            local_rank=rank,
            local_world_size=world_size,
            master_port=port,
            more_ports=tuple(more),
            launcher="local",
            job_key=job_key,
            **fields,
        )
        for rank in range(world_size)
    ]


@dataclasses.dataclass
class Ranks:
    """Started processes, each of which will send one result."""

    processes: list
    pipes: list

    def results(self):
        """What the processes returned, by rank; an exception in one of them is raised here."""
        try:
            return [self._result(rank) for rank in range(len(self.pipes))]
        finally:
            for process in self.processes:
                process.kill()
                process.join()

    def _result(self, rank):
        """Rank by rank, but an error anywhere at once: the others may wait for it."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            ready = connection.wait(self.pipes, deadline - time.monotonic())
            if not ready:
                raise TimeoutError(f"rank {rank} sent nothing for {DEADLINE_S} s")
            for pipe in ready:
                place = self.pipes.index(pipe)
                outcome = pipe.recv() if not isinstance(pipe, Held) else pipe
                self.pipes[place] = Held(outcome)
            ...
