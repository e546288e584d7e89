"""How many bytes each network device of a host has moved, from sysfs. Knows no check."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcddp.cluster.interfaces import interface_kind

_WORD_BYTES = 4  # InfiniBand counts its data in words of 32 bits
_SYS = Path("/sys")


@dataclass(frozen=True, slots=True)
class Counters:
    """Bytes sent since the host started, by interface and by port of an RDMA adapter.

    What an interface over InfiniBand (IPoIB) has sent, the adapter below it has counted as well.
    Cards of Slingshot are only named: of what they send themselves they have no such counter, and
    their interfaces (hsn0) count what goes over sockets.
    """

    interfaces: Mapping[str, int] = field(default_factory=dict)
    over_infiniband: Mapping[str, int] = field(default_factory=dict)
    adapters: Mapping[str, int] = field(default_factory=dict)
    slingshot: tuple[str, ...] = ()

    def since(self, before: "Counters") -> "Counters":
        """What was sent between the two moments; a counter that began anew counts as nothing."""
        return Counters(
            _differences(before.interfaces, self.interfaces),
            _differences(before.over_infiniband, self.over_infiniband),
            _differences(before.adapters, self.adapters),
            self.slingshot,
        )


def read_counters(sys_root: Path = _SYS) -> Counters:
    """The counters now; loopback is left out."""
    interfaces: dict[str, int] = {}
    over_infiniband: dict[str, int] = {}
    for folder in sorted((sys_root / "class/net").glob("*")):
        count = _number(folder / "statistics/tx_bytes")
        if folder.name != "lo" and count is not None:
            is_ipoib = interface_kind(folder) == "infiniband"
            (over_infiniband if is_ipoib else interfaces)[folder.name] = count
    adapters = {
        f"{port.parents[1].name}:{port.name}": count
        for port in sorted((sys_root / "class/infiniband").glob("*/ports/*"))
        if (count := _sent_by(port)) is not None
    }
    cards = tuple(sorted(folder.name for folder in (sys_root / "class/cxi").glob("cxi*")))
    return Counters(interfaces, over_infiniband, adapters, cards)


def _sent_by(port: Path) -> int | None:
    """Bytes; Amazon's EFA has only a counter of its own."""
    words = _number(port / "counters/port_xmit_data")
    return _number(port / "hw_counters/tx_bytes") if words is None else words * _WORD_BYTES


def _differences(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {name: max(0, count - before.get(name, count)) for name, count in after.items()}


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
