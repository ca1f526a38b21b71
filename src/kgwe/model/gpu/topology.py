"""How the GPUs of one machine are wired to each other.

Nodes built alike share one immutable `Wiring`. Two GPUs are related by the best path between them, in the
words of `nvidia-smi topo -m`, best first:

    NVn   n NVLinks, direct or through an NVSwitch that joins every GPU to every other
    PIX   one PCIe switch above both
    PXB   several PCIe switches, but no host bridge
    PHB   the host bridge of the CPU
    NODE  host bridges of one NUMA node
    SYS   the link between sockets
    ?     not known: never taken for good news
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property
from typing import Final

#: A place in the PCIe tree: the host bridge, then the switches below it. Empty: not known.
PciePath = tuple[str, ...]

# No machine has more GPUs and NICs together.
MAX_DEVICES: Final = 576


class Relation(enum.StrEnum):
    """The best path between two devices, NVLink aside."""

    SELF = "X"
    NVLINK = "NV"
    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"
    UNKNOWN = "?"


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one GPU sits."""

    bus: str
    """PCI bus id in the driver's long form, `00000000:1B:00.0`."""
    numa: int | None = None
    """None: not known, which is not the same as node 0."""
    cpus: str = ""
    """CPUs near the GPU, `0-55,112-167`."""
    pcie: PciePath = ()


@dataclass(frozen=True, slots=True)
class Nic:
    """A NIC."""

    name: str
    gbit_per_s: int
    """Line rate; 0: not known."""
    numa: int | None = None
    pcie: PciePath = ()
    rail: int | None = None
    """Which of the parallel networks it is on; None: there are no rails."""


@dataclass(frozen=True)
class Wiring:
    """The GPUs of a machine and everything between them."""

    slots: tuple[Slot, ...]
    nvlink_version: int = 0
    switch_links: int = 0
    """Links from every GPU into the NVSwitch fabric; 0: no NVSwitch."""
    mesh: tuple[tuple[int, int, int], ...] = ()
    """Direct NVLinks: (GPU, GPU, links), each pair once."""
    nics: tuple[Nic, ...] = ()
    links_down: tuple[int, ...] = ()
    """Per GPU, links into the NVSwitch fabric that do not work; empty: all do."""
    link_gb_per_s: float = 0.0
    """One NVLink in one direction, where the source says it; 0: what is usual for the generation."""
    pcie_gb_per_s: float = 0.0
    """A GPU's PCIe slot in one direction; 0: not known."""
    seen: tuple[tuple[Relation, ...], ...] = ()
    """Per pair of GPUs, the PCIe path a tool reported; where it did, the slots' places are not asked."""
    nics_seen: tuple[tuple[Relation, ...], ...] = ()
    """Per NIC and GPU, likewise."""

    @cached_property
    def _direct(self) -> dict[tuple[int, int], int]:
        return {pair: links for a, b, links in self.mesh for pair in ((a, b), (b, a))}

    def nvlinks(self, a: int, b: int) -> int:
        """How many NVLinks join two GPUs; through a switch a GPU's every link reaches every peer."""
        if a == b:
            return 0
        if self.switch_links:
            return min(self.links_up(a), self.links_up(b))
        return self._direct.get((a, b), 0)

    def links_up(self, gpu: int) -> int:
        """Links of the GPU into the NVSwitch fabric that work."""
        return self.switch_links - (self.links_down[gpu] if self.links_down else 0)

    def peers(self, gpu: int) -> dict[int, int]:
        """GPU -> number of direct NVLinks to it. Empty for GPUs behind an NVSwitch, which reach all others."""
        return {b: links for (a, b), links in sorted(self._direct.items()) if a == gpu}

    def relation(self, a: int, b: int) -> Relation:
        if a == b:
            return Relation.SELF
        return Relation.NVLINK if self.nvlinks(a, b) else self.pcie_relation(a, b)

    def pcie_relation(self, a: int, b: int) -> Relation:
        """The path between two GPUs that a transfer without NVLink takes."""
        if a == b:
            return Relation.SELF
        if self.seen and self.seen[a][b] is not Relation.UNKNOWN:
            return self.seen[a][b]
        one, other = self.slots[a], self.slots[b]
        return path_between(one.pcie, one.numa, other.pcie, other.numa)

    def nic_relation(self, nic: int, gpu: int) -> Relation:
        if self.nics_seen and self.nics_seen[nic][gpu] is not Relation.UNKNOWN:
            return self.nics_seen[nic][gpu]
        one, other = self.nics[nic], self.slots[gpu]
        return path_between(one.pcie, one.numa, other.pcie, other.numa)

    def matrix(self) -> list[list[str]]:
        """The table `nvidia-smi topo -m` prints."""
        gpus = range(len(self.slots))
        return [[self._cell(a, b) for b in gpus] for a in gpus]

    def _cell(self, a: int, b: int) -> str:
        relation = self.relation(a, b)
        return f"{relation}{self.nvlinks(a, b)}" if relation is Relation.NVLINK else str(relation)


# Host bridge and one switch.
_SHARED_SWITCH: Final = 2


def path_between(a: PciePath, a_numa: int | None, b: PciePath, b_numa: int | None) -> Relation:
    """The PCIe path between two devices that are not the same."""
    shared = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        shared += 1
    if shared >= _SHARED_SWITCH:
        return Relation.PIX if a == b else Relation.PXB
    if shared == 1:
        return Relation.PHB
    if a_numa is None or b_numa is None:
        return Relation.UNKNOWN
    if a_numa != b_numa:
        return Relation.SYS
    # One NUMA node, but where in it: without both paths PIX is as possible as NODE.
    return Relation.NODE if a and b else Relation.UNKNOWN
