"""Variables that do nothing or do harm: misspelt, replaced, or left on. Changes none of them."""

import difflib
from collections.abc import Iterator, Mapping

from hpcddp.cluster.interfaces import is_never_used_name
from hpcddp.cluster.known_variables import HARMFUL, KNOWN, OPEN_PREFIXES, REPLACED
from hpcddp.cluster.variables import short

# NCCL reads five bits; users copy 22, and anything above 31 is refused or cut.
_LARGEST_IB_TIMEOUT = 31
# How alike two names must be (difflib's ratio): where all are known, and where one that is like
# another may well be real, as FI_CXI_DISABLE_HMEM_DEV_REGISTER is like ..._HOST_REGISTER (0.83).
_NEAR, _SLIP = 0.8, 0.9


def variable_warnings(
    environ: Mapping[str, str], accepted: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """A sentence for every variable that NCCL, Gloo, torch ... will not read, or that does harm.

    `accepted` are values that the cluster's profile itself sets: there is a reason for what they
    do, but none for a name that nobody reads.
    """
    accepted = accepted or {}
    both = {**accepted, **environ}
    return tuple(
        f"{name}={short(both[name])}: {problem}"
        for name in sorted(both)
        for problem in (
            *_unread(name),
            *(_harm(name, both[name]) if accepted.get(name) != both[name] else ()),
        )
    )


def _unread(name: str) -> Iterator[str]:
    if name in REPLACED:
        yield f"{REPLACED[name]}."
    elif (misspelt := _misspelt(name)) is not None:
        yield misspelt


def _harm(name: str, value: str) -> Iterator[str]:
    for harmful, values, problem in HARMFUL:
        if name == harmful and (values is None or value.upper() in values):
            yield f"{problem}."
    if name == "GLOO_SOCKET_IFNAME" and value.startswith(("^", "=")):
        yield "Gloo takes only names of interfaces, such as hsn0, no ^ or =."
    if name == "NCCL_SOCKET_IFNAME":
        yield from _odd_interfaces(value)
    if name == "NCCL_IB_TIMEOUT" and value.isdigit() and int(value) > _LARGEST_IB_TIMEOUT:
        yield f"the field has five bits; the largest value is {_LARGEST_IB_TIMEOUT}."


def _odd_interfaces(value: str) -> Iterator[str]:
    """NCCL leaves out loopback and Docker's bridge only as long as nobody names any interface."""
    listed = value.removeprefix("^").removeprefix("=").split(",")
    if value.startswith("^"):
        if not any(each and "lo".startswith(each) for each in listed):
            yield f"this lets loopback in again; write {value},lo."
    elif odd := [each for each in listed if is_never_used_name(each)]:
        yield f"{' and '.join(odd)} lead{'s' * (len(odd) == 1)} to no other node; unset it."


def _misspelt(name: str) -> str | None:
    """What is wrong with a name of a known prefix; None where nothing is, or nobody knows."""
    prefix = max((p for p in KNOWN if name.startswith(p)), key=len, default=None)
    if prefix is None or name in KNOWN[prefix]:
        return None
    if prefix == "RCCL_" and (of_nccl := f"N{name[1:]}") in KNOWN["NCCL_"]:
        return f"nothing is known to read it; RCCL too reads {of_nccl}."
    is_open = prefix in OPEN_PREFIXES
    near = difflib.get_close_matches(name, KNOWN[prefix], n=1, cutoff=_SLIP if is_open else _NEAR)
    if near:
        return f"nothing is known to read it; did you mean {near[0]}?"
    return None if is_open else "nothing is known to read it; unset it."
