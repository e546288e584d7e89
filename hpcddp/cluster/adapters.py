"""InfiniBand and RoCE adapters (HCAs) of this host, and which is nearest to a GPU, from sysfs.

Knows no job beyond the variables that say which GPU a process has.
"""

import fnmatch
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcddp.cluster.devices import visible_devices
from hpcddp.cluster.variables import first_set
from hpcddp.config.layout import ProcessLayout
from hpcddp.errors import HpcddpError

HCA_VARIABLE = "HPCDDP_HCA"
NCCL_HCA = "NCCL_IB_HCA"
NEAREST = "nearest"
_GPU_DRIVERS = ("nvidia", "amdgpu")
_STEP_GPUS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


@dataclass(frozen=True, slots=True)
class PciDevice:
    """Where a device sits: the bridges above it, from the root, and its NUMA node (-1: unknown)."""

    path: tuple[str, ...]
    numa_node: int = -1


@dataclass(frozen=True, slots=True)
class AdapterPort:
    """One port. `link_layer` is `infiniband`, or `ethernet` for RoCE."""

    name: str
    port: int
    is_active: bool
    link_layer: str
    place: PciDevice | None = None

    def __str__(self) -> str:
        return f"{self.name}:{self.port} ({self.link_layer}{'' if self.is_active else ', down'})"


@dataclass(frozen=True, slots=True)
class Adapters:
    """All ports, and the GPUs in the order in which the driver numbers them."""

    ports: tuple[AdapterPort, ...] = ()
    gpus: tuple[PciDevice, ...] = ()


def choose_adapters(
    rule: str, found: Adapters, layout: ProcessLayout, environ: Mapping[str, str], host_name: str
) -> tuple[str, str]:
    """The value of NCCL_IB_HCA that the rule means here, and why; "" where sysfs does not tell.

    A rule is `infiniband` or `ethernet` (the link layer), `nearest`, or a list of names and
    patterns, with `^` in front for all but these. All active ports that fit are taken. Raises
    HpcddpError where none does.
    """
    active, why = [port for port in found.ports if port.is_active], f"{HCA_VARIABLE}={rule}"
    if rule == NEAREST:
        gpu = gpu_of(found, layout.device_index, environ)
        fitting = nearest(active, gpu) if gpu else []
        if active and not fitting:
            return "", f"{why}, but sysfs does not tell which adapter is near this process's GPU"
    else:
        fitting = [port for port in active if _fits(port, rule)]
    if fitting:
        return f"={','.join(f'{port.name}:{port.port}' for port in fitting)}", why
    there = ", ".join(map(str, found.ports)) or "no adapter"
    raise HpcddpError(
        f"{why}: no active port of {host_name} fits. There: {there}. Change `hca` in the cluster "
        f"profile, or export {HCA_VARIABLE} before you submit; without it NCCL chooses."
    )


def _fits(port: AdapterPort, rule: str) -> bool:
    items = [item.strip().removeprefix("^") for item in rule.split(",")]
    named = any(item == port.link_layer or fnmatch.fnmatchcase(port.name, item) for item in items)
    return named != rule.startswith("^")


def gpu_of(
    found: Adapters, device_index: int | None, environ: Mapping[str, str]
) -> PciDevice | None:
    """The GPU of this process; None on a CPU and where its number on the node is not known.

    CUDA numbers what it sees from 0. Slurm's list says which GPUs of the node these are, unless
    the visible ones have the node's numbers already.
    """
    if device_index is None:
        return None
    visible, listed = visible_devices(environ), first_set(environ, *_STEP_GPUS)
    granted = environ[listed].split(",") if listed else [str(n) for n in range(len(found.gpus))]
    seen = list(granted if visible is None else visible)
    if not set(seen) <= set(granted):
        seen = [granted[int(n)] for n in seen if n.isdigit() and int(n) < len(granted)]
    chosen = seen[device_index] if device_index < len(seen) else ""
    known = chosen.isdigit() and int(chosen) < len(found.gpus)
    return found.gpus[int(chosen)] if known else None


def nearest(ports: list[AdapterPort], gpu: PciDevice) -> list[AdapterPort]:
    """The ports with the least PCI bridges between them and the GPU; none if all are far away."""
    ranked = [(_closeness(port.place, gpu), port) for port in ports if port.place]
    best = max((closeness for closeness, _ in ranked), default=(0, False))
    return [port for closeness, port in ranked if closeness == best and best > (0, False)]


def _closeness(place: PciDevice, gpu: PciDevice) -> tuple[int, bool]:
    """Bridges in common, then the same NUMA node."""
    pairs = zip(place.path, gpu.path, strict=False)
    common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return common, place.numa_node == gpu.numa_node != -1


def read_adapters(sys_root: Path = Path("/sys")) -> Adapters:
    """What sysfs says; nothing where there are no such devices."""
    folders = sorted((sys_root / "class/infiniband").glob("*"))
    drivers = [sys_root / "bus/pci/drivers" / name for name in _GPU_DRIVERS]
    # By PCI address, as the driver numbers them; `0000:1b:00.0` is a link to the device.
    gpus = sorted(link for driver in drivers for link in driver.glob("*:*:*.*"))
    return Adapters(
        tuple(port for folder in folders for port in _read_ports(folder)),
        tuple(_read_place(link) for link in gpus),
    )


def _read_ports(folder: Path) -> Iterator[AdapterPort]:
    device = folder / "device"
    place = _read_place(device) if device.exists() else None
    for port in sorted((folder / "ports").glob("*")):
        state, link = _text(port / "state"), _text(port / "link_layer").lower()
        yield AdapterPort(folder.name, int(port.name), "ACTIVE" in state, link, place)


def _read_place(link: Path) -> PciDevice:
    """/sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0 without its end, the device itself."""
    bridges = [part for part in link.resolve().parts if ":" in part]
    return PciDevice(tuple(bridges[:-1]), int(_text(link / "numa_node") or -1))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
