"""Queued plain pods: gated GPU pods of no gang wait in the queue like workloads.

deploy/admission.yaml adds the gate in namespaces with the label `kgwe.nvidia.io/fair-queue: enabled`. Such a pod is
planned as a gang of one pod, gets its seat and loses its gate. Once bound it is a plain pod again: its GPUs count
against the share of its namespace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.cluster.workload import placement_annotations
from kgwe.cluster.workload.owner import ExternalGangOwner
from kgwe.kube.dialects import Key, Membership, Size
from kgwe.kube.translate import podrequest, podspec
from kgwe.model.units import amounts as resources
from kgwe.placement.fleet.node import GPU_MILLI, Gpus
from kgwe.placement.planning.ask import Ask
from kgwe.placement.queue.workloads import gpu_milli

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.cluster.gangs.gang_group import Group
    from kgwe.kube.api import core
    from kgwe.kube.translate.podrequest import PodRequest

#: the dialect in the membership of a queued pod
QUEUED: Final = "queued pod"


def read_membership(pod: core.Pod) -> Membership | None:
    """A queued pod as a gang of one; None: kube-scheduler places it, or it is bound."""
    if pod.spec.nodeName:
        return None
    is_gated = placement_annotations.is_gated(pod)
    if not is_gated and placement_annotations.SEAT_ANNOTATION not in pod.metadata.annotations:
        return None
    key = Key(pod.metadata.namespace, "Pod", pod.metadata.name)
    if not is_gated:
        said = placement_annotations.seat_of(pod.metadata.annotations)
        if said is None or said[0] != ExternalGangOwner(key).text:
            return None
    return Membership(key, QUEUED, Size(1, 1)) if _asks_for_gpus(pod) else None


def _asks_for_gpus(pod: core.Pod) -> bool:
    try:
        return podrequest.asks_for_gpus(podspec.sum_requests(pod.spec))
    except errors.Permanent:
        return False


def is_queued(member: Membership) -> bool:
    return member.dialect == QUEUED


def ask_for(owner: str, group: Group, pod: core.Pod, found: PodRequest) -> Ask:
    return Ask(
        owner=owner,
        request=found.request,
        amounts=found.amounts,
        strategy=found.strategy or "",
        priority=pod.spec.priority,
        since=group.since,
        namespace=group.key.namespace,
        name=pod.metadata.name,
        fields=podrequest.FIELDS,
    )


class PlainPods:
    """GPUs of bound pods that belong to no gang and no workload, by namespace."""

    def __init__(self) -> None:
        #: namespace -> thousandths of a GPU
        self.held: dict[str, int] = {}
        self._counted: dict[str, tuple[str, int]] = {}  # pod uid -> namespace, milli

    def set(self, uid: str, pod: core.Pod | None) -> None:
        """Count the pod; None: it is removed, not bound, or counted elsewhere."""
        if pod is None:
            self._remove_pod(uid)
        elif uid not in self._counted:
            held = milli_of(_read_requests(pod))
            if held:
                namespace = pod.metadata.namespace
                self._counted[uid] = namespace, held
                self.held[namespace] = self.held.get(namespace, 0) + held

    def _remove_pod(self, uid: str) -> None:
        namespace, held = self._counted.pop(uid, ("", 0))
        left = self.held.get(namespace, 0) - held
        if left:
            self.held[namespace] = left
        else:
            self.held.pop(namespace, None)


def _read_requests(pod: core.Pod) -> Mapping[str, int]:
    try:
        return podspec.sum_requests(pod.spec)
    except errors.Permanent:
        return {}


def milli_of(wanted: Mapping[str, int]) -> int:
    """GPUs among these amounts, in thousandths of one; a share of unknown size counts as a whole GPU."""
    slices = sum(
        gpu_milli(Gpus(profile=name.removeprefix(resources.MIG_PREFIX), slices=count))
        for name, count in wanted.items()
        if name.startswith(resources.MIG_PREFIX) and count
    )
    return (wanted.get(resources.GPU, 0) + wanted.get(resources.SHARED, 0)) * GPU_MILLI + slices
