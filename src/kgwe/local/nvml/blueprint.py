"""Turns a node of a fleet model into the hardware of a machine: GPUs, links and MIG layouts."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from kgwe.model.gpu.catalog import Architecture
from kgwe.model.gpu.topology import Relation

if TYPE_CHECKING:
    from kgwe.local.nvml import state
    from kgwe.model.gpu import mig
    from kgwe.model.gpu.topology import Wiring
    from kgwe.model.simfleet.inventory import FleetGpu, FleetNode

# The numbers below are NVML's.
_ARCHITECTURES: Final = {
    Architecture.VOLTA: 5,
    Architecture.TURING: 6,
    Architecture.AMPERE: 7,
    Architecture.ADA: 8,
    Architecture.HOPPER: 9,
    Architecture.BLACKWELL: 10,
}
_ANCESTORS: Final = {
    Relation.SELF: 0,
    Relation.PIX: 10,
    Relation.PXB: 20,
    Relation.PHB: 30,
    Relation.NODE: 40,
    Relation.SYS: 50,
    Relation.UNKNOWN: 50,
}
_PEERS_OK, _PEERS_NOT_SUPPORTED = 0, 5
_LINK_TO_GPU, _LINK_TO_SWITCH = 0, 2
# By generation: NVML's number, and MB/s on the wire (25 and 50 GB/s of data).
_LINK_VERSIONS: Final = {2: 2, 3: 4, 4: 6, 5: 7}
_LINK_MBPS: Final = {2: 25_781, 3: 25_781, 4: 26_562, 5: 53_125}
_NO_BUS: Final = "FFFFFFFF:FFFF:FF.0"
_FABRIC_NOT_SUPPORTED, _FABRIC_COMPLETED = 0, 3
_IDLE: Final = 1

_MEDIA: Final = {"+me": 1, "+me.all": 2, "-me": 3}

# (compute slices, suffix) -> the number of the profile; a 1g with double memory has its own.
_PROFILE_NUMBERS: Final = {
    (1, ""): 0,
    (2, ""): 1,
    (3, ""): 2,
    (4, ""): 3,
    (7, ""): 4,
    (1, "+me"): 7,
    (2, "+me"): 8,
    (1, "+gfx"): 10,
    (2, "+gfx"): 11,
    (4, "+gfx"): 12,
    (1, "-me"): 13,
    (2, "-me"): 14,
    (1, "+me.all"): 15,
    (2, "+me.all"): 16,
}
_WIDE_SINGLE: Final = 9

# The id of a profile in a driver, by units of the GPU and number of the profile; others get invented ids.
_PROFILE_IDS: Final = {
    8: {0: 19, 1: 14, 2: 9, 3: 5, 4: 0, 7: 20, 9: 15},
    4: {0: 14, 1: 5, 3: 0, 7: 21, 8: 6},
}
_MADE_UP_ID: Final = 40

_NVSWITCHES: Final = 4


def draw(out: state.State, node: FleetNode) -> None:
    """Write the machine into an empty state; the caller holds the lock and writes the header."""
    machine, geometry = node.machine, node.model.geometry
    out.gpu_count = len(node.gpus)
    out.driver_version = machine.driver.encode()
    major, minor = machine.cuda.split(".")[:2]
    out.cuda_version = int(major) * 1000 + int(minor) * 10
    if geometry is not None:
        out.units, out.compute = geometry.units, geometry.compute
        for profile in geometry.profiles.values():
            _draw_profile(out, geometry, profile)
    for card in node.gpus:
        _draw_card(out.gpus[card.index], node, card)
        _draw_links(out.gpus[card.index], node, card.index)
        for instance in card.instances:
            _draw_instance(out, card, instance.placement, instance.instance_id, instance.uuid)
    _draw_pairs(out, machine.wiring)


def list_nvswitches(node: FleetNode) -> list[str]:
    """Return the bus ids of the NVSwitches in the machine; those in separate trays are not its PCI devices."""
    if node.machine.domain or not node.machine.wiring.switch_links:
        return []
    return [f"00000000:F{i}:00.0" for i in range(_NVSWITCHES)]


def profile_number(geometry: mig.Geometry, profile: mig.Profile) -> int:
    """Return NVML's number of a profile (NVML_GPU_INSTANCE_PROFILE_…)."""
    narrower = (p for p in geometry.profiles.values() if p.is_plain and p.compute == profile.compute)
    if profile.is_plain and any(other.units < profile.units for other in narrower):
        return _WIDE_SINGLE
    return _PROFILE_NUMBERS[profile.compute, _suffix(profile)]


def _suffix(profile: mig.Profile) -> str:
    return profile.name.partition("gb")[2]


