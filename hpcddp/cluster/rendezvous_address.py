"""Where rank 0 is reached from this node, and which interface leads there.

The suffix of a second name is tried here: `hpcddp env` asks no name server. Pure over a picture
of the host and a way to resolve names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcddp.cluster.hostlist import is_address, with_suffix
from hpcddp.cluster.interfaces import Host, Interface, is_loopback
from hpcddp.cluster.names import Resolve, first_that_resolves
from hpcddp.cluster.slurm_step import ADDRESS_VARIABLE, SUFFIX_VARIABLE
from hpcddp.cluster.variables import first_set
from hpcddp.config.layout import ProcessLayout
from hpcddp.errors import HpcddpError

FORM_VARIABLE = "HPCDDP_MASTER_AS"
_FORMS = ("name", "address")


@dataclass(frozen=True, slots=True)
class Master:
    """`addr` is what processes connect to. `addresses` and `peers` tell which way the others are:
    those of rank 0's node, and on that node itself those of the next one.
    """

    addr: str
    addresses: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    is_here: bool = False
    reasons: tuple[str, ...] = ()

    def leads_over(self, host: Host) -> tuple[Interface | None, str]:
        """The interface towards the other nodes, and why it is this one; None where none is."""
        owners = map(host.owner_of, self.addresses) if self.is_here else ()
        if own := next((each for each in owners if each and each.is_usable), None):
            return own, f"it has the address of {self.addr}, where rank 0 is"
        ways = self.peers if self.is_here else self.addresses
        roads = [(address, found) for address in ways if (found := host.towards(address))]
        for address, found in roads:
            if found.is_usable:
                goal = "the next node" if self.is_here else self.addr
                return found, f"it leads to {goal} ({address})"
        if len(host.usable) == 1 and not roads:
            return host.usable[0], "it is the only one that is up and has an address"
        said = "; ".join(f"the route to {address} is over {found}" for address, found in roads)
        return None, said or f"no route to {self.addr} ({', '.join(ways) or 'no address known'})"


def is_one_host(layout: ProcessLayout) -> bool:
    """True where all processes share this host; the nodes of the local launcher are no hosts."""
    return layout.num_nodes == 1 or layout.launcher == "local"


def find_master(
    layout: ProcessLayout, environ: Mapping[str, str], host: Host, resolve: Resolve
) -> Master:
    """Where rank 0 is, seen from here. Raises HpcddpError `rendezvous` where that is nowhere."""
    names, is_here = _names(layout, environ), layout.node_rank == 0
    name, addresses = settle_name(names, host.name, resolve)
    reachable = tuple(address for address in addresses if not is_loopback(address))
    # On its own node a name may mean loopback, as on Debian: there nobody needs the name.
    if not is_here or is_address(name) or name == "localhost":
        _refuse_own_address(name, addresses, host, is_here=is_here)
    peers: tuple[str, ...] = ()
    if is_here and not any(map(host.owner_of, reachable)):
        peers = _peers(layout, "" if name == names[-1] else environ[SUFFIX_VARIABLE], resolve)
    addr, reason = name, _reason(name, names, addresses, environ)
    if _form(environ) == "address" and reachable and not layout.has_store:
        addr = reachable[0]
        reason = f"MASTER_ADDR={addr}: {name}, as {FORM_VARIABLE}=address asks for"
    return Master(addr, reachable, peers, is_here, (reason,))


def settle_name(
    names: Sequence[str], host_name: str, resolve: Resolve
) -> tuple[str, tuple[str, ...]]:
    """The first of a node's names that resolves, with its addresses. Raises HpcddpError."""
    name, addresses = first_that_resolves(names, resolve)
    if name:
        return name, addresses
    raise HpcddpError(
        f"{' and '.join(names)}: no address is known on {host_name}, and rank 0 runs there. Check "
        f"the name (`getent hosts {names[-1]}` on a node), set `host_suffix` in the cluster "
        f"profile if nodes have another name on the network, or export {ADDRESS_VARIABLE}=ADDRESS "
        f"(`scontrol show node {names[-1]}` prints its NodeAddr).",
        "rendezvous",
    )


def node_names(host: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What a node may be called: with the suffix of the fast network, then without."""
    suffixed = with_suffix(host, environ.get(SUFFIX_VARIABLE, "").strip())
    return tuple(dict.fromkeys((suffixed, host)))


def _names(layout: ProcessLayout, environ: Mapping[str, str]) -> tuple[str, ...]:
    if layout.launcher != "slurm" or first_set(environ, ADDRESS_VARIABLE):
        return (layout.master_addr,)
    return node_names(layout.hosts[0], environ)


def _peers(layout: ProcessLayout, suffix: str, resolve: Resolve) -> tuple[str, ...]:
    """Addresses of the second node: on the first one, its own name may mean loopback."""
    if layout.launcher != "slurm":
        return ()  # torchrun does not name its nodes
    found = resolve(with_suffix(layout.hosts[1], suffix.strip()))
    return tuple(address for address in found if not is_loopback(address))


def _refuse_own_address(name: str, addresses: Sequence[str], host: Host, *, is_here: bool) -> None:
    """A name that means every node itself: each would wait for the others alone."""
    others = [a for a in addresses if not is_loopback(a) and (is_here or not host.owner_of(a))]
    if others:
        return
    raise HpcddpError(
        f"On {host.name} the address of rank 0, {name}, means {host.name} itself "
        f"({', '.join(addresses)}), so every node would wait for the others alone. Correct "
        "/etc/hosts, set `host_suffix` in the cluster profile, or export "
        f"{ADDRESS_VARIABLE}=ADDRESS with one that all nodes reach.",
        "rendezvous",
    )


def _form(environ: Mapping[str, str]) -> str:
    form = environ.get(FORM_VARIABLE, "").strip() or _FORMS[0]
    if form not in _FORMS:
        raise HpcddpError(f"{FORM_VARIABLE}={form}: use {' or '.join(_FORMS)}.")
    return form


def _reason(
    name: str,
    names: Sequence[str],
    addresses: Sequence[str],
    environ: Mapping[str, str],
) -> str:
    known = "" if is_address(name) else f" ({', '.join(addresses)})"
    if first_set(environ, ADDRESS_VARIABLE):
        return f"MASTER_ADDR={name}{known}: {ADDRESS_VARIABLE}"
    if len(names) == 1:
        return f"MASTER_ADDR={name}{known}: rank 0 runs there"
    if name == names[0]:
        return f"MASTER_ADDR={name}{known}: {SUFFIX_VARIABLE}, and it resolves"
    return f"MASTER_ADDR={name}{known}: {names[0]} does not resolve ({SUFFIX_VARIABLE})"
