"""Announces changes of the cluster to subscribers: the leader, and parts of the cluster state itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.cluster.workload.workload import Key
    from kgwe.kube.api import core


def ignore(*_: Any) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class ClusterListener:
    """The calls that one subscriber gets."""

    #: a workload was added, or its object changed
    workload_changed: Callable[[Key], None] = ignore
    #: something that a workload depends on changed: its run, its pods, its priority
    workload_touched: Callable[[Key], None] = ignore
    #: the workload with this uid no longer exists
    workload_removed: Callable[[str], None] = ignore
    #: (owner, pod): a gated pod of a run waits for its seat
    pod_unseated: Callable[[str, core.Pod], None] = ignore
    #: (owner, pod): a pod of a run is being deleted, or is gone though it was bound and never started
    pod_ending: Callable[[str, core.Pod], None] = ignore
    #: (uid, pod): a pod that no workload owns was added or changed; None: it is gone, or a workload owns it now
    external_pod_changed: Callable[[str, core.Pod | None], None] = ignore
    #: resources may have become free
    capacity_freed: Callable[[], None] = ignore
    #: nodes were added, removed or changed
    nodes_changed: Callable[[], None] = ignore
    #: the kubelet of this node reports other devices for its pods
    devices_reported: Callable[[str], None] = ignore
    #: the health of this node or of its GPUs may have changed
    health_changed: Callable[[str], None] = ignore
    #: a PodDisruptionBudget changed
    budgets_changed: Callable[[], None] = ignore


class Announcer:
    """Calls every subscriber, in the order of subscription."""

    def __init__(self) -> None:
        self._listeners: tuple[ClusterListener, ...] = ()

    def subscribe(self, listener: ClusterListener) -> Callable[[], None]:
        """Call the listener from now on; returns the function that ends the subscription."""
        self._listeners = (*self._listeners, listener)

        def unsubscribe() -> None:
            self._listeners = tuple(each for each in self._listeners if each is not listener)

        return unsubscribe

    def workload_changed(self, key: Key) -> None:
        for each in self._listeners:
            each.workload_changed(key)

    def workload_touched(self, key: Key) -> None:
        for each in self._listeners:
            each.workload_touched(key)

    def workload_removed(self, uid: str) -> None:
        for each in self._listeners:
            each.workload_removed(uid)

    def pod_unseated(self, owner: str, pod: core.Pod) -> None:
        for each in self._listeners:
            each.pod_unseated(owner, pod)

    def pod_ending(self, owner: str, pod: core.Pod) -> None:
        for each in self._listeners:
            each.pod_ending(owner, pod)

    def external_pod_changed(self, uid: str, pod: core.Pod | None) -> None:
        for each in self._listeners:
            each.external_pod_changed(uid, pod)

    def capacity_freed(self) -> None:
        for each in self._listeners:
            each.capacity_freed()

    def nodes_changed(self) -> None:
        for each in self._listeners:
            each.nodes_changed()

    def devices_reported(self, node: str) -> None:
        for each in self._listeners:
            each.devices_reported(node)

    def health_changed(self, node: str) -> None:
        for each in self._listeners:
            each.health_changed(node)

    def budgets_changed(self) -> None:
        for each in self._listeners:
            each.budgets_changed()
