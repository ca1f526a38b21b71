"""The positions of PCI devices, from /sys.

The directory of a device is in the directory of its bridge:

    /sys/devices/pci0000:17 / 0000:17:01.0 / 0000:18:00.0 / 0000:19:00.0 / 0000:1a:00.0
           host bridge        root port      upstream port  downstream port  the device
                                             └─────── a switch ──────┘

So a path of `wiring.PciePath` is the host bridge and every second bridge after the root port. Missing data is unknown;
no function here raises.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kgwe.model.gpu.topology import Nic

if TYPE_CHECKING:
    from pathlib import Path

    from kgwe.model.gpu.topology import PciePath

_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_HOST: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_RATE: Final = re.compile(r"(\d+)")


def device_path(sysfs: Path, bus: str) -> PciePath:
    """Return the position of a device in the PCIe tree; `bus` in the form of NVML or sysfs."""
    return _read_path(sysfs / "bus/pci/devices" / _format_address(bus))


def read_numa_node(sysfs: Path, bus: str) -> int | None:
    """Return the NUMA node of a device."""
    return _read_numa(sysfs / "bus/pci/devices" / _format_address(bus))


def read_cpus(sysfs: Path, bus: str) -> str:
    """Return the CPUs near a device, `0-55,112-167`."""
    return _read(sysfs / "bus/pci/devices" / _format_address(bus) / "local_cpulist")


def read_class(sysfs: Path, bus: str) -> int | None:
    """Return class and subclass of a device, 0x0302 for a 3D controller."""
    try:
        return int(_read(sysfs / "bus/pci/devices" / _format_address(bus) / "class"), 16) >> 8
    except ValueError:
        return None


def list_nics(sysfs: Path) -> tuple[Nic, ...]:
    """Return the RDMA network adapters in the order of their names, without virtual ones."""
    try:
        found = sorted((sysfs / "class/infiniband").iterdir(), key=lambda entry: _natural_key(entry.name))
    except OSError:
        return ()
    return tuple(
        Nic(entry.name, _read_rate(entry), _read_numa(entry / "device"), _read_path(entry / "device"))
        for entry in found
        if not (entry / "device/physfn").exists()
    )


def _format_address(bus: str) -> str:
    """Return `0000:1b:00.0` for `00000000:1B:00.0`."""
    domain, colon, rest = bus.lower().partition(":")
    try:
        return f"{int(domain, 16):04x}{colon}{rest}"
    except ValueError:
        return bus


def _read_path(device: Path) -> PciePath:
    try:
        parts = device.resolve(strict=True).parts
    except OSError:
        return ()
    hosts = [i for i, part in enumerate(parts) if _HOST.fullmatch(part)]
    if not hosts:
        return ()
    below = [part for part in parts[hosts[-1] + 1 :] if _ADDRESS.fullmatch(part)]
    bridges = below[:-1]
    return (parts[hosts[-1]], *bridges[1::2])


def _read_numa(device: Path) -> int | None:
    text = _read(device / "numa_node")
    # -1: unknown to the firmware.
    return int(text) if text.isascii() and text.isdigit() else None


def _read_rate(nic: Path) -> int:
    """Return the Gbit/s of all ports; `rate` reads `400 Gb/sec (4X NDR)`."""
    try:
        ports = sorted((nic / "ports").iterdir())
    except OSError:
        return 0
    return sum(int(match[1]) for port in ports if (match := _RATE.match(_read(port / "rate"))))


def _natural_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts mlx5_9 before mlx5_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
