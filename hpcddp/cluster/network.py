"""Over which network a process talks to the others: chosen on its node before they meet.

Pure over a picture of the host (`hpcddp.cluster.interfaces`) and a way to resolve names; writes
no variable and knows no torch.
"""

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hpcddp.cluster.adapters import HCA_VARIABLE, NCCL_HCA, Adapters, choose_adapters, read_adapters
from hpcddp.cluster.interfaces import Host, Interface, read_host
from hpcddp.cluster.names import Resolve, resolve_name
from hpcddp.cluster.rendezvous_address import Master, find_master, is_one_host
from hpcddp.cluster.slurm_step import ADDRESS_VARIABLE
from hpcddp.cluster.variables import first_set
from hpcddp.config.layout import ProcessLayout
from hpcddp.errors import HpcddpError

INTERFACE_VARIABLE = "HPCDDP_INTERFACE"
DEFAULT_RULE = "default-route"
GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
_ALL, _NOT = "all:", "^"
_MUCH_FASTER = 4
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Network:
    """What was settled for one process.

    `master_addr` is where rank 0 is reached from here, `variables` are to be set in the process's
    environment, `reasons` say in one line each what was chosen and why.
    """

    master_addr: str
    variables: Mapping[str, str] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()


def settle_network(
    layout: ProcessLayout,
    environ: Mapping[str, str],
    *,
    uses_gloo: bool = True,
    read: Callable[[Mapping[str, str]], Host] = read_host,
    resolve: Resolve = resolve_name,
    adapters: Callable[[], Adapters] = read_adapters,
) -> Network:
    """Address and interfaces for this process. A process by itself needs none. A program that may
    not use Gloo is not kept from starting by a variable of Gloo's.

    Raises HpcddpError: `rendezvous` where the master's name leads nowhere, `bad_value` where a
    rule or an exported name fits no interface of this host.
    """
    if layout.world_size == 1:
        return Network(layout.master_addr)
    host = read(environ)
    if is_one_host(layout):
        return _within(host, layout, environ, uses_gloo=uses_gloo)
    master = find_master(layout, environ, host, resolve)
    found, why = choose_interfaces(environ.get(INTERFACE_VARIABLE, ""), host, master)
    names = ",".join(interface.name for interface in found)
    wanted = {GLOO: (names, why), NCCL: _for_nccl(found, why, environ, host)}
    if rule := environ.get(HCA_VARIABLE, "").strip():
        wanted[NCCL_HCA] = choose_adapters(rule, adapters(), layout, environ, host.name)
    exported = {name: environ[name] for name in wanted if name in environ}
    lines = [*master.reasons, *_reasons(exported, wanted, layout, host, uses_gloo)]
    if not exported and not environ.get(INTERFACE_VARIABLE):
        lines += _faster(found, host)
    new = {name: value for name, (value, _) in wanted.items() if value and name not in exported}
    return Network(master.addr, new, tuple(lines))


def _for_nccl(
    found: Sequence[Interface], why: str, environ: Mapping[str, str], host: Host
) -> tuple[str, str]:
    """The same interfaces; but where nobody has said any, NCCL's own choice prefers InfiniBand."""
    is_slow = all(interface.kind != "infiniband" for interface in found)
    has_fast = any(interface.kind == "infiniband" for interface in host.usable)
    has_rule = bool(environ.get(INTERFACE_VARIABLE, "").strip())
    if NCCL in host.nccl_conf and not has_rule:
        return "", f"an nccl.conf on {host.name} sets it"
    if is_slow and has_fast and not has_rule:
        return "", "NCCL prefers the InfiniBand interfaces by itself"
    names = ",".join(interface.name for interface in found)
    return (f"={names}" if names else ""), why  # = is exact, where ib1 is also ib10


