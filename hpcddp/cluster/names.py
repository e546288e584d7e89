"""Host names -> addresses, asked of the resolver of this node. Knows no job."""

import socket
from collections.abc import Callable, Sequence
from time import monotonic, sleep

from hpcddp.cluster.hostlist import is_address

Resolve = Callable[[str], tuple[str, ...]]
_PATIENCE_S, _PAUSE_S = 20.0, 1.0  # a name server that thousands of processes ask at once


def resolve_name(name: str) -> tuple[str, ...]:
    """The addresses of `name` in the order in which a connection would try them; () if none."""
    if is_address(name):
        return (name,)
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(answer[4][0]).partition("%")[0] for answer in answers))


def first_that_resolves(
    names: Sequence[str], resolve: Resolve = resolve_name, patience_s: float = _PATIENCE_S
) -> tuple[str, tuple[str, ...]]:
    """The first of `names` that has an address, and its addresses; ("", ()) if none has.

    As long as none has, all are asked again for `patience_s`: name servers have hiccups, and
    names of nodes in a cloud may appear only after the nodes.
    """
    deadline = monotonic() + patience_s
    while True:
        for name in names:
            if addresses := resolve(name):
                return name, addresses
        if monotonic() >= deadline:
            return "", ()
        sleep(_PAUSE_S)
