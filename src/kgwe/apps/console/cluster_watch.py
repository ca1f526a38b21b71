"""The cluster as the console knows it: informers that feed the state, and what changed since the last look."""

from __future__ import annotations

import asyncio
import functools
import time
from typing import TYPE_CHECKING, Any, Final

from kgwe.cluster import offline
from kgwe.cluster.state.cluster_state import selector_of
from kgwe.kube import dialects
from kgwe.kube.api import resources
from kgwe.kube.client.informer import Informer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kgwe.apps.console.scope import Scope
    from kgwe.cluster.offline import View
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.httpapi.authorization import Readable
    from kgwe.kube.api.resources import Resource
    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.informer import Change

# Kinds of the console alone.
_MORE: Final[tuple[Resource[Any], ...]] = (resources.GPU_BUDGET, resources.AUTOSCALING_POLICY)
# Kinds that lists show.
_LISTED: Final = frozenset({resources.GPU_WORKLOAD, resources.WARP_GPU_WORKLOAD, resources.POD, *_MORE})
# Changes of these may concern any node.
_WIDE: Final = frozenset({resources.JOB, resources.SCHEDULER_CONFIG, resources.TOPOLOGY_DOMAIN, resources.DEPLOYMENT})
_BY_NODE: Final = frozenset({resources.NODE, resources.GPU_NODE})


class ClusterWatch:
    """Informers of all kinds, the state that they feed, and the names of what changed."""

    def __init__(self, client: KubeClient, *, clock: Callable[[], float] = time.time) -> None:
        self._client = client
        self._clock = clock
        self._live = offline.empty_view()
        self._informers: dict[Resource[Any], Informer[Any]] = {}
        self._gang_kinds: list[Resource[Any]] = []
        #: nodes that changed, and (kind, namespace) of other objects; the stream takes them
        self.nodes: set[str] = set()
        self.lists: set[tuple[Resource[Any], str]] = set()
        self.is_wide = True
        self.changed = asyncio.Event()
        #: raised by every change
        self.version = 0

    @property
    def state(self) -> ClusterState:
        return self._live.state

    @property
    def informers(self) -> list[Informer[Any]]:
        return list(self._informers.values())

    @functools.cached_property
    def stores(self) -> Mapping[Resource[Any], Mapping[str, Any]]:
        """Kind -> objects by key; complete after `prepare`."""
        return {kind: informer.store for kind, informer in self._informers.items()}

    async def prepare(self) -> None:
        """Find the kinds that the API server has, and make an informer for each."""
        state = self.state
        optional = (*offline.OWN, *_MORE)
        served = set(await dialects.find_served(self._client, optional))
        listeners = {
            kind: listener for kind, listener in state.listeners().items() if kind not in optional or kind in served
        }
        for kind in await dialects.find_served(self._client):
            if kind not in listeners:
                # Before the pods, so that the group of a gang is known when its first pod is read.
                listeners = {kind: state.gangs.on_group, **listeners}
            if kind is not resources.JOB:
                self._gang_kinds.append(kind)
        for kind, listener in listeners.items():
            informer = self._informers[kind] = self._make_informer(kind)
            informer.on_change(listener)
        for kind in (*self._gang_kinds, resources.JOB):
            state.group_objects.add_store(kind, self._informers[kind].store)
        for kind in _MORE:
            if kind in served:
                self._informers[kind] = self._make_informer(kind)
        for kind, informer in self._informers.items():
            informer.on_change(functools.partial(self._note_change, kind))

    def _make_informer(self, kind: Resource[Any]) -> Informer[Any]:
        selector = selector_of(kind)
        return Informer(self._client, kind, label_selector=selector.label, field_selector=selector.field)

    def describe_unsynced(self) -> str | None:
        """Return which kinds were not listed yet; None: all were."""
        behind = [kind.plural for kind, informer in self._informers.items() if not informer.has_synced]
        return f"waiting for first list of {', '.join(behind)}" if behind or not self._informers else None

    def list_namespaces(self) -> set[str]:
        """Return all namespaces that objects are in."""
        kinds = (resources.POD, resources.GPU_WORKLOAD, resources.WARP_GPU_WORKLOAD, resources.GPU_BUDGET)
        return {obj.metadata.namespace for kind in kinds for obj in list(self.stores.get(kind, {}).values())}

    def _note_change(self, kind: Resource[Any], change: Change[Any]) -> None:
        self.version += 1
        if kind in _BY_NODE:
            self.nodes.add(change.key)
        elif kind is resources.POD:
            self.nodes.update(pod.spec.nodeName for pod in (change.old, change.new) if pod is not None)
        elif kind in _WIDE:
            self.is_wide = True
        if kind in _LISTED:
            obj = change.new or change.old
            self.lists.add((kind, obj.metadata.namespace if obj is not None else ""))
        self.changed.set()

    # --- views to plan on -------------------------------------------------------------------------------

    def copy_objects(self) -> dict[Resource[Any], list[Any]]:
        """Return all objects, for a view that others may change."""
        return {kind: list(store.values()) for kind, store in self.stores.items()}

    def build_view(self, found: Mapping[Resource[Any], Iterable[Any]]) -> View:
        """Return a view of the whole cluster. Slow for large clusters: call it in a thread."""
        return offline.make_view(found, self._gang_kinds, self._clock())

    def build_namespace(self, namespace: str, scope: Scope) -> View:
        """Return a view of what a user may list in one namespace. Nothing can be planned on it."""
        rights: dict[Resource[Any], Readable] = {
            resources.POD: scope.pods,
            resources.GPU_WORKLOAD: scope.workloads,
            resources.WARP_GPU_WORKLOAD: scope.warp_workloads,
            resources.JOB: scope.jobs,
        }
        found = {
            kind: [each for each in self.stores.get(kind, {}).values() if each.metadata.namespace == namespace]
            for kind, readable in rights.items()
            if readable.covers(namespace)
        }
        return offline.make_view(found, (), self._clock(), namespace=namespace)
