"""How many bytes each network device of a host has moved, from sysfs. Knows no check."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_WORD_BYTES = 4  # InfiniBand counts its data in words of 32 bits
_SYS = Path("/sys")


@dataclass(frozen=True, slots=True)
class Counters:
    """Bytes sent since the host started, by interface and by port of an RDMA adapter."""

    interfaces: Mapping[str, int] = field(default_factory=dict)
    adapters: Mapping[str, int] = field(default_factory=dict)

    def since(self, before: "Counters") -> "Counters":
        """What was sent between the two moments; a counter that began anew counts as nothing."""
        return Counters(
            _differences(before.interfaces, self.interfaces),
            _differences(before.adapters, self.adapters),
        )


def read_counters(sys_root: Path = _SYS) -> Counters:
    """The counters now; loopback is left out."""
    interfaces = {
        folder.name: count
        for folder in sorted((sys_root / "class/net").glob("*"))
        if folder.name != "lo" and (count := _number(folder / "statistics/tx_bytes")) is not None
    }
    adapters = {
        f"{port.parents[1].name}:{port.name}": count * _WORD_BYTES
        for port in sorted((sys_root / "class/infiniband").glob("*/ports/*"))
        if (count := _number(port / "counters/port_xmit_data")) is not None
    }
    return Counters(interfaces, adapters)


def _differences(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {name: max(0, count - before.get(name, count)) for name, count in after.items()}


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
