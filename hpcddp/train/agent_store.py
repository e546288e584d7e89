"""How processes find each other below torchrun, whose agent keeps a store for them."""

import socket
import time
from datetime import timedelta

from torch.distributed import DistError, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from hpcddp.config.layout import ProcessLayout
from hpcddp.errors import HpcddpError
from hpcddp.train.rendezvous import own_place

_ASK_TIMEOUT_S = 2.0  # for one connection; the deadline counts above it
_PAUSE_S = 0.1
_ARRIVED = "arrived"


def meet_in_store(layout: ProcessLayout, timeout_s: float) -> Store:
    """The store that all processes share, once all are there. Collective.

    The agent may keep it over restarts of its workers, so each of these has keys of its own.
    Raises HpcddpError `rendezvous` where the store is not reached or, after `timeout_s`, not all
    have come.
    """
    deadline = time.monotonic() + timeout_s
    place = ("env://", layout.global_rank, layout.world_size)
    try:
        if not layout.is_main:  # which may have to keep the store itself
            _wait_for_listener(layout, deadline)
        limit = timedelta(seconds=max(_ASK_TIMEOUT_S, deadline - time.monotonic()))
        agents, _, _ = next(rendezvous(*place, timeout=limit))
        store = PrefixStore(f"hpcddp/{layout.elastic_restarts}", agents)
        num_here = store.add(_ARRIVED, 1)
        while num_here < layout.world_size and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
            num_here = store.add(_ARRIVED, 0)
    except (OSError, DistError) as error:
        raise _store_not_reached(layout, error) from error
    if num_here < layout.world_size:
        raise _others_not_here(layout, num_here, timeout_s)
    return store


def _wait_for_listener(layout: ProcessLayout, deadline: float) -> None:
    """Raises OSError at the deadline; torch's client would go on beyond it and not say why."""
    while True:
        try:
            address = (layout.master_addr, layout.master_port)
            socket.create_connection(address, timeout=_ASK_TIMEOUT_S).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)


def _store_not_reached(layout: ProcessLayout, error: Exception) -> HpcddpError:
    said = getattr(error, "strerror", None) or str(error).partition("\n")[0].rstrip(".")
    return HpcddpError(
        f"Rank {layout.global_rank} of {layout.world_size} could not reach the store of torchrun "
        f"at {layout.master_addr}:{layout.master_port}: {said}. Likely causes: torchrun has ended "
        "on the node of rank 0, or this node cannot reach that address. "
        f"{own_place(layout.master_addr)}.",
        "rendezvous",
    )


def _others_not_here(layout: ProcessLayout, num_here: int, timeout_s: float) -> HpcddpError:
    return HpcddpError(
        f"Only {num_here} of {layout.world_size} processes came to the store of torchrun at "
        f"{layout.master_addr}:{layout.master_port} while rank {layout.global_rank} waited for "
        f"{timeout_s:.0f} s. Likely causes: the others failed before (`hpcddp logs RUN --rank "
        "all`), or they start later than that (train.rendezvous_timeout_s).",
        "rendezvous",
    )
