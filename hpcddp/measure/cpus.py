"""Which CPUs each process of a comparison may use, and whether they suffice. Binds nothing."""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

from hpcddp.measure.cells import Cell

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_NEAR = "/sys/bus/pci/devices/{}/local_cpulist"


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
        cores.setdefault(min(cpu, *siblings(cpu)), []).append(cpu)
    return [*cores.values()]


def cores_used(
    cpus: Sequence[int], threads: int, siblings: Callable[[int], Sequence[int]] = siblings_of
) -> tuple[list[int], Fraction]:
    """The cores of these CPUs, each by its first CPU, and how many of them so many threads take: a
    part of one where it has CPUs for more threads.
    """
    cores = sorted({min(cpu, *siblings(cpu)) for cpu in cpus})
    return cores, min(Fraction(len(cores)), Fraction(threads * len(cores), len(cpus)))


def cpus_near(pci_address: str) -> frozenset[int] | None:
    """The CPUs of the socket, or the part of one, that a device hangs on; None where Linux does
    not say it.
    """
    try:
        text = Path(_NEAR.format(pci_address)).read_text(encoding="ascii")
        return frozenset(_expanded(text))
    except (OSError, ValueError):
        return None


def shares(
    cores: Sequence[Sequence[int]], most: int, near: Sequence[frozenset[int] | None] = ()
) -> list[list[int]]:
    """The cores of the node in `most` equal shares, one per device; what is left over stays idle.

    `near` holds for each device the CPUs on its side of the node, where that is known: its share is
    of these, as far as they go round. With fewer cores than devices a share is one core, and
    several devices have the same one.
    """
    size = max(1, len(cores) // most)
    if len(cores) < most:
        return [[*cores[number % len(cores)]] for number in range(most)]
    sides = [*near[:most], *[None] * (most - len(near))]
    left = [*cores]
    own = [_taken(left, side, _fair(cores, side, sides, size)) for side in sides]
    for share in own:
        share += _taken(left, None, size - len(share))
    return [[cpu for core in share for cpu in core] for share in own]


def _fair(
    cores: Sequence[Sequence[int]],
    side: frozenset[int] | None,
    sides: Sequence[frozenset[int] | None],
    size: int,
) -> int:
    """How many cores of its side each device there can have."""
    if side is None:
        return 0
    return min(size, sum(side.issuperset(core) for core in cores) // sides.count(side))


def _taken(
    left: list[Sequence[int]], side: frozenset[int] | None, count: int
) -> list[Sequence[int]]:
    """So many cores of that side, or any, taken out of those that are left."""
    taken = [core for core in left if side is None or side.issuperset(core)][:count]
    left[:] = [core for core in left if core not in taken]
    return taken


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


def are_too_few(places: Sequence[tuple[str, Sequence[int], Fraction]]) -> bool:
    """True where processes take more cores than they have among them. Of each its host, its cores,
    and how many of them it takes.
    """
    for host in {host for host, _, _ in places}:
        there = [(frozenset(cores), used) for name, cores, used in places if name == host]
        own = {cores for cores, _ in there}
        for among in {*own, frozenset().union(*own)}:
            if sum(used for cores, used in there if cores <= among) > len(among):
                return True
    return False
