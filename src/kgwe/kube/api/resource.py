"""Slim views of resource.k8s.io/v1 (dynamic resource allocation): what drivers offer, and who was given what.

The attributes are those that NVIDIA's DRA driver publishes for GPUs.
"""

from typing import Final

import msgspec

from kgwe.kube.api.meta import ObjectMeta

#: NVIDIA's DRA driver for GPUs; also the domain of its attributes
DRIVER: Final = "gpu.nvidia.com"
#: device classes of that driver: whole cards, and MIG slices
GPU_CLASS: Final = "gpu.nvidia.com"
MIG_CLASS: Final = "mig.nvidia.com"
#: device class of shares of GPUs; the capacity `shares` of a GPU says how many it has
SHARED_CLASS: Final = "shared.kgwe.nvidia.io"
#: on a ResourceClaim: which of its pod's claims it is (the API server's own constant)
POD_CLAIM_ANNOTATION: Final = "resource.kubernetes.io/pod-claim-name"


class Attribute(msgspec.Struct, frozen=True, gc=False):
    """The value of an attribute. Numbers and truth values are not read."""

    string: str | None = None
    version: str | None = None


class Capacity(msgspec.Struct, frozen=True, gc=False):
    value: str = "0"


class DeviceTaint(msgspec.Struct, frozen=True, gc=False):
    key: str = ""
    effect: str = ""


class Device(msgspec.Struct, frozen=True, gc=False):
    name: str
    attributes: dict[str, Attribute] = {}
    capacity: dict[str, Capacity] = {}
    taints: tuple[DeviceTaint, ...] = ()

    def text(self, attribute: str) -> str:
        """An attribute of the driver, or of Kubernetes if its name is qualified; empty: not set."""
        found = self.attributes.get(attribute) or self.attributes.get(f"{DRIVER}/{attribute}")
        return (found.string or found.version or "") if found else ""

    @property
    def is_open(self) -> bool:
        """Whether a claim without tolerations may get the device."""
        return not any(taint.effect in ("NoSchedule", "NoExecute") for taint in self.taints)


class Pool(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    generation: int = 0


class ResourceSliceSpec(msgspec.Struct, frozen=True, gc=False):
    driver: str = ""
    pool: Pool = Pool()
    nodeName: str = ""
    devices: tuple[Device, ...] = ()


class ResourceSlice(msgspec.Struct, frozen=True, gc=False):
    """Devices of one node, or a part of them: a pool may need several objects."""

    metadata: ObjectMeta
    spec: ResourceSliceSpec = ResourceSliceSpec()


class DeviceResult(msgspec.Struct, frozen=True, gc=False):
    """One device that a claim was given."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    #: which request of the claim it satisfies
    request: str = ""
    #: which share of the device, if it can be allocated several times
    shareID: str | None = None
    #: for monitoring: the device may be allocated to another claim as well
    adminAccess: bool | None = None


class AllocatedDevices(msgspec.Struct, frozen=True, gc=False):
    results: tuple[DeviceResult, ...] = ()


class Allocation(msgspec.Struct, frozen=True, gc=False):
    devices: AllocatedDevices = AllocatedDevices()


class ResourceClaimStatus(msgspec.Struct, frozen=True, gc=False):
    allocation: Allocation | None = None


class CEL(msgspec.Struct, frozen=True, gc=False):
    expression: str = ""


class DeviceSelector(msgspec.Struct, frozen=True, gc=False):
    cel: CEL | None = None


class ExactRequest(msgspec.Struct, frozen=True, gc=False):
    """Devices of one class that all selectors are true of."""

    deviceClassName: str = ""
    allocationMode: str = "ExactCount"
    count: int = 1
    selectors: tuple[DeviceSelector, ...] = ()


class DeviceRequest(msgspec.Struct, frozen=True, gc=False):
    exactly: ExactRequest | None = None


class DeviceClaim(msgspec.Struct, frozen=True, gc=False):
    requests: tuple[DeviceRequest, ...] = ()


class ResourceClaimSpec(msgspec.Struct, frozen=True, gc=False):
    devices: DeviceClaim = DeviceClaim()


class ResourceClaim(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()

    @property
    def gpus(self) -> tuple[DeviceResult, ...]:
        """The GPUs and slices it was given and keeps from others."""
        given = self.status.allocation.devices.results if self.status.allocation else ()
        return tuple(each for each in given if each.driver == DRIVER and not each.adminAccess)
