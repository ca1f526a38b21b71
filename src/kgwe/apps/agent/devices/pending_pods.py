"""Finds the pods that a device plugin call may be for, and the devices each of them lacks.

The kubelet does not name the pod. It admits one pod after another, and lists pods with their devices on its
pod-resources socket: the pod of the call is listed there and lacks devices. Without that socket, the candidates are
pods that the API server shows on this node and that have not started.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from kgwe.apps.agent import node_pods
from kgwe.model.devices import assignment
from kgwe.model.devices.holdings import PodDevices
from kgwe.placement.devices.whole import Ask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kgwe.apps.agent.devices.advice import AdviceBook
    from kgwe.apps.agent.node_pods import PodSource
    from kgwe.kube.api import core
    from kgwe.model.devices.advertised import OfferedDevice

# The kubelet waits for the reply, and other pods wait for the kubelet.
_LOOK_UP_S: Final = 1.0
_PENDING: Final = ("", "Pending")


class PendingPods(NamedTuple):
    #: pods that the kubelet knows; those that lack devices may be the pod of the call
    known: list[Ask]
    #: pods bound to this node that the kubelet does not list yet
    to_come: list[Ask]

    @property
    def asking(self) -> list[Ask]:
        return [ask for ask in self.known if ask.sizes]


async def find_pending_pods(
    resource: str,
    offers: Mapping[str, OfferedDevice],
    listed: Sequence[PodDevices] | None,
    pods: PodSource,
    book: AdviceBook,
) -> PendingPods:
    """Return the pods that may want devices of this resource. `listed` is None if the kubelet does not list
    devices."""
    here = {pod.metadata.key: pod for pod in pods.pods() if not node_pods.is_over(pod)}
    reader = _Reader(resource, offers, book)
    if listed is None:
        return PendingPods([reader.read(pod, None) for pod in here.values() if pod.status.phase in _PENDING], [])
    known = {each.key: here.pop(each.key, None) for each in listed}
    # Not yet seen by the watch, or the watch still shows an older pod with the same name.
    doubtful = [each for each in listed if (pod := known[each.key]) is None or pod.metadata.deletionTimestamp]
    known |= await _look_up(pods, doubtful)
    asks = [
        reader.read(pod, each) for each in listed if (pod := known[each.key]) is not None and not node_pods.is_over(pod)
    ]
    unseen = [pod for pod in here.values() if pod.status.phase in _PENDING]
    nothing = [PodDevices(pod.metadata.namespace, pod.metadata.name) for pod in unseen]
    return PendingPods(asks, [reader.read(pod, each) for pod, each in zip(unseen, nothing, strict=True)])


async def _look_up(pods: PodSource, wanted: Sequence[PodDevices]) -> dict[str, core.Pod | None]:
    """Return the pods that the API server returns in time; None for the others."""
    asked = {each.key: asyncio.ensure_future(pods.find(each.namespace, each.name)) for each in wanted}
    if asked:
        _, late = await asyncio.wait(asked.values(), timeout=_LOOK_UP_S)
        for task in late:
            task.cancel()
    return {key: task.result() if task.done() and not task.cancelled() else None for key, task in asked.items()}


class _Reader:
    """Reads the devices that a pod requests, holds and was planned."""

    def __init__(self, resource: str, offers: Mapping[str, OfferedDevice], book: AdviceBook) -> None:
        self._resource = resource
        self._offers = offers
        self._book = book

    def read(self, pod: core.Pod, listed: PodDevices | None) -> Ask:
        """`listed` is the pod as the kubelet lists it; None if the kubelet does not list devices."""
        key, resource = pod.metadata.key, self._resource
        has = frozenset(listed.ids(resource)) if listed is not None else self._book.granted_devices(resource, key)
        return Ask(
            key,
            tuple(self._missing_sizes(pod, listed, has)),
            self._planned_devices(pod),
            has,
            pod.metadata.creationTimestamp or "",
            uid=pod.metadata.uid,
            advised=self._book.count_tries(resource, key),
            lacks=node_pods.count_peak(pod, resource) - len(has),
        )

    def _missing_sizes(self, pod: core.Pod, listed: PodDevices | None, has: frozenset[str]) -> list[int]:
        """Return the device counts of containers that have none yet."""
        wanted = node_pods.count_requested(pod, self._resource)
        if listed is None and len(has) >= sum(wanted.values()):
            return []
        served = frozenset(each.name for each in listed.containers if each.ids(self._resource)) if listed else ()
        if served:
            # Init containers ran before the containers that are listed; their devices are not listed any more.
            early = node_pods.init_containers(pod)
            return [count for name, count in wanted.items() if name not in served and name not in early]
        sizes = list(wanted.values())
        for grant in self._book.list_unlisted_grants(self._resource, pod.metadata.key, pod.metadata.uid, has):
            if len(grant.devices) in sizes:
                sizes.remove(len(grant.devices))
        return sizes

    def _planned_devices(self, pod: core.Pod) -> frozenset[str]:
        """Return the devices of this resource in the pod's plan.

        The agent has no key to verify the plan's signature. A plan with more GPUs or slices than the pod requests was
        not written by KGWE and is ignored.
        """
        plan = assignment.parse_planned(pod.metadata.annotations)
        if not plan:
            return frozenset()
        slices = set(plan.slices)
        found = [
            each
            for each in self._offers.values()
            if (plan.gpus >> each.gpu & 1 if each.start is None else (each.gpu, each.start) in slices)
        ]
        if len({(each.gpu, each.start) for each in found}) > node_pods.count_peak(pod, self._resource):
            return frozenset()
        return frozenset(each.id for each in found)
