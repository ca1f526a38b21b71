"""Standard kinds by which others ask for capacity: ProvisioningRequest and CapacityBuffer, and their pod templates."""

from __future__ import annotations

from typing import Final

import msgspec

from kgwe.kube.api import core
from kgwe.kube.api.meta import Condition, ObjectMeta
from kgwe.kube.api.resources import Resource


class TemplateReference(msgspec.Struct, frozen=True, gc=False):
    name: str = ""


class TemplateOfPod(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta = ObjectMeta()
    spec: core.PodSpec = core.PodSpec()


class PodTemplate(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta
    template: TemplateOfPod = TemplateOfPod()


class PodSet(msgspec.Struct, frozen=True, gc=False):
    """Equal pods of a ProvisioningRequest."""

    podTemplateRef: TemplateReference = TemplateReference()
    count: int = 1


class ProvisioningRequestSpec(msgspec.Struct, frozen=True, gc=False):
    provisioningClassName: str = ""
    podSets: tuple[PodSet, ...] = ()
    parameters: dict[str, str] = {}


class ConditionsStatus(msgspec.Struct, frozen=True, gc=False):
    conditions: tuple[Condition, ...] = ()


class ProvisioningRequest(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta
    spec: ProvisioningRequestSpec = ProvisioningRequestSpec()
    status: ConditionsStatus = ConditionsStatus()


class CapacityBufferSpec(msgspec.Struct, frozen=True, gc=False):
    podTemplateRef: TemplateReference | None = None
    replicas: int | None = None
    provisioningStrategy: str | None = None


class CapacityBuffer(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta
    spec: CapacityBufferSpec = CapacityBufferSpec()
    status: ConditionsStatus = ConditionsStatus()


_GROUP: Final = "autoscaling.x-k8s.io"
POD_TEMPLATE: Final = Resource("", "v1", "podtemplates", "PodTemplate", namespaced=True, type=PodTemplate)
PROVISIONING_REQUESTS: Final = tuple(
    Resource(_GROUP, version, "provisioningrequests", "ProvisioningRequest", namespaced=True, type=ProvisioningRequest)
    for version in ("v1", "v1beta1")
)
CAPACITY_BUFFERS: Final = tuple(
    Resource(_GROUP, version, "capacitybuffers", "CapacityBuffer", namespaced=True, type=CapacityBuffer)
    for version in ("v1beta1", "v1alpha1")
)
