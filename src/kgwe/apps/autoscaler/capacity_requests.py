"""Capacity that others ask for: ProvisioningRequests of Kueue, and warm CapacityBuffers.

A ProvisioningRequest of class `atomic.kgwe.nvidia.io` is one gang: all of its pods get a place, or nothing is bought.
It is Provisioned when the engine places all of its pods at once, on nodes that are ready. Its pods are then expected
for ten minutes. A buffer is capacity for so many pods that stays free.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from kgwe import errors
from kgwe.apps.autoscaler.policy_status import set_conditions
from kgwe.kube import dialects
from kgwe.kube.api import autoscaling, core, timestamp
from kgwe.kube.api.meta import Condition
from kgwe.kube.client.informer import Informer
from kgwe.kube.dialects.membership import Unreadable
from kgwe.kube.translate import podrequest
from kgwe.placement.gang.request import GangRequest, Role
from kgwe.placement.planning.ask import Ask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kgwe.cluster.offline import View
    from kgwe.kube.api.autoscaling import CapacityBuffer, PodTemplate, ProvisioningRequest
    from kgwe.kube.api.resources import Resource
    from kgwe.kube.client.client import KubeClient

log = structlog.get_logger(__name__)

CLASS: Final = "atomic.kgwe.nvidia.io"
_TOPOLOGY: Final = "kueue.x-k8s.io/podset-required-topology"
#: Parameter of a request: seconds after which it fails if it is not provisioned.
_TIMEOUT: Final = "timeoutSeconds"
_DEFAULT_TIMEOUT_S: Final = 1800.0
BOOKING_S: Final = 600.0
#: Buffers come after everything that waits.
_BUFFER_PRIORITY: Final = -(10**9)
_MOST_REPLICAS: Final = 1000


@dataclass(slots=True)
class CapacityRequests:
    """The watched objects, and what they ask for. Kinds that the cluster does not serve are left out."""

    client: KubeClient
    requests: Informer[ProvisioningRequest] | None = None
    buffers: Informer[CapacityBuffer] | None = None
    templates: Informer[PodTemplate] | None = None
    problems: dict[str, str] = field(default_factory=dict)
    """Object -> why it cannot be read."""

    async def watch(self) -> list[Informer[Any]]:
        """Return the informers of the kinds that the cluster serves."""
        requests = await dialects.find_served(self.client, autoscaling.PROVISIONING_REQUESTS)
        buffers = await dialects.find_served(self.client, autoscaling.CAPACITY_BUFFERS)
        if requests:
            self.requests = Informer(self.client, requests[0])
        if buffers:
            self.buffers = Informer(self.client, buffers[0])
        if requests or buffers:
            self.templates = Informer(self.client, autoscaling.POD_TEMPLATE)
        return [each for each in (self.requests, self.buffers, self.templates) if each is not None]

    # --- what is asked for ------------------------------------------------------------------------------

    def list_asks(self, view: View, now_s: float) -> list[Ask]:
        """Return one ask per request that is not settled, and one per pod of a buffer."""
        self.problems = {}
        asks = []
        for request in self._list_requests():
            if _is_settled(request, now_s):
                continue
            try:
                asks.append(self._read_request(request, view))
            except (errors.Permanent, ValueError) as exc:
                self.problems[request.metadata.key] = str(exc)
        for buffer in self.buffers.store.values() if self.buffers is not None else ():
            try:
                asks += self._read_buffer(buffer, view)
            except (errors.Permanent, ValueError) as exc:
                self.problems[buffer.metadata.key] = str(exc)
        return asks

    def _list_requests(self) -> Iterator[ProvisioningRequest]:
        for request in list(self.requests.store.values()) if self.requests is not None else ():
            if request.spec.provisioningClassName == CLASS and request.metadata.deletionTimestamp is None:
                yield request

    def _find_pod(self, namespace: str, name: str) -> core.Pod:
        found = self.templates.store.get(f"{namespace}/{name}") if self.templates is not None else None
        if found is None:
            raise errors.Permanent(f"PodTemplate {namespace}/{name} does not exist")
        meta = msgspec.structs.replace(found.template.metadata, name=name, namespace=namespace)
        return core.Pod(meta, found.template.spec)

    def _read_request(self, request: ProvisioningRequest, view: View) -> Ask:
        meta = request.metadata
        roles, required, priority, amounts = [], "", 0, {}
        for number, pod_set in enumerate(request.spec.podSets):
            pod = self._find_pod(meta.namespace, pod_set.podTemplateRef.name)
            found = podrequest.read_request(pod, pieces=view.fleet.shares_per_gpu(""))
            if pod_set.count > 0:
                roles.append(Role(str(number), found.request, pod_set.count))
            priority, amounts = max(priority, pod.spec.priority), found.amounts
            if text := pod.metadata.annotations.get(_TOPOLOGY, ""):
                required = self._find_level(view, text)
        if not roles:
            raise errors.Permanent("it asks for no pods")
        gang = GangRequest(tuple(roles), required=required, priority=priority, name=meta.name)
        return Ask(
            meta.uid, roles[0].request, amounts, pods=gang.replicas, priority=priority,
            since=meta.creationTimestamp or "", namespace=meta.namespace, name=meta.name,
            gang=gang if gang.replicas > 1 else None,
        )  # fmt: skip

    @staticmethod
    def _find_level(view: View, text: str) -> str:
        levels = tuple(level.name for level in view.fleet.tree.levels)
        try:
            return dialects.Levels(view.state.reader.labels(), levels).find_level(text, f"annotation {_TOPOLOGY}")
        except Unreadable as exc:
            raise errors.Permanent(str(exc)) from exc

    def _read_buffer(self, buffer: CapacityBuffer, view: View) -> Iterator[Ask]:
        meta, reference = buffer.metadata, buffer.spec.podTemplateRef
        if reference is None or buffer.spec.replicas is None:
            raise errors.Permanent("KGWE serves buffers with podTemplateRef and replicas")
        pod = self._find_pod(meta.namespace, reference.name)
        found = podrequest.read_request(pod, pieces=view.fleet.shares_per_gpu(""))
        for number in range(min(max(buffer.spec.replicas, 0), _MOST_REPLICAS)):
            yield Ask(
                f"buffer/{meta.uid}/{number}", found.request, found.amounts, priority=_BUFFER_PRIORITY,
                namespace=meta.namespace, name=f"{meta.name} (buffer)",
            )  # fmt: skip

    def list_bookings(self) -> frozenset[str]:
        """Return requests that are provisioned: nothing more is bought for them, but their nodes stay."""
        return frozenset(
            each.metadata.uid for each in self._list_requests() if _says(each.status.conditions, "Provisioned")
        )

    # --- what is said about it --------------------------------------------------------------------------

    async def write_conditions(
        self, client: KubeClient, placed: frozenset[str], unmet: Mapping[str, str], now_s: float
    ) -> None:
        """Write what became of requests and buffers. `unmet`: owner -> why nothing is bought for it."""
        for request in self._list_requests():
            problem = self.problems.get(request.metadata.key, "")
            new = _judge(request, placed, problem, unmet.get(request.metadata.uid, ""), now_s)
            await _write(client, self.requests, request, new, now_s)
        for buffer in list(self.buffers.store.values()) if self.buffers is not None else ():
            problem = self.problems.get(buffer.metadata.key, "")
            owners = {f"buffer/{buffer.metadata.uid}/{number}" for number in range(buffer.spec.replicas or 0)}
            new = [
                Condition("ReadyForProvisioning", "False", "Unreadable", problem)
                if problem
                else Condition("ReadyForProvisioning", "True", "Read", ""),
                Condition("Provisioning", "True", "CapacityIsFree", "")
                if not problem and owners <= placed
                else Condition("Provisioning", "False", "CapacityIsMissing", next(
                    (unmet[each] for each in sorted(owners) if each in unmet), "")),
            ]  # fmt: skip
            await _write(client, self.buffers, buffer, new, now_s)


async def _write(
    client: KubeClient, informer: Informer[Any] | None, obj: Any, new: Iterable[Condition], now_s: float
) -> None:
    meta = obj.metadata
    now = timestamp.format_time(now_s)
    conditions = set_conditions(obj.status.conditions, tuple(new), meta.generation, now)
    if informer is None or conditions == obj.status.conditions:
        return
    kind: Resource[Any] = informer.resource
    listed = [
        {"reason": "", "message": "", "lastTransitionTime": now, **msgspec.to_builtins(each)} for each in conditions
    ]
    body = {"metadata": {"resourceVersion": meta.resourceVersion}, "status": {"conditions": listed}}
    try:
        await client.patch(kind, meta.name, body, meta.namespace, subresource="status")
    except (errors.Conflict, errors.NotFound):
        return
    except errors.KgweError as exc:
        log.warning("conditions_not_written", object=meta.key, error=str(exc))


def _says(conditions: Iterable[Condition], name: str) -> bool:
    return any(each.type == name and each.status == "True" for each in conditions)


def _since(request: ProvisioningRequest, name: str) -> float:
    found = next((each for each in request.status.conditions if each.type == name), None)
    return timestamp.epoch_seconds(found.lastTransitionTime or "") if found is not None else 0.0


def _is_settled(request: ProvisioningRequest, now_s: float) -> bool:
    """Whether nothing more is done for a request: it failed, or its booking is over."""
    said = request.status.conditions
    if _says(said, "Failed") or _says(said, "BookingExpired"):
        return True
    return _says(said, "Provisioned") and now_s - _since(request, "Provisioned") > BOOKING_S


def _find_timeout_s(request: ProvisioningRequest) -> float:
    text = request.spec.parameters.get(_TIMEOUT, "")
    return float(text) if text.isdecimal() else _DEFAULT_TIMEOUT_S


def _judge(
    request: ProvisioningRequest, placed: frozenset[str], problem: str, unmet: str, now_s: float
) -> list[Condition]:
    """Return the conditions of a request."""
    said = request.status.conditions
    if _says(said, "Failed") or _says(said, "BookingExpired"):
        return []
    if _says(said, "Provisioned"):
        if now_s - _since(request, "Provisioned") > BOOKING_S:
            return [Condition("BookingExpired", "True", "BookingExpired", f"its nodes were kept for {BOOKING_S:g} s")]
        return []
    if problem:
        return [Condition("Failed", "True", "Unreadable", problem)]
    accepted = Condition("Accepted", "True", "Accepted", f"served by KGWE as {CLASS}")
    if request.metadata.uid in placed:
        return [accepted, Condition("Provisioned", "True", "Provisioned", "all pods have a place on ready nodes")]
    age_s = now_s - timestamp.epoch_seconds(request.metadata.creationTimestamp or "")
    if age_s > _find_timeout_s(request):
        return [accepted, Condition("Failed", "True", "TimedOut", unmet or "its nodes were not ready in time")]
    reason, message = ("NotBought", unmet) if unmet else ("NodesAreComing", "nodes for all pods are bought")
    return [accepted, Condition("Provisioned", "False", reason, message)]
