"""Reads the hardware: all GPUs of the machine, their links and MIG layouts."""

from __future__ import annotations

import ctypes
import dataclasses
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kgwe.hardware.linux import sysfs
from kgwe.hardware.nvml import values
from kgwe.hardware.nvml.library import CardLost
from kgwe.model.gpu.catalog import Architecture
from kgwe.model.gpu.driver_data import Device, Fabric, Link, Machine, Remote
from kgwe.model.gpu.topology import Relation, Slot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kgwe.hardware.nvml.library import Library
    from kgwe.hardware.nvml.mig import MigControl

_ARCHITECTURES: Final = {
    5: Architecture.VOLTA,
    6: Architecture.TURING,
    7: Architecture.AMPERE,
    8: Architecture.ADA,
    9: Architecture.HOPPER,
    10: Architecture.BLACKWELL,
}
_RELATIONS: Final = {
    10: Relation.PIX,
    20: Relation.PXB,
    30: Relation.PHB,
    40: Relation.NODE,
    50: Relation.SYS,
}
_REMOTES: Final = {0: Remote.GPU, 1: Remote.OTHER, 2: Remote.SWITCH}
# By PCI class: display and 3D controllers, and the bridge class of NVSwitches.
_CLASSES: Final = {0x0300: Remote.GPU, 0x0302: Remote.GPU, 0x0680: Remote.SWITCH}

_CPU_WORDS: Final = 64
_NODE_WORDS: Final = 16
_SCOPE_NODE: Final = 0
_CAN_READ: Final = 0
_PEERS_OK: Final = 0
_FABRIC_COMPLETED: Final = 3
_LINK_SPEED_OF_ALL: Final = 90
_LINK_SPEED: Final = 164


@dataclass(slots=True)
class Memory:
    """Earlier values for data that cannot be read any more: a lost GPU, the peer of a link that is down."""

    devices: dict[int, Device] = field(default_factory=dict)
    """By index."""
    remotes: dict[tuple[str, int], tuple[Remote, str]] = field(default_factory=dict)
    """(GPU, link) -> the device at its other end, and its bus id."""