def _draw_profile(out: state.State, geometry: mig.Geometry, profile: mig.Profile) -> None:
    number = profile_number(geometry, profile)
    slot = out.profiles[number]
    slot.used = 1
    slot.id = _PROFILE_IDS.get(geometry.units, {}).get(number, _MADE_UP_ID + number)
    slot.compute, slot.units, slot.limit = profile.compute, profile.units, profile.limit
    slot.media = _MEDIA.get(_suffix(profile), 0)
    slot.starts_count = len(profile.starts)
    for i, start in enumerate(profile.starts):
        slot.starts[i] = start
    slot.memory_mib = profile.memory_mib
    slot.name = profile.name.encode()


def _draw_card(gpu: state.Gpu, node: FleetNode, card: FleetGpu) -> None:
    model, slot = node.model, card.slot
    gpu.uuid, gpu.name, gpu.bus = card.uuid.encode(), model.product.encode(), slot.bus.encode()
    gpu.serial = str(uuid.UUID(card.uuid.removeprefix("GPU-")).int % 10**13).zfill(13).encode()
    gpu.minor = card.index
    gpu.architecture = _ARCHITECTURES[model.architecture]
    gpu.major_capability, gpu.minor_capability = model.compute_capability
    gpu.numa = -1 if slot.numa is None else slot.numa
    for cpu in parse_cpus(slot.cpus):
        gpu.cpus[cpu // 64] |= 1 << cpu % 64
    gpu.mig_capable = model.geometry is not None
    gpu.mig_mode = gpu.mig_pending = card.is_cut
    gpu.mode_needs_reset = model.architecture is Architecture.AMPERE
    gpu.memory_total, gpu.memory_reserved = model.memory_mib << 20, model.reserved_mib << 20
    gpu.power_mw, gpu.power_limit_mw = model.idle_w * 1000, model.limit_w * 1000
    gpu.gpu_c, gpu.slowdown_c = 34, 87
    gpu.memory_c = 38 if model.has_memory_temperature else 0
    gpu.sm_mhz, gpu.memory_mhz, gpu.throttle = model.sm_mhz // 6, model.memory_mhz, _IDLE
    gpu.ecc_supported = 1
    retires_pages = model.architecture in {Architecture.VOLTA, Architecture.TURING}
    gpu.pages_supported, gpu.rows_supported = retires_pages, not retires_pages
    _draw_fabric(gpu, node.place.clique)


def _draw_fabric(gpu: state.Gpu, clique: str) -> None:
    cluster, _, number = clique.rpartition(".")
    gpu.fabric_state = _FABRIC_COMPLETED if cluster else _FABRIC_NOT_SUPPORTED
    if cluster:
        gpu.clique = int(number)
        for i, byte in enumerate(uuid.UUID(cluster).bytes):
            gpu.cluster[i] = byte


def _draw_links(gpu: state.Gpu, node: FleetNode, card: int) -> None:
    wires = node.machine.wiring
    switches = list_nvswitches(node) or [_NO_BUS]
    ends = [(_LINK_TO_SWITCH, switches[i % len(switches)]) for i in range(wires.switch_links)]
    for peer, count in wires.peers(card).items():
        ends += [(_LINK_TO_GPU, wires.slots[peer].bus)] * count
    for link, (kind, bus) in zip(gpu.links, ends, strict=False):
        link.present = link.up = 1
        link.version = _LINK_VERSIONS[wires.nvlink_version]
        link.remote_type, link.remote_bus = kind, bus.encode()
        link.speed_mbps = _LINK_MBPS[wires.nvlink_version]


def _draw_instance(out: state.State, card: FleetGpu, placement: mig.Placement, instance_id: int, name: str) -> None:
    gpu = out.gpus[card.index]
    slot = next(slot for slot in gpu.instances if not slot.used)
    out.serial += 2
    slot.id, slot.start, slot.serial = instance_id, placement.start, out.serial - 1
    slot.profile = next(
        i for i, known in enumerate(out.profiles) if known.used and known.name.decode() == placement.profile.name
    )
    compute = slot.compute[0]
    compute.used, compute.slices, compute.serial = 1, placement.profile.compute, out.serial
    compute.uuid = name.encode()
    slot.used = 1


def _draw_pairs(out: state.State, wires: Wiring) -> None:
    for a in range(len(wires.slots)):
        for b in range(len(wires.slots)):
            relation = wires.pcie_relation(a, b)
            out.ancestors[a][b] = _ANCESTORS[relation]
            reaches = a == b or wires.nvlinks(a, b) or relation not in {Relation.SYS, Relation.UNKNOWN}
            out.peers[a][b] = _PEERS_OK if reaches else _PEERS_NOT_SUPPORTED


def parse_cpus(text: str) -> list[int]:
    """Return the numbers of a list such as `0-2,7`."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
