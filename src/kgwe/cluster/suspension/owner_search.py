"""Finds the owner of a pod that has to be suspended: the last one that its owner references lead to.

Owner references are claims: the API server does not check them. Each step needs an owner with the uid in the reference.
Owners with a selector must select the pod, and a GPUWorkload must name the run in its status.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.cluster.suspension import owner_kinds

if TYPE_CHECKING:
    from kgwe.cluster.suspension.owner_kinds import OwnerKind
    from kgwe.kube.api import core
    from kgwe.kube.api.meta import ObjectMeta, OwnerReference
    from kgwe.kube.api.owners import OwnerObject
    from kgwe.kube.client.client import KubeClient

# Pod, StatefulSet, LeaderWorkerSet and one more is the longest chain that is known.
_MOST_OWNERS: Final = 6


@dataclass(frozen=True, slots=True)
class Owner:
    """An object that can be suspended."""

    kind: OwnerKind
    obj: OwnerObject
    #: the owners between it and the pod
    between: tuple[tuple[OwnerKind, str], ...] = ()

    @property
    def meta(self) -> ObjectMeta:
        return self.obj.metadata

    @property
    def title(self) -> str:
        return f"{self.kind.resource.kind} {self.meta.key}"


@dataclass(frozen=True, slots=True)
class NoOwner:
    """Why a pod cannot be stopped through an owner."""

    reason: str
    message: str


async def find_owner(client: KubeClient, pod: core.Pod) -> Owner | NoOwner:
    """The owner of the pod to suspend."""
    found: Owner | None = None
    child = pod.metadata
    seen = {child.uid}
    for _ in range(_MOST_OWNERS):
        reference = child.controller
        if reference is None or (found is not None and _is_cron_job(reference)):
            break
        step = await _read_owner(client, pod, child, reference)
        if isinstance(step, NoOwner):
            return step
        if step.meta.uid in seen:
            return NoOwner("OwnerCycle", f"the owner references of pod {pod.metadata.key} form a circle")
        seen.add(step.meta.uid)
        between = () if found is None else (*found.between, (found.kind, found.meta.name))
        found, child = Owner(step.kind, step.obj, between), step.meta
    else:
        return NoOwner("TooManyOwners", f"pod {pod.metadata.key} has more than {_MOST_OWNERS} owners above it")
    if found is None:
        return NoOwner("BarePod", f"pod {pod.metadata.key} has no controller; KGWE does not stop such pods")
    return found


async def climb_owners(client: KubeClient, owner: Owner) -> Owner:
    """The last owner above an object that exists and can be suspended; the object itself if there is none."""
    seen = {owner.meta.uid}
    for _ in range(_MOST_OWNERS):
        reference = owner.meta.controller
        kind = owner_kinds.kind_of_reference(reference) if reference is not None else None
        if reference is None or kind is None or reference.uid in seen:
            break
        try:
            obj = await client.get(kind.resource, reference.name, owner.meta.namespace)
        except errors.NotFound:
            break
        if obj.metadata.uid != reference.uid:
            break
        seen.add(reference.uid)
        owner = Owner(kind, obj)
    return owner


def _is_cron_job(reference: OwnerReference) -> bool:
    """A CronJob creates Jobs and does not change them: the Job is suspended."""
    return reference.kind == "CronJob" and reference.apiVersion.startswith("batch/")


async def _read_owner(
    client: KubeClient, pod: core.Pod, child: ObjectMeta, reference: OwnerReference
) -> Owner | NoOwner:
    title = f"{reference.kind} {reference.name}"
    kind = owner_kinds.kind_of_reference(reference)
    if kind is None:
        return NoOwner("UnsupportedOwner", f"{title} is of a kind that KGWE cannot suspend")
    try:
        obj = await client.get(kind.resource, reference.name, pod.metadata.namespace)
    except errors.NotFound:
        return NoOwner("OwnerMissing", f"{title}, the owner of {child.key}, does not exist")
    if obj.metadata.uid != reference.uid:
        return NoOwner("OwnerMissing", f"{title} is not the object that owns {child.key}: another one has its name")
    if obj.metadata.deletionTimestamp is not None:
        return NoOwner("OwnerEnding", f"{title} is being deleted")
    if not _owns(kind, obj, pod, child):
        return NoOwner("NotItsOwner", f"pod {pod.metadata.key} names {title} as its owner, which does not own it")
    return Owner(kind, obj)


def _owns(kind: OwnerKind, obj: OwnerObject, pod: core.Pod, child: ObjectMeta) -> bool:
    """Whether the owner agrees that it owns the child."""
    if kind.is_gpu_workload:
        return bool(child.name) and obj.status.jobName == child.name
    if not kind.has_selector:
        return True
    selector = obj.spec.selector
    is_empty = selector is None or not (selector.matchLabels or selector.matchExpressions)
    return selector is not None and not is_empty and selector.selects(pod.metadata.labels)
