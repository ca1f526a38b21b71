"""Assigns the GPUs of a simulated node to its pods.

In a real cluster the kubelet's device manager decides. Here each container that requests GPUs or MIG slices gets the
lowest free GPU, in the order in which pods started; pods with ResourceClaims get the claimed GPUs. A pod keeps its
GPUs while it runs. Assignments are stored by pod uid (the simulator writes them to a file), because the order alone
would change them after a restart.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kgwe.hardware.dcgm import metrics
from kgwe.kube.api.kgwe import gpunode
from kgwe.kube.translate import mig_layouts
from kgwe.local.fleet import mig_layout as cutting
from kgwe.model.gpu import mig
from kgwe.model.health import health
from kgwe.model.simfleet import usage
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.local.fleet.gpupods import GpuPod

#: A GPU, (GPU, GPU instance id), or a share of a GPU: (GPU, -1), (GPU, -2) …
Unit = tuple[int, int | None]


class DeviceStock(NamedTuple):
    """A device that the device plugin advertises."""

    unit: Unit
    resource: str
    healthy: bool


class Grant(NamedTuple):
    """A device that was assigned to a pod."""

    container: str
    unit: Unit


#: pod uid -> its devices
Grants = dict[str, tuple[Grant, ...]]


def list_devices(obj: gpunode.GPUNode, node_resources: Iterable[str], shares: int = 0) -> list[DeviceStock]:
    """Return the devices of a node, lowest GPU first; `node_resources` shows whether slices are advertised as plain
    GPUs.

    `shares` is the number of shares per GPU; 0 means whole GPUs.
    """
    known = set(node_resources)
    layouts = mig_layouts.read_layouts(obj)
    found = []
    for device in sorted(obj.status.gpus, key=lambda device: device.index):
        healthy = health.is_in_service(device.health.state)
        for instance in device.mig.instances:
            name = mig.resource_of(instance.profile)
            is_open = healthy and not cutting.is_withheld(device, instance, layouts.get(device.uuid))
            found.append(
                DeviceStock((device.index, instance.instanceID), name if name in known else amounts.GPU, is_open)
            )
        if not device.mig.enabled:
            is_open = healthy and not cutting.is_withheld(device, None, layouts.get(device.uuid))
            parts: list[Unit] = [(device.index, -1 - piece) for piece in range(shares)]
            resource = amounts.SHARED if shares else amounts.GPU
            found += [DeviceStock(unit, resource, is_open) for unit in parts or [(device.index, None)]]
    return found


def assign(available: Sequence[DeviceStock], pods: Iterable[GpuPod], held: Mapping[str, tuple[Grant, ...]]) -> Grants:
    """Return the devices of each pod: pods with devices keep them, the others are served in order of start.

    A pod that cannot get all of its devices gets none and is tried again next time.
    """
    there = {offer.unit for offer in available}
    active = sorted((pod for pod in pods if pod.is_active), key=_sort_key)
    given = {
        pod.metadata.uid: held[pod.metadata.uid]
        for pod in active
        if pod.metadata.uid in held and all(grant.unit in there for grant in held[pod.metadata.uid])
    }
    taken = {grant.unit for grants in given.values() for grant in grants}
    free = [offer for offer in available if offer.healthy and offer.unit not in taken]
    for pod in active:
        if pod.metadata.uid not in given and (grants := _assign_devices(pod, free)):
            given[pod.metadata.uid] = grants
            mine = {grant.unit for grant in grants}
            free = [offer for offer in free if offer.unit not in mine]
    return given


def _sort_key(pod: GpuPod) -> tuple[bool, str, str]:
    """Return the sort key of a pod: pods with claimed GPUs first; "~" sorts after all times, for pods not yet
    started.
    """
    return (not pod.claimed, pod.status.start_time or "~", pod.metadata.uid)


def _assign_devices(pod: GpuPod, free: Sequence[DeviceStock]) -> tuple[Grant, ...]:
    grants: list[Grant] = []
    mine = pod.claimed
    left = [offer for offer in free if not mine or mine >> offer.unit[0] & 1]
    for container, resource, count in pod.list_requests():
        fitting = [offer for offer in left if offer.resource == resource][:count]
        if len(fitting) < count:
            return ()
        grants += [Grant(container, offer.unit) for offer in fitting]
        left = [offer for offer in left if offer not in fitting]
    return tuple(grants)


@dataclass(frozen=True, slots=True)
class Holder:
    """A container on a GPU, and its simulated usage."""

    owner: metrics.Owner
    profile: usage.Profile
    started_s: float | None
    seed: int

    def use_at(self, now_s: float) -> usage.Usage:
        if self.started_s is None:
            return usage.IDLE
        return usage.usage_at(self.profile, now_s - self.started_s, now_s, self.seed)


def map_holders(pods: Mapping[str, GpuPod], given: Mapping[str, tuple[Grant, ...]]) -> dict[Unit, Holder]:
    """Return unit -> its holders, for the pods (by uid) of one node."""
    found: dict[Unit, Holder] = {}
    for uid, grants in given.items():
        pod = pods[uid]
        profile, _ = pod.profile()
        # One seed per pod, so its GPUs show the same pattern.
        seed = zlib.crc32(uid.encode()) << 8
        for grant in grants:
            owner = metrics.Owner(pod.metadata.namespace, pod.metadata.name, grant.container)
            found[grant.unit] = Holder(owner, profile, pod.started_s(grant.container), seed)
    return found


def list_holdings(
    obj: gpunode.GPUNode, given: Grants, pods: Mapping[str, GpuPod]
) -> tuple[frozenset[str], tuple[gpunode.HeldDevices, ...]]:
    """Return (UUIDs that pods hold, the status fields for them)."""
    cards = {card.index: card for card in obj.status.gpus}
    starts = {(card.index, each.instanceID): each for card in obj.status.gpus for each in card.mig.instances}
    taken: set[str] = set()
    said = []
    for uid, grants in sorted(given.items()):
        mask, slices, replicas = 0, [], 0
        for number, instance in (grant.unit for grant in grants):
            if (instance is None or instance < 0) and number in cards:
                mask |= 1 << number
                replicas += instance is not None
                taken.add(cards[number].uuid)
            elif instance is not None and (found := starts.get((number, instance))):
                slices.append(f"{number}@{found.start}")
                taken.add(found.uuid)
        pod = pods[uid].metadata
        said.append(gpunode.HeldDevices(pod.key, uid, f"{mask:x}" if mask else "", tuple(slices), replicas))
    return frozenset(taken), tuple(sorted(said, key=lambda each: each.pod))
