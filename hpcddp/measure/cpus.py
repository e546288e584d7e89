"""Which CPUs each process of a comparison may use, and whether they suffice. Binds nothing."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hpcddp.measure.cells import Cell

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def siblings_of(cpu: int) -> list[int]:
    """The CPUs that are threads of the same core, as Linux knows them; that one alone elsewhere."""
    try:
        return [*_expanded(Path(_SIBLINGS.format(cpu)).read_text(encoding="ascii"))]
    except (OSError, ValueError):
        return [cpu]


def _expanded(text: str) -> Iterator[int]:
    """`0,4-6` as 0, 4, 5, 6."""
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def cores_of(
    cpus: Sequence[int], siblings: Callable[[int], Sequence[int]] = siblings_of
) -> list[list[int]]:
    """These CPUs, core by core: two threads of a core are not two of anything."""
    cores: dict[int, list[int]] = {}
    for cpu in sorted(cpus):
        first = min({cpu, *siblings(cpu)} & set(cpus))
        cores.setdefault(first, []).append(cpu)
    return [*cores.values()]


def shares(cores: Sequence[Sequence[int]], most: int) -> list[list[int]]:
    """The cores of the node in `most` equal shares, one per device; what is left over stays idle.

    With fewer cores than devices a share is one core, and several devices have the same one.
    """
    size = max(1, len(cores) // most)
    return [
        [cpu for n in range(number * size, (number + 1) * size) for cpu in cores[n % len(cores)]]
        for number in range(most)
    ]


def cpus_of(cell: Cell, per_device: Sequence[Sequence[int]]) -> list[list[int]]:
    """For each process of a cell the CPUs of its devices: the same budget in every mode."""
    own = [[*share] for share in per_device[: cell.devices]]
    if cell.mode == "ddp":
        return own
    return [sorted({cpu for share in own for cpu in share})]


def are_shared(per_device: Sequence[Sequence[int]]) -> bool:
    """True where two devices have to use the same CPU: no time there says how a mode scales."""
    all_of_them = [cpu for share in per_device for cpu in share]
    return len(set(all_of_them)) < len(all_of_them)


def are_too_few(places: Sequence[tuple[str, Sequence[int], int]]) -> bool:
    """The same of processes that nobody bound: each its host, its CPUs, and how many it uses."""
    hosts = {host for host, _, _ in places}
    own = {host: [place for place in places if place[0] == host] for host in hosts}
    return any(
        sum(used for _, _, used in there) > len({cpu for _, cpus, _ in there for cpu in cpus})
        for there in own.values()
    )
