"""The cluster as the optimizer sees it: GPU pods with their containers, nodes, and the state that placement uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe.apps import holdings, usage_source
from kgwe.apps.optimizer.history import gpu_pods
from kgwe.cluster import offline
from kgwe.cluster.names import CLUSTER_NAMESPACE
from kgwe.cluster.state.cluster_state import selector_of
from kgwe.kube import dialects
from kgwe.kube.api import resources
from kgwe.kube.api.meta import ObjectMeta  # noqa: TC001 - read by msgspec when it decodes
from kgwe.kube.client.informer import Informer
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kgwe.apps.optimizer.history.gpu_pods import GpuPod, PodFacts
    from kgwe.apps.optimizer.history.runs import RunTracker
    from kgwe.kube.api.kgwe.gpunode import GPUNode
    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.informer import Change
    from kgwe.metrics.holdings import Holding
    from kgwe.model.usage.window import PodKey


class _NodeStatus(msgspec.Struct, frozen=True, gc=False):
    addresses: tuple[usage_source.NodeAddress, ...] = ()
    capacity: dict[str, str] = {}


class _Node(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta
    status: _NodeStatus = _NodeStatus()


class _Namespace(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta


_NAMESPACES: Final = resources.Resource("", "v1", "namespaces", "Namespace", namespaced=False, type=_Namespace)
_NODES: Final = resources.Resource("", "v1", "nodes", "Node", namespaced=False, type=_Node)


class ClusterView:
    """Informers and what they feed."""

    def __init__(self, client: KubeClient, tracker: RunTracker) -> None:
        self._client = client
        self._tracker = tracker
        self.view = offline.empty_view()
        self.pods: Informer[GpuPod] = Informer(client, gpu_pods.GPU_PODS)
        self.pods.on_change(self._on_pod)
        self._nodes: Informer[_Node] = Informer(client, _NODES)
        self._gpu_nodes: Informer[GPUNode] | None = None
        self._namespaces: Informer[_Namespace] = Informer(client, _NAMESPACES)
        self.informers: list[Informer[Any]] = [self.pods, self._nodes, self._namespaces]
        #: called with the facts of each GPU pod that changed
        self.on_pod_facts: Callable[[PodFacts], None] = lambda _facts: None

    async def add_state(self) -> None:
        """Watch the kinds that placement decides on, as far as the cluster serves them."""
        state = self.view.state
        listeners = state.listeners()
        # Only groups can be asked for; kinds of the core group are always there.
        served = set(await dialects.find_served(self._client, [kind for kind in listeners if kind.group]))
        for kind, listener in listeners.items():
            if not kind.group or kind in served:
                selector = selector_of(kind)
                informer: Informer[Any] = Informer(
                    self._client, kind, label_selector=selector.label, field_selector=selector.field
                )
                informer.on_change(listener)
                self.informers.append(informer)
                if kind is resources.GPU_NODE:
                    self._gpu_nodes = informer

    def list_exporters(self, port: int, path: str) -> Iterator[tuple[str, str]]:
        """Return node and URL of the exporter of each node with GPUs."""
        return usage_source.list_exporters(self._nodes.store.values(), port, path)

    def list_holdings(self) -> Iterator[Holding]:
        """Return the devices that pods hold, as agents report them; none without GPUNodes."""
        return holdings.list_holdings(self._gpu_nodes.store.values() if self._gpu_nodes is not None else ())

    def is_without_gpus(self, key: PodKey) -> bool:
        """Whether a pod exists and asks for no GPU; a pod that is not known may have had some."""
        pod = self.pods.store.get(f"{key.namespace}/{key.name}")
        return pod is not None and gpu_pods.read_shape(pod) is None

    def find_node(self, key: PodKey) -> str | None:
        """Return the node that a pod is bound to; None if the pod is not known or not bound."""
        pod = self.pods.store.get(f"{key.namespace}/{key.name}")
        return (pod.spec.node_name or None) if pod is not None else None

    def find_cluster_uid(self) -> str:
        """Return the UID of namespace kube-system, which tells clusters apart; empty if it is not known."""
        found = self.find_namespace(CLUSTER_NAMESPACE)
        return found.uid if found is not None else ""

    def find_namespace(self, name: str) -> ObjectMeta | None:
        """Return the metadata of a namespace; None if it is not known."""
        found = self._namespaces.store.get(name)
        return None if found is None else found.metadata

    def list_namespaces(self) -> list[ObjectMeta]:
        """Return the metadata of all namespaces that are not being deleted."""
        return [each.metadata for each in self._namespaces.store.values() if each.metadata.deletionTimestamp is None]

    def sum_offered(self) -> dict[str, int]:
        """Return resource -> how many slices and shares of GPUs nodes have in all."""
        total: dict[str, int] = {}
        for node in self._nodes.store.values():
            for name, text in node.status.capacity.items():
                if name == amounts.SHARED or name.startswith(amounts.MIG_PREFIX):
                    total[name] = total.get(name, 0) + (int(text) if text.isascii() and text.isdecimal() else 0)
        return total

    def list_share_sizes(self) -> tuple[int, ...]:
        """Return into how many shares nodes divide their GPUs."""
        return tuple(sorted({each.shares_per_gpu for each in self.view.fleet.snapshot.nodes if each.shares_per_gpu}))

    def is_spot(self, name: str) -> bool:
        """Whether a node is spot capacity; a node that is not known is not."""
        fleet = self.view.fleet
        number = fleet.snapshot.index.get(name)
        return number is not None and fleet.snapshot.nodes[number].spot

    def _on_pod(self, change: Change[GpuPod]) -> None:
        old, new = change.old, change.new
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._tracker.drop_pod(old.metadata.uid)
        if new is not None:
            facts = gpu_pods.read_facts(new)
            if facts is not None:
                self._tracker.set_pod(facts)
                self.on_pod_facts(facts)