def _within(
    host: Host, layout: ProcessLayout, environ: Mapping[str, str], *, uses_gloo: bool
) -> Network:
    """One node: no name is looked up, so that it works offline, and NCCL needs no advice. Only here
    loopback is used.
    """
    slurm_named_it = layout.launcher == "slurm" and not first_set(environ, ADDRESS_VARIABLE)
    master_addr = _LOOPBACK if slurm_named_it else layout.master_addr
    if GLOO in environ:
        exported = {GLOO: environ[GLOO]}
        lines = _reasons(exported, {GLOO: ("", "")}, layout, host, uses_gloo)
        return Network(master_addr, {}, tuple(lines))
    # By itself Gloo would ask a name server for this host's own name.
    loopback = host.owner_of(_LOOPBACK)
    if loopback is None:
        return Network(master_addr)
    line = f"{GLOO}={loopback.name}: all processes are on this host"
    return Network(master_addr, {GLOO: loopback.name}, (line,))


def _reasons(
    exported: Mapping[str, str],
    wanted: Mapping[str, tuple[str, str]],
    layout: ProcessLayout,
    host: Host,
    uses_gloo: bool,
) -> list[str]:
    """A line for every variable; what was exported stays, once it is known to mean something."""
    lines = []
    for name, (value, why) in wanted.items():
        if name in exported:
            odd = _check(name, exported[name], layout, host, uses_gloo)
            lines.append(f"{name}={exported[name]}: exported by you or set by the profile{odd}")
        else:
            lines.append(f"{name}={value}: {why}" if value else f"{name} is left alone: {why}")
    return lines


def _check(name: str, value: str, layout: ProcessLayout, host: Host, uses_gloo: bool) -> str:
    """What is odd about an exported value. Raises HpcddpError where it means nothing here."""
    if name == GLOO:
        return _check_gloo(value, host, uses_gloo)
    if name == NCCL and layout.device_index is not None:  # nobody reads it on a CPU
        return _check_nccl(value, host)
    return ""


def choose_interfaces(rule: str, host: Host, master: Master) -> tuple[tuple[Interface, ...], str]:
    """The interfaces that fit the rule, and why; without a rule the one that leads to the others.

    A rule is a list of names, patterns (`ib*`) and `infiniband`, of which the first that fits
    counts; `^` in front means all but these, `all:` takes all that fit. Where nothing of it fits,
    `default-route` in the list means what there is without a rule. Raises HpcddpError where a rule
    fits nothing.
    """
    rule = rule.strip()
    if not rule:
        found, why = master.leads_over(host)
        return ((found,) if found else ()), why
    body, why = rule.removeprefix(_ALL), f"{INTERFACE_VARIABLE}={rule}"
    fitting = fitting_interfaces(rule, host)
    if fitting:
        return (fitting if rule != body else (_first(body, fitting, host, master),)), why
    if not has_fallback(rule):
        raise _nothing_fits(rule, host)
    found, way = master.leads_over(host)
    if found is None:
        raise _nothing_fits(rule, host, way)
    nothing = "" if body == DEFAULT_RULE else ": nothing else of that is up with an address"
    return (found,), f"{why}{nothing}, and {way}"


def has_fallback(rule: str) -> bool:
    """True for a rule that means the way to the others where nothing else of it fits."""
    return DEFAULT_RULE in (item.strip() for item in rule.removeprefix(_ALL).split(","))


def fitting_interfaces(rule: str, host: Host) -> tuple[Interface, ...]:
    """The usable interfaces that fit a rule's names, in the order of its list."""
    body = rule.removeprefix(_ALL)
    items = [item.strip().removeprefix(_NOT) for item in body.split(",") if item.strip()]
    if body.startswith(_NOT):
        return tuple(i for i in host.usable if not any(_fits(i, item) for item in items))
    found = (i for item in items for i in host.usable if _fits(i, item))
    return tuple(dict.fromkeys(found))


def _fits(interface: Interface, item: str) -> bool:
    if item == "infiniband":
        return interface.kind == item
    return fnmatch.fnmatchcase(interface.name, item)


def _first(body: str, fitting: tuple[Interface, ...], host: Host, master: Master) -> Interface:
    """The first; where a rule only says what is not meant, rather the one that leads there."""
    leading = master.leads_over(host)[0] if body.startswith(_NOT) else None
    return leading if leading in fitting and leading else fitting[0]


