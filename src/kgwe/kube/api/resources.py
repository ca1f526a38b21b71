"""What the API server calls things: one Resource per kind KGWE reads or writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from kgwe.kube.api import apps, core, policy, resource, scheduling
from kgwe.kube.api.kgwe import (
    autoscalingpolicy,
    gpubudget,
    gpunode,
    gpusharingpolicy,
    gpuworkload,
    migstrategy,
    rightsizingdecision,
    schedulerconfig,
    seatrevocation,
    topologydomain,
    warp,
)
from kgwe.kube.api.schema import CustomObject

T = TypeVar("T")
K = TypeVar("K", bound=CustomObject)


@dataclass(frozen=True)
class Resource(Generic[T]):
    """A kind, where it lives in the API, and the struct its objects are decoded into."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    type: type[T]
    #: of `proto/kubernetes.proto`: what informers read it from where they can
    message: str = ""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """`gpuworkloads.kgwe.nvidia.io`, as kubectl takes it: no other kind is meant."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, *, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The request path; without a namespace a namespaced kind is addressed across all of them."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/" + "/".join(parts)


NODE = Resource("", "v1", "nodes", "Node", namespaced=False, type=core.Node, message="kgwe.kubernetes.Node")
CONFIG_MAP = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True, type=core.ConfigMap)
POD = Resource("", "v1", "pods", "Pod", namespaced=True, type=core.Pod, message="kgwe.kubernetes.Pod")
#: the same pods, read with what tells how they ended
ENDED_POD = Resource("", "v1", "pods", "Pod", namespaced=True, type=core.EndedPod)
BINDING: Resource[Any] = Resource("", "v1", "pods", "Binding", namespaced=True, type=dict[str, Any])
#: the same namespaces, read with their labels only
NAMESPACE_LABELS = Resource("", "v1", "namespaces", "Namespace", namespaced=False, type=core.NamespaceLabels)
NAMESPACE: Resource[Any] = Resource("", "v1", "namespaces", "Namespace", namespaced=False, type=dict[str, Any])
EVENT: Resource[Any] = Resource("events.k8s.io", "v1", "events", "Event", namespaced=True, type=msgspec.Raw)
JOB = Resource("batch", "v1", "jobs", "Job", namespaced=True, type=core.Job)
DEPLOYMENT = Resource("apps", "v1", "deployments", "Deployment", namespaced=True, type=apps.Deployment)
SERVICE: Resource[Any] = Resource("", "v1", "services", "Service", namespaced=True, type=dict[str, Any])
POD_DISRUPTION_BUDGET = Resource(
    "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", namespaced=True, type=policy.PodDisruptionBudget
)
PRIORITY_CLASS = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False, type=scheduling.PriorityClass
)
#: created at a pod
EVICTION: Resource[Any] = Resource("", "v1", "pods", "Eviction", namespaced=True, type=dict[str, Any])
#: dynamic resource allocation, Kubernetes 1.34 and later
RESOURCE_SLICE = Resource(
    "resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False, type=resource.ResourceSlice
)
RESOURCE_CLAIM = Resource(
    "resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", namespaced=True, type=resource.ResourceClaim
)
RESOURCE_CLAIM_TEMPLATE: Resource[Any] = Resource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", namespaced=True, type=dict[str, Any]
)
DEVICE_CLASS: Resource[Any] = Resource(
    "resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False, type=dict[str, Any]
)
SECRET = Resource("", "v1", "secrets", "Secret", namespaced=True, type=core.Secret)
LEASE = Resource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True, type=core.Lease)
#: Kubernetes 1.36 and later
MUTATING_POLICY_BINDING: Resource[Any] = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingadmissionpolicybindings",
    "MutatingAdmissionPolicyBinding",
    namespaced=False,
    type=dict[str, Any],
)
MUTATING_WEBHOOK_CONFIGURATION: Resource[Any] = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
    type=dict[str, Any],
)
CRD: Resource[Any] = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
    type=dict[str, Any],
)


# --- our own kinds -------------------------------------------------------------------------------------


def _custom_resource(kind: type[K]) -> Resource[K]:
    of = kind.definition
    return Resource(of.group, of.version, of.plural, of.kind, namespaced=of.namespaced, type=kind)


GPU_WORKLOAD = _custom_resource(gpuworkload.GPUWorkload)
WARP_GPU_WORKLOAD = _custom_resource(warp.WarpGPUWorkload)
MIG_STRATEGY = _custom_resource(migstrategy.MIGStrategy)
GPU_BUDGET = _custom_resource(gpubudget.GPUBudget)
AUTOSCALING_POLICY = _custom_resource(autoscalingpolicy.AutoscalingPolicy)
SCHEDULER_CONFIG = _custom_resource(schedulerconfig.SchedulerConfig)
GPU_NODE = _custom_resource(gpunode.GPUNode)
GPU_SHARING_POLICY = _custom_resource(gpusharingpolicy.GPUSharingPolicy)
TOPOLOGY_DOMAIN = _custom_resource(topologydomain.TopologyDomain)
SEAT_REVOCATION = _custom_resource(seatrevocation.SeatRevocation)
RIGHTSIZING_DECISION = _custom_resource(rightsizingdecision.RightsizingDecision)
