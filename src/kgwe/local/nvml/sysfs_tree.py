"""The PCIe tree of a simulated machine, as Linux shows it below /sys.

A switch of the model becomes an upstream port below a root port or another switch, and a downstream port for each
device. Bridges have invented addresses in PCI domains that no model uses.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Final

from kgwe.local.nvml import blueprint

if TYPE_CHECKING:
    from pathlib import Path

    from kgwe.model.gpu.topology import PciePath
    from kgwe.model.simfleet.inventory import FleetNode

_NVIDIA, _MELLANOX = "0x10de", "0x15b3"
_DISPLAY, _NETWORK, _BRIDGE = "0x030200", "0x020000", "0x068000"
_LANES: Final = "4X"


def write(root: Path, node: FleetNode) -> None:
    """Write the tree below `root`, which replaces /sys."""
    tree = _Tree(root)
    wires = node.machine.wiring
    for slot in wires.slots:
        tree.add(format_address(slot.bus), slot.pcie, numa=slot.numa, cpus=slot.cpus, vendor=_NVIDIA, kind=_DISPLAY)
    for bus in blueprint.list_nvswitches(node):
        tree.add(format_address(bus), ("nvswitches",), numa=None, cpus="", vendor=_NVIDIA, kind=_BRIDGE)
    for number, nic in enumerate(wires.nics):
        device = tree.add(f"2000:{number:02x}:00.0", nic.pcie, numa=nic.numa, cpus="", vendor=_MELLANOX, kind=_NETWORK)
        tree.add_nic(device, nic.name, nic.gbit_per_s)


def format_address(bus: str) -> str:
    """Return the sysfs form of `00000000:1B:00.0`: `0000:1b:00.0`."""
    domain, _, rest = bus.partition(":")
    return f"{int(domain, 16):04x}:{rest.lower()}"


class _Tree:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._bridges = itertools.count()
        self._hosts: dict[str, Path] = {}
        self._switches: dict[PciePath, Path] = {}
        (root / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
        (root / "class/infiniband").mkdir(parents=True, exist_ok=True)

    def add(self, name: str, path: PciePath, *, numa: int | None, cpus: str, vendor: str, kind: str) -> Path:
        """Add a device below its host bridge and switches."""
        folder = self._port_directory(path) / name
        folder.mkdir(parents=True)
        facts = {"numa_node": -1 if numa is None else numa, "local_cpulist": cpus, "vendor": vendor, "class": kind}
        for fact, value in facts.items():
            (folder / fact).write_text(f"{value}\n")
        self._link("bus/pci/devices", name, folder)
        return folder

    def add_nic(self, device: Path, name: str, gbit_per_s: int) -> None:
        folder = device / "infiniband" / name
        port = folder / "ports" / "1"
        port.mkdir(parents=True)
        (port / "rate").write_text(f"{gbit_per_s} Gb/sec ({_LANES})\n")
        (folder / "device").symlink_to("../..")
        self._link("class/infiniband", name, folder)

    def _link(self, where: str, name: str, folder: Path) -> None:
        # The link is relative, as in sysfs: the tree can be moved or mounted elsewhere.
        (self._root / where / name).symlink_to(os.path.relpath(folder, self._root / where))

    def _port_directory(self, path: PciePath) -> Path:
        """Return the directory of the port for a new device."""
        if not path:
            return self._host("none") / self._bridge()
        if len(path) == 1:
            return self._host(path[0]) / self._bridge()
        return self._switch(path) / self._bridge()

    def _switch(self, path: PciePath) -> Path:
        """Return the upstream port of a switch."""
        if path not in self._switches:
            self._switches[path] = self._port_directory(path[:-1]) / self._bridge()
        return self._switches[path]

    def _host(self, name: str) -> Path:
        return self._hosts.setdefault(name, self._root / "devices" / f"pci1000:{len(self._hosts):02x}")

    def _bridge(self) -> str:
        number = next(self._bridges)
        return f"1000:{number >> 5:02x}:{number & 31:02x}.0"