class MachineReader:
    """Reads the machine through one library, and through sysfs for the rest."""

    def __init__(self, library: Library, mig: MigControl, sys: Path, memory: Memory) -> None:
        self._library = library
        self._mig = mig
        self._sys = sys
        self._memory = memory

    def read(self) -> Machine:
        count = self._library.call("nvmlDeviceGetCount")
        handles = {index: handle for index in range(count) if (handle := self._handle(index)) is not None}
        devices = tuple(self._device_or_lost(index, handles.get(index)) for index in range(count))
        there = {index: handle for index, handle in handles.items() if not devices[index].is_lost}
        return Machine(
            driver_version=self._library.call_if_supported("nvmlSystemGetDriverVersion") or "",
            cuda_version=self._cuda_version(),
            devices=devices,
            nics=sysfs.list_nics(self._sys),
            seen=_read_pairs(count, there, self._path_seen, own=Relation.SELF, unknown=Relation.UNKNOWN),
            peer_access=_read_pairs(count, there, self._can_read, own=True, unknown=None),
        )

    def _handle(self, index: int) -> Any:
        try:
            return self._library.call("nvmlDeviceGetHandleByIndex", index)
        except CardLost:
            return None

    def _cuda_version(self) -> str:
        number = self._library.first_supported(("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"))
        return f"{number // 1000}.{number % 1000 // 10}" if number else ""

    # --- one card -------------------------------------------------------------------------------------------

    def _device_or_lost(self, index: int, handle: Any) -> Device:
        if handle is not None:
            try:
                found = self._memory.devices[index] = self._device(index, handle)
            except CardLost:
                pass
            else:
                return found
        known = self._memory.devices.get(index) or Device("", index, "", None, Slot(""))
        return dataclasses.replace(known, is_lost=True)

    def _device(self, index: int, handle: Any) -> Device:
        ask = self._library.call_if_supported
        card = self._library.call("nvmlDeviceGetUUID", handle)
        architecture = _ARCHITECTURES.get(ask("nvmlDeviceGetArchitecture", handle))
        return Device(
            uuid=card,
            index=index,
            product=ask("nvmlDeviceGetName", handle) or "",
            memory_mib=values.memory_info(self._library, handle)[0],
            slot=self._slot(handle),
            minor=ask("nvmlDeviceGetMinorNumber", handle),
            architecture=architecture,
            compute_capability=ask("nvmlDeviceGetCudaComputeCapability", handle),
            links=tuple(self._links(card, handle, architecture)),
            mig=self._mig.state(handle),
            fabric=self._fabric(handle),
        )

    def _slot(self, handle: Any) -> Slot:
        pci = self._library.call_if_supported("nvmlDeviceGetPciInfo", handle)
        bus = values.bus_id(pci) if pci is not None else ""
        cpus = self._library.call_if_supported("nvmlDeviceGetCpuAffinity", handle, _CPU_WORDS)
        nodes = self._library.call_if_supported("nvmlDeviceGetMemoryAffinity", handle, _NODE_WORDS, _SCOPE_NODE)
        near = values.list_bits(nodes) if nodes is not None else []
        return Slot(
            bus=bus,
            numa=near[0] if len(near) == 1 else sysfs.read_numa_node(self._sys, bus),
            cpus=values.format_ranges(values.list_bits(cpus)) if cpus is not None else sysfs.read_cpus(self._sys, bus),
            pcie=sysfs.device_path(self._sys, bus),
        )

    def _fabric(self, handle: Any) -> Fabric | None:
        info = self._library.nvml.c_nvmlGpuFabricInfoV_t()
        if self._library.call_if_supported("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info)) is None:
            info = self._library.nvml.c_nvmlGpuFabricInfo_t()
            if self._library.call_if_supported("nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(info)) is None:
                return None
        cluster = bytes(info.clusterUuid)
        # Machines with their own NVSwitches report a fabric too, without a name.
        if info.state != _FABRIC_COMPLETED or not any(cluster):
            return None
        return Fabric(str(uuid.UUID(bytes=cluster)), info.cliqueId)

    # --- its links ------------------------------------------------------------------------------------------

    def _links(self, card: str, handle: Any, architecture: Architecture | None) -> Iterator[Link]:
        count = values.link_count(self._library, handle)
        wanted = [(_LINK_SPEED, link) for link in range(count)]
        *speeds, common = values.read_fields(self._library, handle, [*wanted, (_LINK_SPEED_OF_ALL, 0)])
        for link, speed in enumerate(speeds):
            active = self._library.call_if_supported("nvmlDeviceGetNvLinkState", handle, link)
            if active is None:
                continue  # not connected on this board
            remote, bus = self._read_peer(card, handle, link)
            number = self._library.call_if_supported("nvmlDeviceGetNvLinkVersion", handle, link)
            generation = values.nvlink_generation(number, architecture)
            yield Link(
                index=link,
                is_up=bool(active),
                version=generation,
                remote=remote,
                remote_bus=bus,
                gb_per_s=values.link_gb_per_s(speed or common, generation),
            )

    def _read_peer(self, card: str, handle: Any, link: int) -> tuple[Remote, str]:
        kind = self._library.call_if_supported("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        pci = self._library.call_if_supported("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        if kind is None and pci is None:  # unknown, as for a link that is down
            return self._memory.remotes.get((card, link), (Remote.UNKNOWN, ""))
        bus = values.bus_id(pci) if pci is not None else ""
        if kind is None:  # older drivers return the device, but not its kind
            remote = _CLASSES.get(sysfs.read_class(self._sys, bus) or 0, Remote.UNKNOWN)
        else:
            remote = _REMOTES.get(kind, Remote.UNKNOWN)
        self._memory.remotes[card, link] = remote, bus
        return remote, bus

    # --- pairs of cards -------------------------------------------------------------------------------------

    def _path_seen(self, one: Any, other: Any) -> Relation:
        level = self._library.call_if_supported("nvmlDeviceGetTopologyCommonAncestor", one, other)
        return _RELATIONS.get(level, Relation.UNKNOWN)

    def _can_read(self, one: Any, other: Any) -> bool | None:
        status = self._library.call_if_supported("nvmlDeviceGetP2PStatus", one, other, _CAN_READ)
        return None if status is None else status == _PEERS_OK


def _read_pairs(count: int, handles: dict[int, Any], ask: Callable[[Any, Any], Any], *, own: Any, unknown: Any) -> Any:
    """Return a square table; both directions are equal, so each pair is read once."""
    table = [[own if a == b else unknown for b in range(count)] for a in range(count)]
    for a, one in handles.items():
        for b, other in handles.items():
            if a < b:
                try:
                    table[a][b] = table[b][a] = ask(one, other)
                except CardLost:
                    continue
    return tuple(map(tuple, table))
