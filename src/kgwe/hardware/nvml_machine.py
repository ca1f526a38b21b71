"""Reading what is built in: every card of the machine, its links and its cut."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kgwe.hardware import sysfs
from kgwe.hardware.nvml_library import CardLost
from kgwe.model.device import Device, Fabric, Link, Machine, Remote
from kgwe.model.gpu import Architecture
from kgwe.model.wiring import Relation, Slot

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kgwe.hardware.nvml_library import Library
    from kgwe.hardware.nvml_mig import Mig

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
# By the class of the PCI device: display and 3D controllers, and the bridge that an NVSwitch is.
_CLASSES: Final = {0x0300: Remote.GPU, 0x0302: Remote.GPU, 0x0680: Remote.SWITCH}

_MAX_LINKS: Final = 36
_CPU_WORDS: Final = 64
_NODE_WORDS: Final = 16
_SCOPE_NODE: Final = 0
_CAN_READ: Final = 0
_PEERS_OK: Final = 0
_FABRIC_COMPLETED: Final = 3

FIELD_LINK_SPEED_COMMON: Final = 90
FIELD_LINK_COUNT: Final = 91
FIELD_LINK_SPEED: Final = 164


@dataclass(slots=True)
class Memory:
    """What was read before, for what can no longer be read: a lost card, the far end of a link that is down."""

    mig: Mig
    devices: dict[int, Device] = field(default_factory=dict)
    """By index."""
    remotes: dict[tuple[str, int], tuple[Remote, str]] = field(default_factory=dict)
    """(card, link) -> what is at its other end, and its bus id."""


def read(library: Library, sys: Path, memory: Memory) -> Machine:
    count = library.ask("nvmlDeviceGetCount")
    handles = {index: handle for index in range(count) if (handle := _handle(library, index)) is not None}
    devices = tuple(_device_or_lost(library, sys, memory, index, handles.get(index)) for index in range(count))
    handles = {index: handle for index, handle in handles.items() if not devices[index].is_lost}
    return Machine(
        driver_version=library.known("nvmlSystemGetDriverVersion") or "",
        cuda_version=_cuda_version(library),
        devices=devices,
        nics=sysfs.nics(sys),
        seen=_pairs(count, handles, lambda a, b: _seen(library, a, b), own=Relation.SELF, unknown=Relation.UNKNOWN),
        peer_access=_pairs(count, handles, lambda a, b: _can_read(library, a, b), own=True, unknown=None),
    )


def bus_id(pci: Any) -> str:
    """The long form, `00000000:1B:00.0`."""
    raw = pci.busId
    text = raw.decode("ascii", "replace") if isinstance(raw, bytes) else str(raw)
    return text.upper()


def memory_info(library: Library, handle: Any) -> tuple[int | None, int | None]:
    """(total, used) in MiB. The second version tells what is used without what the driver keeps for itself; some
    cards have only it, some drivers only the first."""
    info = library.known("nvmlDeviceGetMemoryInfo", handle, library.nvml.nvmlMemory_v2)
    if info is None:
        info = library.known("nvmlDeviceGetMemoryInfo", handle)
    return (None, None) if info is None else (info.total >> 20, info.used >> 20)


# --- one card -------------------------------------------------------------------------------------------


def _handle(library: Library, index: int) -> Any:
    try:
        return library.ask("nvmlDeviceGetHandleByIndex", index)
    except CardLost:
        return None


def _device_or_lost(library: Library, sys: Path, memory: Memory, index: int, handle: Any) -> Device:
    if handle is not None:
        try:
            memory.devices[index] = _device(library, sys, memory, index, handle)
            return memory.devices[index]
        except CardLost:
            pass
    known = memory.devices.get(index) or Device("", index, "", None, Slot(""))
    return dataclasses.replace(known, is_lost=True)


def _device(library: Library, sys: Path, memory: Memory, index: int, handle: Any) -> Device:
    name = library.ask("nvmlDeviceGetUUID", handle)
    architecture = library.known("nvmlDeviceGetArchitecture", handle)
    capability = library.known("nvmlDeviceGetCudaComputeCapability", handle)
    return Device(
        uuid=name,
        index=index,
        product=library.known("nvmlDeviceGetName", handle) or "",
        memory_mib=memory_info(library, handle)[0],
        slot=_slot(library, sys, handle),
        minor=library.known("nvmlDeviceGetMinorNumber", handle),
        architecture=_ARCHITECTURES.get(architecture),
        compute_capability=capability,
        links=tuple(_links(library, sys, memory, name, handle)),
        mig=memory.mig.state(handle),
        fabric=_fabric(library, handle),
    )


def _slot(library: Library, sys: Path, handle: Any) -> Slot:
    pci = library.known("nvmlDeviceGetPciInfo", handle)
    bus = bus_id(pci) if pci is not None else ""
    cpus = library.known("nvmlDeviceGetCpuAffinity", handle, _CPU_WORDS)
    nodes = library.known("nvmlDeviceGetMemoryAffinity", handle, _NODE_WORDS, _SCOPE_NODE)
    near = _numbers(nodes) if nodes is not None else []
    return Slot(
        bus=bus,
        numa=near[0] if len(near) == 1 else sysfs.numa_of(sys, bus),
        cpus=ranges(_numbers(cpus)) if cpus is not None else sysfs.cpus_of(sys, bus),
        pcie=sysfs.path_of(sys, bus),
    )


def _numbers(words: Iterable[int]) -> list[int]:
    """The bits of a mask of unsigned longs."""
    width = 8 * ctypes.sizeof(ctypes.c_ulonglong)
    return [width * i + bit for i, word in enumerate(words) for bit in range(width) if word >> bit & 1]


def ranges(numbers: list[int]) -> str:
    """`0-2,7` of 0, 1, 2, 7."""
    parts: list[str] = []
    first = None
    for i, number in enumerate(numbers):
        first = number if first is None else first
        if i + 1 == len(numbers) or numbers[i + 1] != number + 1:
            parts.append(str(first) if first == number else f"{first}-{number}")
            first = None
    return ",".join(parts)


def _fabric(library: Library, handle: Any) -> Fabric | None:
    info = library.nvml.c_nvmlGpuFabricInfoV_t()
    reference = ctypes.byref(info)
    if library.known("nvmlDeviceGetGpuFabricInfoV", handle, reference) is None:
        info = library.nvml.c_nvmlGpuFabricInfo_t()
        if library.known("nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(info)) is None:
            return None
    cluster = bytes(info.clusterUuid)
    # Machines with NVSwitches of their own report a fabric too, without a name.
    if info.state != _FABRIC_COMPLETED or not any(cluster):
        return None
    return Fabric(str(uuid.UUID(bytes=cluster)), info.cliqueId)


# --- links ----------------------------------------------------------------------------------------------


def fields(library: Library, handle: Any, wanted: list[tuple[int, int]]) -> list[int | None]:
    """The values of (field, scope), asked in one call."""
    if not wanted:
        return []
    values = library.known("nvmlDeviceGetFieldValues", handle, wanted)
    if values is None:
        return [None] * len(wanted)
    return [_value(library, value) for value in values]


def _value(library: Library, value: Any) -> int | None:
    if value.nvmlReturn:
        return None
    nvml, union = library.nvml, value.value
    readers = {
        nvml.NVML_VALUE_TYPE_DOUBLE: lambda: math.floor(union.dVal),
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: lambda: union.uiVal,
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: lambda: union.ulVal,
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: lambda: union.ullVal,
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: lambda: union.sllVal,
        nvml.NVML_VALUE_TYPE_SIGNED_INT: lambda: union.siVal,
        nvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: lambda: union.usVal,
    }
    reader = readers.get(value.valueType)
    return None if reader is None else int(reader())


def link_count(library: Library, handle: Any) -> int:
    (count,) = fields(library, handle, [(FIELD_LINK_COUNT, 0)])
    if count is not None:
        return min(count, _MAX_LINKS)
    for link in range(_MAX_LINKS):
        if library.known("nvmlDeviceGetNvLinkState", handle, link) is None:
            return link
    return _MAX_LINKS


def _links(library: Library, sys: Path, memory: Memory, card: str, handle: Any) -> Iterable[Link]:
    count = link_count(library, handle)
    speeds = fields(library, handle, [(FIELD_LINK_SPEED, link) for link in range(count)])
    common = fields(library, handle, [(FIELD_LINK_SPEED_COMMON, 0)])[0] if count else None
    for link, speed in enumerate(speeds):
        active = library.known("nvmlDeviceGetNvLinkState", handle, link)
        if active is None:
            continue  # not wired on this board
        remote, bus = memory.remotes[card, link] = _far_end(library, sys, handle, link) or memory.remotes.get(
            (card, link), (Remote.UNKNOWN, "")
        )
        mbps = speed or common
        yield Link(
            index=link,
            is_up=bool(active),
            version=library.known("nvmlDeviceGetNvLinkVersion", handle, link),
            remote=remote,
            remote_bus=bus,
            gb_per_s=mbps / 1000 if mbps else None,
        )


def _far_end(library: Library, sys: Path, handle: Any, link: int) -> tuple[Remote, str] | None:
    """None: nobody says, as when the link is down."""
    kind = library.known("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
    pci = library.known("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
    if kind is None and pci is None:
        return None
    bus = bus_id(pci) if pci is not None else ""
    if kind is None:  # older drivers name the device and not what it is
        return _CLASSES.get(sysfs.class_of(sys, bus) or 0, Remote.UNKNOWN), bus
    return _REMOTES.get(kind, Remote.UNKNOWN), bus


# --- pairs ----------------------------------------------------------------------------------------------


def _pairs(count: int, handles: dict[int, Any], ask: Any, *, own: Any, unknown: Any) -> Any:
    """A square table; both directions are the same, so each pair is asked once."""
    table = [[own if a == b else unknown for b in range(count)] for a in range(count)]
    for a, one in handles.items():
        for b, other in handles.items():
            if a < b:
                try:
                    table[a][b] = table[b][a] = ask(one, other)
                except CardLost:
                    continue
    return tuple(map(tuple, table))


def _seen(library: Library, one: Any, other: Any) -> Relation:
    level = library.known("nvmlDeviceGetTopologyCommonAncestor", one, other)
    return _RELATIONS.get(level, Relation.UNKNOWN)


def _can_read(library: Library, one: Any, other: Any) -> bool | None:
    status = library.known("nvmlDeviceGetP2PStatus", one, other, _CAN_READ)
    return None if status is None else status == _PEERS_OK


def _cuda_version(library: Library) -> str:
    number = library.first_known(("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"))
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""
