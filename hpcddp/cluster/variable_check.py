"""Variables that do nothing or do harm: misspelt, replaced, or left on. Changes none of them."""

import difflib
from collections.abc import Iterator, Mapping

from hpcddp.cluster.known_variables import HARMFUL, KNOWN, OPEN_PREFIXES, REPLACED
from hpcddp.cluster.variables import short

# NCCL reads five bits; users copy 22, and anything above 31 is refused or cut.
_LARGEST_IB_TIMEOUT = 31


def variable_warnings(
    environ: Mapping[str, str], accepted: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """A sentence for every variable that NCCL, Gloo, torch ... will not read, or that does harm.

    `accepted` are values that the cluster's profile itself sets, with a reason: they pass.
    """
    accepted = accepted or {}
    return tuple(
        f"{name}={short(environ[name])}: {problem}"
        for name in sorted(environ)
        if accepted.get(name) != environ[name]
        for problem in _problems(name, environ[name])
    )


def _problems(name: str, value: str) -> Iterator[str]:
    if name in REPLACED:
        yield f"{REPLACED[name]}."
    elif (misspelt := _misspelt(name)) is not None:
        yield misspelt
    for harmful, values, problem in HARMFUL:
        if name == harmful and (values is None or value.upper() in values):
            yield f"{problem}."
    if name == "GLOO_SOCKET_IFNAME" and value.startswith(("^", "=")):
        yield "Gloo takes only names of interfaces, such as hsn0, no ^ or =."
    if name == "NCCL_IB_TIMEOUT" and value.isdigit() and int(value) > _LARGEST_IB_TIMEOUT:
        yield f"the field has five bits; the largest value is {_LARGEST_IB_TIMEOUT}."


def _misspelt(name: str) -> str | None:
    """What is wrong with a name of a known prefix; None where nothing is, or nobody knows."""
    prefix = max((p for p in KNOWN if name.startswith(p)), key=len, default=None)
    if prefix is None or name in KNOWN[prefix]:
        return None
    near = difflib.get_close_matches(name, KNOWN[prefix], n=1, cutoff=0.8)
    if near:
        return f"nothing is known to read it; did you mean {near[0]}?"
    return None if prefix in OPEN_PREFIXES else "nothing is known to read it; unset it."
