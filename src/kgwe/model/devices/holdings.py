"""Which pods hold which devices of a node, as reported by its kubelet, compared with their plans.

The kubelet knows a device by an id: the UUID of a GPU or of a MIG slice or, where the device plugin shares a GPU, the
UUID and the number of the share (`GPU-…::3`). Devices of a ResourceClaim have the names their driver gave them.
"""

from __future__ import annotations

import collections
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kgwe.model.devices.assignment import NO_DEVICES, DeviceSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.model.gpu.driver_data import Machine

#: between the UUID of a GPU and the number of one of its pieces
SHARE_SEPARATOR: Final = "::"
_SHARED: Final = ".shared"
_DRIVER: Final = "gpu.nvidia.com"
_UUID_PREFIXES: Final = ("GPU-", "MIG-")
_DRIVER_NAME: Final = re.compile(r"gpu-(\d{1,3})(?:-mig-\d+-(\d{1,2})-\d{1,2})?")


@dataclass(frozen=True, slots=True)
class ClaimDevice:
    """A device that a container has through a ResourceClaim."""

    claim: str
    """namespace/name."""
    driver: str = ""
    pool: str = ""
    device: str = ""
    cdi: tuple[str, ...] = ()
    share: str = ""
    """Which share of the device; empty: the pod has all of it."""


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    name: str
    devices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(resource, ids)."""
    claims: tuple[ClaimDevice, ...] = ()

    def ids(self, resource: str) -> tuple[str, ...]:
        return tuple(each for name, ids in self.devices if name == resource for each in ids)


@dataclass(frozen=True, slots=True)
class PodDevices:
    """One pod the kubelet knows, with or without devices."""

    namespace: str
    name: str
    containers: tuple[ContainerDevices, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def ids(self, resource: str) -> tuple[str, ...]:
        return tuple(each for container in self.containers for each in container.ids(resource))


@dataclass(frozen=True)
class DeviceNames:
    """UUIDs and minor numbers of the GPUs and slices of a node."""

    gpus: Mapping[str, int] = field(default_factory=dict)
    """UUID -> number of the GPU."""
    slices: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """UUID -> (GPU, start)."""
    minors: Mapping[int, int] = field(default_factory=dict)
    """Minor number -> number of the GPU."""

    @classmethod
    def from_machine(cls, machine: Machine) -> DeviceNames:
        return cls(
            {device.uuid: device.index for device in machine.devices},
            {
                each.uuid: (device.index, each.start)
                for device in machine.devices
                for each in device.mig.instances
                if each.uuid
            },
            {device.minor: device.index for device in machine.devices if device.minor is not None},
        )

    def find_driver_device(self, device: str) -> str:
        """UUID of what NVIDIA's DRA driver calls `gpu-<minor>` or `gpu-<minor>-mig-<profile>-<start>-<size>`."""
        match = _DRIVER_NAME.fullmatch(device)
        gpu = self.minors.get(int(match[1])) if match else None
        if match is None or gpu is None:
            return ""
        if match[2] is None:
            return next((uuid for uuid, number in self.gpus.items() if number == gpu), "")
        return next((uuid for uuid, place in self.slices.items() if place == (gpu, int(match[2]))), "")


@dataclass(frozen=True, slots=True)
class Holdings:
    """What one pod holds."""

    places: DeviceSet = NO_DEVICES
    replicas: int = 0
    """How many of its devices are shares of a GPU."""
    is_named: bool = True
    """Whether shares have a resource name of their own; if not, the plan and the driver number GPUs differently."""
    strangers: tuple[str, ...] = ()
    """Ids that are unknown on this node."""

    def __bool__(self) -> bool:
        return bool(self.places or self.strangers)


def read_holdings(pod: PodDevices, names: DeviceNames, claimed: Mapping[str, str] | None = None) -> Holdings:
    """The devices of a pod; `claimed`: device of a ResourceClaim -> UUID."""
    gpus, replicas = 0, 0
    slices: set[tuple[int, int]] = set()
    strangers = []
    for each in _list_ids(pod, names, claimed or {}):
        uuid, shared, _ = each.partition(SHARE_SEPARATOR)
        if uuid in names.gpus:
            gpus |= 1 << names.gpus[uuid]
        elif uuid in names.slices:
            slices.add(names.slices[uuid])
        else:
            strangers.append(each)
            continue
        replicas += bool(shared)
    named = all(
        name.endswith(_SHARED) for each in pod.containers for name, ids in each.devices if any(map(is_share, ids))
    )
    return Holdings(DeviceSet(gpus, tuple(sorted(slices))), replicas, named, tuple(strangers))


