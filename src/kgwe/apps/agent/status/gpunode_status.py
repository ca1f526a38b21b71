"""Converts driver data to the status of a GPUNode.

Unknown values are left out. Known values that cannot be read now are kept: a link that is down no longer reports its
peer, so the previous peer is kept (`with_memory`). If the driver does not respond, the GPUs stay with unknown health
(`without_driver`).
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Final

import msgspec

from kgwe.kube.api.kgwe import gpunode
from kgwe.model.gpu import driver_data
from kgwe.model.gpu.catalog import NVLINK_GB_PER_S
from kgwe.model.gpu.topology import Wiring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kgwe.model.gpu.topology import PciePath, Relation

    HealthOf = Callable[[driver_data.Device], gpunode.GPUHealth]

DRIVER_NOT_READY: Final = "DriverNotReady"
# The value for GPUs that report none.
_MEMORY_UNKNOWN: Final = 0


def basic_health(card: driver_data.Device) -> gpunode.GPUHealth:
    """Return the health without a history: a GPU is present or lost."""
    if card.is_lost:
        return gpunode.GPUHealth(
            state=gpunode.HealthState.UNHEALTHY,
            reason="FallenOffTheBus",
            message="GPU lost: the driver no longer responds for this device",
        )
    return gpunode.GPUHealth(state=gpunode.HealthState.HEALTHY)


def build_status(machine: driver_data.Machine, health_of: HealthOf = basic_health) -> gpunode.GPUNodeStatus:
    """Return the status of a GPUNode, without its conditions."""
    index_of = {card.slot.bus: card.index for card in machine.devices if card.slot.bus}
    gpus = tuple(_device(card, index_of, health_of(card)) for card in machine.devices)
    return gpunode.GPUNodeStatus(
        gpus=gpus,
        gpuCount=len(gpus),
        healthyGPUs=sum(each.health.state == gpunode.HealthState.HEALTHY for each in gpus),
        model=gpus[0].model if gpus else "",
        driverVersion=machine.driver_version,
        cudaVersion=machine.cuda_version,
        nics=tuple(
            gpunode.NetworkInterface(nic.name, nic.gbit_per_s, nic.numa, _pcie(nic.pcie), nic.rail)
            for nic in machine.nics
        ),
        fabric=_fabric(machine.devices),
    )


def _device(card: driver_data.Device, index_of: dict[str, int], health: gpunode.GPUHealth) -> gpunode.GPUDevice:
    capability = card.compute_capability
    return gpunode.GPUDevice(
        uuid=card.uuid,
        index=card.index,
        model=card.product,
        memoryMiB=_MEMORY_UNKNOWN if card.memory_mib is None else card.memory_mib,
        health=health,
        architecture=card.architecture or "",
        computeCapability="" if capability is None else "{}.{}".format(*capability),
        numaNode=card.slot.numa,
        cpuAffinity=card.slot.cpus,
        pcie=_pcie(card.slot.pcie, card.slot.bus),
        nvlink=_nvlink(card, index_of),
        mig=_mig(card.mig),
    )


def _pcie(path: PciePath, bus: str = "") -> gpunode.PCIeLocation | None:
    if not path and not bus:
        return None
    return gpunode.PCIeLocation(bus, path[0] if path else "", path[1:])


def _mig(state: driver_data.MigState) -> gpunode.MIGState:
    """Return the MIG status without instances that cannot be used yet."""
    return gpunode.MIGState(
        capable=state.is_capable,
        enabled=state.is_enabled,
        instances=tuple(
            gpunode.MIGInstance(
                uuid=each.uuid,
                profile=each.profile,
                instanceID=each.instance_id,
                start=each.start,
                size=each.size,
                memoryMiB=each.memory_mib,
            )
            for each in sorted(state.instances, key=lambda each: each.start)
            if each.uuid
        ),
    )


def _fabric(cards: Sequence[driver_data.Device]) -> gpunode.Fabric | None:
    """Return the NVLink domain of the node; None if its GPUs report different domains."""
    found = {card.fabric for card in cards if not card.is_lost}
    if len(found) != 1:
        return None
    fabric = found.pop()
    return gpunode.Fabric(fabric.cluster_uuid, fabric.clique_id) if fabric else None


# --- NVLink ---------------------------------------------------------------------------------------------


def _nvlink(card: driver_data.Device, index_of: dict[str, int]) -> gpunode.NVLinkState | None:
    """Return the NVLink status; None if no link of the GPU has a peer."""
    to_switch = any(link.remote is driver_data.Remote.SWITCH for link in card.links)
    if to_switch:
        # A link that is down may not report its peer; on such a GPU all links lead to the switch.
        wired = [link for link in card.links if link.remote in (driver_data.Remote.SWITCH, driver_data.Remote.UNKNOWN)]
    else:
        wired = [link for link in card.links if link.remote_bus in index_of]
    version = max((link.version for link in wired if link.version), default=0)
    if not wired or not version:
        return None
    up = [link for link in wired if link.is_up]
    return gpunode.NVLinkState(
        version=version,
        links=len(up),
        maxLinks=len(wired),
        nvSwitch=to_switch,
        bandwidthGBps=float(sum(_gb_per_s(link, version) for link in up)),
        peers=() if to_switch else _peers(wired, index_of),
    )


def _gb_per_s(link: driver_data.Link, version: int) -> float:
    return float(NVLINK_GB_PER_S.get(version, 0)) if link.gb_per_s is None else link.gb_per_s


def _peers(links: Iterable[driver_data.Link], index_of: dict[str, int]) -> tuple[gpunode.NVLinkPeer, ...]:
    wired: collections.Counter[int] = collections.Counter()
    up: collections.Counter[int] = collections.Counter()
    for link in links:
        peer = index_of[link.remote_bus]
        wired[peer] += 1
        up[peer] += bool(link.is_up)
    return tuple(gpunode.NVLinkPeer(peer, up[peer], wired[peer]) for peer in sorted(wired))


def with_memory(machine: driver_data.Machine, before: driver_data.Machine | None) -> driver_data.Machine:
    """Return the machine with earlier data of GPUs and links that report less now."""
    if before is None:
        return machine
    known = {card.uuid: card for card in before.devices}
    devices = tuple(_merge_memory(card, known.get(card.uuid)) for card in machine.devices)
    return dataclasses.replace(machine, devices=devices)


def _merge_memory(card: driver_data.Device, before: driver_data.Device | None) -> driver_data.Device:
    if before is None or before.slot.bus != card.slot.bus:
        return card
    if card.is_lost and not before.is_lost:
        # The GPU cannot be read any more, but it is the same GPU.
        down = tuple(dataclasses.replace(link, is_up=False) for link in before.links)
        return dataclasses.replace(before, is_lost=True, links=down, index=card.index)
    if card.is_lost:
        return dataclasses.replace(before, index=card.index)
    links = {link.index: link for link in before.links}
    return dataclasses.replace(card, links=tuple(_merge_link(link, links.get(link.index)) for link in card.links))


def _merge_link(link: driver_data.Link, before: driver_data.Link | None) -> driver_data.Link:
    if before is None or link.is_up or link.remote_bus or link.remote is not driver_data.Remote.UNKNOWN:
        return link
    version = link.version or before.version
    return dataclasses.replace(link, remote=before.remote, remote_bus=before.remote_bus, version=version)


def with_known_links(status: gpunode.GPUNodeStatus, before: gpunode.GPUNodeStatus) -> gpunode.GPUNodeStatus:
    """Return the status with the peers published before a restart, for links that are down and report no peer.

    A removed bridge looks the same: links that are down. Deleting the GPUNode clears this memory.
    """
    known = {each.uuid: each for each in before.gpus}
    gpus = tuple(_known_links(each, known.get(each.uuid)) for each in status.gpus)
    return status if gpus == status.gpus else msgspec.structs.replace(status, gpus=gpus)


def _known_links(card: gpunode.GPUDevice, before: gpunode.GPUDevice | None) -> gpunode.GPUDevice:
    old, now = (before.nvlink if before else None), card.nvlink
    if (
        before is None
        or old is None
        or _bus(before) != _bus(card)
        or (now is not None and now.maxLinks >= old.maxLinks)
    ):
        return card
    up = {peer.gpu: peer.links for peer in now.peers} if now else {}
    peers = tuple(msgspec.structs.replace(each, links=min(up.get(each.gpu, 0), each.maxLinks)) for each in old.peers)
    links, rate = (now.links, now.bandwidthGBps) if now else (0, 0.0)
    wired = msgspec.structs.replace(old, links=links, bandwidthGBps=rate, peers=peers)
    return msgspec.structs.replace(card, nvlink=wired)


def _bus(card: gpunode.GPUDevice) -> str:
    return card.pcie.busID if card.pcie else ""


# --- without a driver -----------------------------------------------------------------------------------


def without_driver(known: gpunode.GPUNodeStatus, why: str) -> gpunode.GPUNodeStatus:
    """Return the last status with the health of all GPUs unknown."""
    unknown = gpunode.GPUHealth(state=gpunode.HealthState.UNKNOWN, reason=DRIVER_NOT_READY, message=why[:1024])
    gpus = tuple(msgspec.structs.replace(each, health=_merge_health(each.health, unknown)) for each in known.gpus)
    return msgspec.structs.replace(known, gpus=gpus, healthyGPUs=0)


def _merge_health(known: gpunode.GPUHealth, unknown: gpunode.GPUHealth) -> gpunode.GPUHealth:
    """Keep a GPU out of service if it was so before the driver failed."""
    if known.state == gpunode.HealthState.UNHEALTHY:
        return known
    return msgspec.structs.replace(unknown, lastXID=known.lastXID)


# --- wiring ---------------------------------------------------------------------------------------------


def build_wiring(machine: driver_data.Machine, reported: gpunode.GPUNodeStatus) -> Wiring:
    """Return the table of `nvidia-smi topo -m`, from the driver's data."""
    switch = max((each.nvlink.maxLinks for each in reported.gpus if each.nvlink and each.nvlink.nvSwitch), default=0)
    down = tuple(switch - (each.nvlink.links if each.nvlink else 0) for each in reported.gpus) if switch else ()
    mesh = {
        (min(each.index, peer.gpu), max(each.index, peer.gpu)): peer.links
        for each in reported.gpus
        for peer in (each.nvlink.peers if each.nvlink else ())
        if peer.links
    }
    seen: tuple[tuple[Relation, ...], ...] = machine.seen
    return Wiring(
        slots=tuple(card.slot for card in machine.devices),
        nvlink_version=max((each.nvlink.version for each in reported.gpus if each.nvlink), default=0),
        switch_links=switch,
        mesh=tuple((a, b, links) for (a, b), links in sorted(mesh.items())),
        nics=machine.nics,
        links_down=down if any(down) else (),
        seen=seen,
    )
