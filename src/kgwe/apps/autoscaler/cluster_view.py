"""The watches of the autoscaler, and the state they feed: the same that the scheduler decides on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kgwe.apps.autoscaler.capacity_requests import CapacityRequests
from kgwe.cluster import offline
from kgwe.cluster.state.cluster_state import selector_of
from kgwe.kube import dialects
from kgwe.kube.api import resources
from kgwe.kube.client.informer import Informer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.cluster.offline import View
    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.autoscalingpolicy import AutoscalingPolicy
    from kgwe.kube.api.resources import Resource
    from kgwe.kube.client.client import KubeClient


class ClusterView:
    """Informers of everything that decides where pods fit, and of the policies."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self.view: View = offline.empty_view()
        self.requests = CapacityRequests(client)
        self._policies = Informer(client, resources.AUTOSCALING_POLICY)
        self.watched: dict[Resource[Any], Informer[Any]] = {}
        self.informers: list[Informer[Any]] = [self._policies]

    async def watch(self) -> None:
        """Make the informers of all kinds that the cluster serves."""
        client, state = self._client, self.view.state
        served = set(await dialects.find_served(client, offline.OWN))
        listeners = {
            kind: listener for kind, listener in state.listeners().items() if kind not in offline.OWN or kind in served
        }
        watched = {kind: _make_informer(client, kind) for kind in listeners}
        for kind in await dialects.find_served(client):
            if kind not in watched:
                # Before the pods, so that the group of a gang is known when its first pod is read.
                watched = {kind: Informer(client, kind), **watched}
                listeners[kind] = state.gangs.on_group
            state.group_objects.add_store(kind, watched[kind].store)
        for kind, informer in watched.items():
            informer.on_change(listeners[kind])
        self.watched = watched
        self.informers += [*watched.values(), *await self.requests.watch()]

    @property
    def policies(self) -> Mapping[str, AutoscalingPolicy]:
        return self._policies.store

    @property
    def has_unread_policies(self) -> bool:
        """Whether a policy could not be read, so that others than those in `policies` may exist."""
        return self._policies.skipped > 0

    @property
    def nodes(self) -> Mapping[str, core.Node]:
        return self.watched[resources.NODE].store


def _make_informer(client: KubeClient, kind: Resource[Any]) -> Informer[Any]:
    selector = selector_of(kind)
    return Informer(client, kind, label_selector=selector.label, field_selector=selector.field)
