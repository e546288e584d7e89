"""Which CPUs each process of a comparison may use. Pure arithmetic; binds nothing itself."""

from collections.abc import Sequence

from hpcddp.measure.cells import Cell


def shares(cpus: Sequence[int], most: int) -> list[list[int]]:
    """The CPUs of the node in `most` equal shares, one per device; what is left over stays idle.

    With fewer CPUs than devices a share is one CPU, and several devices have the same one.
    """
    size = max(1, len(cpus) // most)
    ordered = sorted(cpus)
    return [
        [ordered[index % len(ordered)] for index in range(n * size, (n + 1) * size)]
        for n in range(most)
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