def is_share(device: str) -> bool:
    return SHARE_SEPARATOR in device


def device_uuid(device: str) -> str:
    """The UUID of the device; all shares of a GPU have the UUID of the GPU."""
    return device.partition(SHARE_SEPARATOR)[0]


def claimed_uuids(pod: PodDevices) -> frozenset[str]:
    """The UUIDs of the pod's devices that it has through ResourceClaims, by their CDI names."""
    names = (name.rpartition("=")[2] for container in pod.containers for each in container.claims for name in each.cdi)
    return frozenset(name for name in names if name.startswith(_UUID_PREFIXES))


def devices_conflict(one: str, other: str) -> bool:
    """Whether two pods cannot have these at once: the same id, or a whole GPU and a share of it.

    The kubelet, to which ids are just text, prevents only the first.
    """
    return one == other or (device_uuid(one) == device_uuid(other) and not (is_share(one) and is_share(other)))


def _list_ids(pod: PodDevices, names: DeviceNames, claimed: Mapping[str, str]) -> Iterable[str]:
    for container in pod.containers:
        for _, ids in container.devices:
            yield from ids
        for each in container.claims:
            # A driver names a device as it likes; its CDI name often ends in the UUID.
            ends = [name.rpartition("=")[2] for name in each.cdi]
            known = claimed.get(each.device) or next((end for end in ends if end.startswith(_UUID_PREFIXES)), "")
            if not known and each.driver == _DRIVER:
                known = names.find_driver_device(each.device)
            if known:
                yield f"{known}{SHARE_SEPARATOR}{each.share}" if each.share else known


def filter_resources(pods: Iterable[PodDevices], prefixes: Sequence[str]) -> tuple[PodDevices, ...]:
    """The pods with only their GPU devices: a node has other device plugins too."""
    found = []
    for pod in pods:
        containers = tuple(
            ContainerDevices(
                each.name,
                tuple((name, ids) for name, ids in each.devices if name.startswith(tuple(prefixes))),
                each.claims,
            )
            for each in pod.containers
        )
        found.append(PodDevices(pod.namespace, pod.name, containers))
    return tuple(found)


# --- beside the plan ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """A pod whose devices differ from its plan, or are held by another pod too."""

    pod: str
    reason: str
    """One CamelCase word."""
    message: str


def find_differences(planned: Mapping[str, DeviceSet], held: Mapping[str, Holdings]) -> tuple[Difference, ...]:
    """Differences between plans and observed devices, by pod (namespace/name).

    Pods without a plan, and pods that do not have all their devices yet, do not differ. The plan of a share names its
    GPU, and any share of that GPU will do.
    """
    found = [
        Difference(pod, "OtherDevices", f"planned {plan}, holds {mine.places}")
        for pod, mine in held.items()
        if (plan := planned.get(pod)) and (mine.is_named or not mine.replicas) and not mine.places.is_subset(plan)
    ]
    found += [
        Difference(pod, "UnknownDevices", f"holds {', '.join(mine.strangers)}, which the driver does not know")
        for pod, mine in held.items()
        if mine.strangers
    ]
    return tuple(sorted([*found, *_find_double_use(held)], key=lambda each: (each.pod, each.reason)))


def _find_double_use(held: Mapping[str, Holdings]) -> Iterable[Difference]:
    """Devices that several pods hold exclusively; shares do not count."""
    holders: dict[tuple[int, int], list[str]] = collections.defaultdict(list)
    for pod, mine in held.items():
        if not mine.replicas:
            for gpu in mine.places.numbers:
                holders[gpu, -1].append(pod)
            for place in mine.places.slices:
                holders[place].append(pod)
    for place, pods in holders.items():
        what = DeviceSet(1 << place[0]) if place[1] < 0 else DeviceSet(slices=(place,))
        for pod in pods if len(pods) > 1 else ():
            others = ", ".join(other for other in pods if other != pod)
            yield Difference(pod, "HeldTwice", f"{what} is held by {others} too")
