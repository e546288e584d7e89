"""How the processes of one job find each other, also when ports are taken. Knows no collective.

The main process listens on the first free one of the ports that all of them derived for this job,
and tells whoever asks for this job where torch's store is. The others ask at each port in turn. So
a stranger on a port (a web server, another job, a program that accepts and says nothing) costs a
moment and never a hang: torch's own client waits for ever for a listener that does not answer.
"""

import contextlib
import errno
import logging
import socket
import time
from collections.abc import Iterator

import psutil
from torch.distributed import TCPStore

from hpcddp.config.layout import ProcessLayout
from hpcddp.errors import HpcddpError

_ASK_TIMEOUT_S = 2.0  # for one connection or one answer; the deadline counts above it
_PAUSE_S = 0.1
_WAIT_NOTICE_S = 20.0
_LINE_BYTES = 2000
_ALL_HERE = "all here"

_log = logging.getLogger(__name__)


def meet(layout: ProcessLayout, timeout_s: float) -> TCPStore:
    """The store that all processes share, once all are there. Collective.

    Raises HpcddpError `rendezvous` after `timeout_s`, with who is missing or what answered at
    each port, and the likely causes.
    """
    deadline = time.monotonic() + timeout_s
    if layout.is_main:
        return _receive_others(layout, deadline, timeout_s)
    return _find_main(layout, deadline, timeout_s)


def _greeting(layout: ProcessLayout) -> str:
    """What only processes of this start of this job say."""
    return f"hpcddp {layout.job_key}/{layout.attempt}/{layout.restart_count}/{layout.world_size}"


# The main process.


