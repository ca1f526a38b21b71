"""Pods as the cost engine reads them: from when until when they held what."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe import errors
from kgwe.costing.attribution import AttributionRules, attribute_pod
from kgwe.costing.metering.device_choice import GpuWish
from kgwe.costing.segments import Holder
from kgwe.kube.api import resources, timestamp
from kgwe.kube.api.core import PodResourceClaimStatus  # noqa: TC001 - read by msgspec when it decodes
from kgwe.kube.api.meta import Condition, ObjectMeta  # noqa: TC001 - read by msgspec when it decodes
from kgwe.model.gpu import mig
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_WORKLOAD_LABEL: Final = "kgwe.nvidia.io/workload"
_TEMPLATE_LABEL: Final = "pod-template-hash"
_ENDED: Final = ("Succeeded", "Failed")


class _Slim(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    pass


class Requests(_Slim, frozen=True):
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class Container(_Slim, frozen=True):
    resources: Requests = Requests()
    restart_policy: str = ""


class PodClaim(_Slim, frozen=True):
    name: str
    resource_claim_name: str = ""


class PodSpec(_Slim, frozen=True):
    node_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resource_claims: tuple[PodClaim, ...] = ()
    overhead: dict[str, str] = {}


class Terminated(_Slim, frozen=True):
    finished_at: str | None = None


class State(_Slim, frozen=True):
    terminated: Terminated | None = None


class ContainerStatus(_Slim, frozen=True):
    state: State = State()


class PodStatus(_Slim, frozen=True):
    phase: str = ""
    start_time: str | None = None
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()


class CostPod(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


COST_PODS: Final = resources.Resource("", "v1", "pods", "Pod", namespaced=True, type=CostPod)


@dataclass(frozen=True, slots=True)
class PodTimes:
    """From when until when a pod holds its devices. Without `end_s` it still does."""

    start_s: int
    end_s: int | None

    def overlaps(self, start_s: int, end_s: int | None) -> bool:
        """Whether another span has a moment with this one in common."""
        return (end_s is None or self.start_s < end_s) and (self.end_s is None or start_s < self.end_s)


def read_times(pod: CostPod, now_s: int) -> PodTimes | None:
    """Return the times of a pod; None before it has a node.

    A pod holds its devices from its binding until its last container has ended. Where a pod that ended does not say
    when, it ends now.
    """
    if not pod.spec.node_name:
        return None
    bound = [each.lastTransitionTime for each in pod.status.conditions if _is_true(each, "PodScheduled")]
    start = next(filter(None, (*map(parse_time, bound), parse_time(pod.status.start_time))), None)
    start_s = start if start is not None else parse_time(pod.metadata.creationTimestamp) or now_s
    if pod.status.phase not in _ENDED:
        return PodTimes(start_s, None)
    ends = [
        parse_time(each.state.terminated.finished_at) for each in pod.status.container_statuses if each.state.terminated
    ]
    known = [each for each in ends if each is not None]
    return PodTimes(start_s, max(max(known, default=now_s), start_s))


def read_holder(pod: CostPod, rules: AttributionRules, namespace_labels: Mapping[str, str]) -> Holder:
    """Return the pod with the names its cost is attributed to."""
    meta = pod.metadata
    controller = meta.controller
    account = attribute_pod(rules, meta.namespace, meta.labels, meta.annotations, namespace_labels)
    is_overhead = controller is not None and controller.kind in {"DaemonSet", "Node"}
    return Holder(meta.uid, meta.name, name_workload(meta), account, is_overhead)


def name_workload(meta: ObjectMeta) -> str:
    """Return kind and name of what created a pod."""
    if workload := meta.labels.get(_WORKLOAD_LABEL):
        return f"GPUWorkload/{workload}"
    controller = meta.controller
    if controller is None:
        return f"Pod/{meta.name}"
    template = meta.labels.get(_TEMPLATE_LABEL)
    if controller.kind == "ReplicaSet" and template and controller.name.endswith(f"-{template}"):
        return f"Deployment/{controller.name.removesuffix(f'-{template}')}"
    return f"{controller.kind}/{controller.name}"


def sum_requests(pod: CostPod) -> dict[str, int]:
    """Return what a pod requests: the sum of its containers, or its largest init container if that is more."""
    spec = pod.spec
    sidecars = [each for each in spec.init_containers if each.restart_policy == "Always"]
    steady = amounts.sum_amounts(_read(each) for each in (*spec.containers, *sidecars))
    first = amounts.max_amounts(_read(each) for each in spec.init_containers if each not in sidecars)
    total = amounts.max_amounts((steady, first))
    amounts.add(total, _parse(spec.overhead))
    return total


def read_wish(wanted: Mapping[str, int]) -> GpuWish:
    """Return the GPUs, shares and slices of a request."""
    slices = tuple(
        sorted((mig.profile_of(name), count) for name, count in wanted.items() if mig.profile_of(name) and count)
    )
    return GpuWish(wanted.get(amounts.GPU, 0), wanted.get(amounts.SHARED, 0), slices)


def list_claims(pod: CostPod) -> Iterator[str]:
    """Yield namespace/name of the ResourceClaims of a pod."""
    made = {each.name: each.resourceClaimName for each in pod.status.resource_claim_statuses}
    for claim in pod.spec.resource_claims:
        name = claim.resource_claim_name or made.get(claim.name)
        if name:
            yield f"{pod.metadata.namespace}/{name}"


def _is_true(condition: Condition, kind: str) -> bool:
    return condition.type == kind and condition.status == "True"


def _read(container: Container) -> dict[str, int]:
    return _parse({**container.resources.limits, **container.resources.requests})


def _parse(quantities: Mapping[str, str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, text in quantities.items():
        if name in {amounts.CPU, amounts.MEMORY} or amounts.is_gpu(name):
            try:
                found[name] = min(amounts.parse_one(name, text), amounts.limit_of(name))
            except errors.KgweError:
                # The API server accepts no such quantity; a pod that has one anyway delays no other.
                continue
    return found


@functools.lru_cache(maxsize=65_536)
def parse_time(text: Any) -> int | None:
    """Return the second of a timestamp; None if it is absent or malformed."""
    if not text:
        return None
    try:
        return int(timestamp.parse(text).timestamp())
    except ValueError:
        return None
