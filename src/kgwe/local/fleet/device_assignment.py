"""Assigns the GPUs of a simulated node to its pods.

In a real cluster the kubelet's device plugin decides that. Here it is the lowest free card, in the order in
which pods started, per container that asks for GPUs or MIG slices; who claims cards has those. A pod keeps its
cards for as long as it runs: what was given is remembered by the pod's uid (and written to a file by the
simulator), because the order alone would deal the cards differently after a restart in the middle of a day.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kgwe.hardware.dcgm import metrics
from kgwe.kube.translate import mig_layouts
from kgwe.local.fleet import mig_layout as cutting
from kgwe.model.gpu import mig
from kgwe.model.health import health
from kgwe.model.simfleet import usage
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.kube.api.kgwe import gpunode
    from kgwe.local.fleet.gpupods import GpuPod

#: A card, (card, GPU instance id), or a share of a card: (card, -1), (card, -2) …
Unit = tuple[int, int | None]


class DeviceStock(NamedTuple):
    """Something the device plugin can hand out."""

    unit: Unit
    resource: str
    healthy: bool


class Grant(NamedTuple):
    """Something it has handed out."""

    container: str
    unit: Unit


#: pod uid -> what it has
Grants = dict[str, tuple[Grant, ...]]


def offers(obj: gpunode.GPUNode, node_resources: Iterable[str], shares: int = 0) -> list[DeviceStock]:
    """What a node has, lowest card first; `node_resources` tells whether slices are offered as plain GPUs.

    `shares`: into how many each card is divided; 0: not at all.
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
    """Return what each pod has now: pods with devices keep them, the others are served in order of start.

    A pod that cannot be served whole gets nothing and is asked for again next time.
    """
    there = {offer.unit for offer in available}
    active = sorted((pod for pod in pods if pod.is_active), key=_order)
    given = {
        pod.metadata.uid: held[pod.metadata.uid]
        for pod in active
        if pod.metadata.uid in held and all(grant.unit in there for grant in held[pod.metadata.uid])
    }
    taken = {grant.unit for grants in given.values() for grant in grants}
    free = [offer for offer in available if offer.healthy and offer.unit not in taken]
    for pod in active:
        if pod.metadata.uid not in given and (grants := _serve(pod, free)):
            given[pod.metadata.uid] = grants
            mine = {grant.unit for grant in grants}
            free = [offer for offer in free if offer.unit not in mine]
    return given


def _order(pod: GpuPod) -> tuple[bool, str, str]:
    """Who claims certain cards comes first; "~" is after every time: not started yet."""
    return (not pod.claimed, pod.status.start_time or "~", pod.metadata.uid)


def _serve(pod: GpuPod, free: Sequence[DeviceStock]) -> tuple[Grant, ...]:
    grants: list[Grant] = []
    mine = pod.claimed
    left = [offer for offer in free if not mine or mine >> offer.unit[0] & 1]
    for container, resource, count in pod.wants():
        fitting = [offer for offer in left if offer.resource == resource][:count]
        if len(fitting) < count:
            return ()
        grants += [Grant(container, offer.unit) for offer in fitting]
        left = [offer for offer in left if offer not in fitting]
    return tuple(grants)


@dataclass(frozen=True, slots=True)
class Holder:
    """A container on a card, and what it does there."""

    owner: metrics.Owner
    profile: usage.Profile
    started_s: float | None
    seed: int

    def use_at(self, now_s: float) -> usage.Usage:
        if self.started_s is None:
            return usage.IDLE
        return usage.usage_at(self.profile, now_s - self.started_s, now_s, self.seed)


def holders(pods: Mapping[str, GpuPod], given: Mapping[str, tuple[Grant, ...]]) -> dict[Unit, Holder]:
    """unit -> who has it, for the pods (by uid) of one node."""
    found: dict[Unit, Holder] = {}
    for uid, grants in given.items():
        pod = pods[uid]
        profile, _ = pod.profile()
        # One seed per pod: its cards work in step.
        seed = zlib.crc32(uid.encode()) << 8
        for grant in grants:
            owner = metrics.Owner(pod.metadata.namespace, pod.metadata.name, grant.container)
            found[grant.unit] = Holder(owner, profile, pod.started_s(grant.container), seed)
    return found