def faster_interfaces(found: Sequence[Interface], host: Host) -> list[Interface]:
    """The interfaces that are much faster than the chosen ones, fastest first."""
    speed = found[0].speed_mbit_per_s if found else None
    if not speed:
        return []
    others = [i for i in host.usable if (i.speed_mbit_per_s or 0) >= _MUCH_FASTER * speed]
    return sorted(others, key=lambda each: each.speed_mbit_per_s or 0, reverse=True)


def _faster(found: tuple[Interface, ...], host: Host) -> list[str]:
    """A line where a much faster interface lies idle although nobody asked for the slow one."""
    best = next(iter(faster_interfaces(found, host)), None)
    if best is None:
        return []
    return [
        f"{found[0]} is slow beside {best}: `interface` in the cluster profile, or "
        f"{INTERFACE_VARIABLE}={best.name}, would use that"
    ]


def _nothing_fits(rule: str, host: Host, why: str = "") -> HpcddpError:
    begins = any(interface.name.startswith(rule) for interface in host.usable)
    hint = f" (`{rule}*` means every name that begins so)" if begins else ""
    return HpcddpError(
        f"{INTERFACE_VARIABLE}={rule}: no interface of {host.name} fits that is up and has an "
        f"address{hint}{f': {why}' if why else ''}. There: {host.listing()}. If you have exported "
        f"{INTERFACE_VARIABLE}, unset it or export another one before you submit; else change "
        "`interface` in the cluster profile."
    )


def _check_gloo(value: str, host: Host, uses_gloo: bool) -> str:
    """Refuse names that Gloo, if it is used for sure, would not find; what is odd about others."""
    missing = gloo_missing(value, [each.name for each in host.interfaces if each.has_address])
    if missing:
        what = f"no {' and no '.join(missing)} with an address (Gloo takes whole names)"
        if uses_gloo:
            raise _exported_nothing(GLOO, value, what, host)
        return f", although {host.name} has {what}"
    found = [each for each in host.interfaces if each.name in value.split(",")]
    never = [interface.name for interface in found if interface.is_never_used]
    return f", although {', '.join(never)} leads to no other node" if never else ""


def nccl_fits(value: str, names: Sequence[str]) -> bool:
    """True if some interface fits as NCCL reads its list: beginnings of names, whole names after
    one `=` for the whole list, all others after `^`.
    """
    excludes, rest = value.startswith(_NOT), value.removeprefix(_NOT)
    exact, listed = rest.startswith("="), rest.removeprefix("=").split(",")

    def is_listed(name: str) -> bool:
        return any(name == each if exact else name.startswith(each) for each in listed if each)

    return any(is_listed(name) != excludes for name in names)


def gloo_missing(value: str, names: Sequence[str]) -> list[str]:
    """The names of a list that are not there: Gloo knows whole names only, and needs every one."""
    return [name for name in value.split(",") if name and name not in names]


def _check_nccl(value: str, host: Host) -> str:
    """Refuse what fits no interface; what else is meant than one would think."""
    meant = [each for each in host.interfaces if nccl_fits(value, [each.name])]
    if value and not meant:
        raise _exported_nothing(NCCL, value, "no such interface", host)
    never = [each.name for each in meant if each.is_never_used and each.is_up]
    if never:
        also = "also " if any(not each.is_never_used for each in meant) else ""
        return f", although it {also}means {', '.join(never)}, which leads to no other node"
    longer = [each.name for each in meant if each.name not in value.split(",") and each.has_address]
    if longer and host.named(value):
        return f", which also means {', '.join(longer)}; ={value} is that one alone"
    return ""


def _exported_nothing(name: str, value: str, what: str, host: Host) -> HpcddpError:
    return HpcddpError(
        f"{name}={value}, but {host.name} has {what}. There: {host.listing()}. Export "
        f"another {name}, change env.{name} in the cluster profile, or leave it out: then "
        f"{INTERFACE_VARIABLE} decides."
    )