def _receive_others(layout: ProcessLayout, deadline: float, timeout_s: float) -> TCPStore:
    """Write each process's connection down; when all are there, let them go on together."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    missing = set(range(1, layout.world_size))
    with contextlib.ExitStack() as open_until_the_end:
        listener = open_until_the_end.enter_context(_listen_on_first_free(layout))
        arrived: dict[int, socket.socket] = {}
        for connection in _connections(listener, layout, missing, deadline):
            open_until_the_end.enter_context(connection)
            with contextlib.suppress(OSError, ValueError):
                global_rank = _answer(connection, layout, store.port)
                arrived[global_rank] = connection
                missing.discard(global_rank)
        said = _missing_words(layout, listener.getsockname()[1], missing, timeout_s)
        for connection in arrived.values():
            with contextlib.suppress(OSError):
                connection.sendall(f"{said or _ALL_HERE}\n".encode())
        if missing:
            raise HpcddpError(said, "rendezvous")
    return store


def _listen_on_first_free(layout: ProcessLayout) -> socket.socket:
    problems = []
    for port in layout.ports:
        try:
            listener = _listen(port)
        except OSError as error:
            problems.append(f"{port} ({error.strerror})")
            continue
        if problems:
            _log.warning("Rendezvous at port %d; not free: %s", port, ", ".join(problems))
        return listener
    raise HpcddpError(
        f"No port for the rendezvous is free on {layout.hosts[0]}: {', '.join(problems)}. Is "
        "another job of yours still running there? HPCDDP_MASTER_PORT=N asks for another port.",
        "rendezvous",
    )


def _listen(port: int) -> socket.socket:
    address, backlog = ("", port), 1024
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(
                address, family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog
            )
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:  # which says: this host has IPv6 switched off
                raise
    return socket.create_server(address, backlog=backlog)


def _connections(
    listener: socket.socket, layout: ProcessLayout, missing: set[int], deadline: float
) -> Iterator[socket.socket]:
    """Connections until nobody in `missing` is left or time is up."""
    listener.settimeout(_PAUSE_S)
    notice_at = time.monotonic() + _WAIT_NOTICE_S
    while missing and time.monotonic() < deadline:
        if time.monotonic() > notice_at:
            _log.warning("Still waiting for %s", _rank_list(missing, layout.world_size))
            notice_at += _WAIT_NOTICE_S
        with contextlib.suppress(TimeoutError):
            connection, _ = listener.accept()
            yield connection


def _answer(connection: socket.socket, layout: ProcessLayout, store_port: int) -> int:
    """Tell a process of this job where the store is; its global rank. Raises ValueError if not."""
    connection.settimeout(_ASK_TIMEOUT_S)
    greeting, _, global_rank = _read_line(connection).rpartition(" ")
    if greeting != _greeting(layout):
        raise ValueError(greeting)
    connection.sendall(f"{greeting} {store_port}\n".encode())
    return int(global_rank)


# The others.


def _find_main(layout: ProcessLayout, deadline: float, timeout_s: float) -> TCPStore:
    answers: dict[int, str] = {}
    while time.monotonic() < deadline:
        for port in layout.ports:
            address = (layout.master_addr, port)
            try:
                with socket.create_connection(address, timeout=_ASK_TIMEOUT_S) as connection:
                    store_port = _ask(connection, layout)
                    return _wait_for_all(connection, layout, store_port, deadline)
            except (OSError, ValueError) as error:
                answers[port] = _reason(error)
        time.sleep(_PAUSE_S)
    raise _main_not_found(layout, answers, timeout_s)


def _ask(connection: socket.socket, layout: ProcessLayout) -> int:
    """The port of the store; OSError or ValueError if it is not our main process that answers."""
    connection.sendall(f"{_greeting(layout)} {layout.global_rank}\n".encode())
    greeting, _, store_port = _read_line(connection).rpartition(" ")
    if greeting != _greeting(layout):
        raise ValueError("somebody else answers")
    return int(store_port)


def _wait_for_all(
    connection: socket.socket, layout: ProcessLayout, store_port: int, deadline: float
) -> TCPStore:
    """Wait until the main process says that all are there. It, not we, decides when to give up."""
    connection.settimeout(max(0.0, deadline - time.monotonic()) + _ASK_TIMEOUT_S)
    said = _read_line(connection)
    if said != _ALL_HERE:
        raise HpcddpError(said, "rendezvous")
    return TCPStore(layout.master_addr, store_port, wait_for_workers=False)


def _read_line(connection: socket.socket) -> str:
    """One line; ValueError if what comes is longer than any of ours, or ends early.

    Byte by byte, to leave what comes after it for the next call; these are two lines per start.
    """
    received = b""
    while not received.endswith(b"\n"):
        byte = connection.recv(1)
        received += byte
        if not byte or len(received) > _LINE_BYTES:
            raise ValueError("somebody else answers")
    return received.decode().strip()


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    return str(getattr(error, "strerror", None) or error)


# What went wrong, in words.


def _missing_words(layout: ProcessLayout, port: int, missing: set[int], timeout_s: float) -> str:
    """One line about who did not come; empty if all came."""
    if not missing:
        return ""
    return (
        f"{_rank_list(missing, layout.world_size)} did not come to "
        f"{layout.master_addr}:{port} within {timeout_s:.0f} s. Likely causes: they failed before "
        "(see their logs: `hpcddp logs RUN --rank R`), they start later than that "
        f"(train.rendezvous_timeout_s), or their nodes cannot reach this address. "
        f"{own_place(layout.master_addr)}."
    )


def _main_not_found(
    layout: ProcessLayout, answers: dict[int, str], timeout_s: float
) -> HpcddpError:
    tried = ", ".join(f"{port} ({answer})" for port, answer in answers.items())
    return HpcddpError(
        f"Rank {layout.global_rank} on {socket.gethostname()} did not find rank 0 at "
        f"{layout.master_addr} ({_resolved(layout.master_addr)}) within {timeout_s:.0f} s. Ports "
        f"tried: {tried}. Likely causes: rank 0 failed before or starts later "
        "(train.rendezvous_timeout_s; see `hpcddp logs RUN --rank 0`), the name resolves to an "
        "address that this node cannot reach, or a firewall between the nodes. "
        f"{own_place(layout.master_addr)}.",
        "rendezvous",
    )


def not_joined(layout: ProcessLayout, timeout_s: float) -> HpcddpError:
    """All were there, and then not all could be connected with each other."""
    return HpcddpError(
        f"Rank {layout.global_rank} of {layout.world_size} was not connected with all others "
        f"within {timeout_s:.0f} s. Likely causes: one of them has ended (`hpcddp logs RUN --rank "
        "all`), or the nodes use a network on which they cannot reach each other: the `Network:` "
        "lines of the log say which, HPCDDP_INTERFACE=NAME chooses another. "
        f"{own_place(layout.master_addr)}.",
        "rendezvous",
    )


def own_place(address: str) -> str:
    """Which of its addresses, on which interface, this host sends from to that address."""
    here = socket.gethostname()
    try:
        family, _, _, _, place = socket.getaddrinfo(address, 9)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)  # sends nothing
            own = probe.getsockname()[0]
    except OSError as error:
        return f"{here} has no way to {address} ({error.strerror})"
    names = [
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(each.address.partition("%")[0] == own for each in addresses)
    ]
    return f"{here} sends to {address} from {own} on {', '.join(names) or 'no interface'}"


def _resolved(host: str) -> str:
    try:
        return str(socket.getaddrinfo(host, None)[0][4][0])
    except OSError as error:
        return f"does not resolve: {error.strerror}"


def _rank_list(ranks: set[int], world_size: int) -> str:
    shown = ", ".join(map(str, sorted(ranks)[:10]))
    more = f" and {len(ranks) - 10} more" if len(ranks) > 10 else ""
    return f"Ranks {shown}{more} of {world_size}"
