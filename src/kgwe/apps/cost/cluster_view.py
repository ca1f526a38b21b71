"""The watches of the cost engine, and the meter they feed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe.apps.cost.cluster_meter import ClusterMeter, Stores
from kgwe.apps.cost.devices import KnownDevices
from kgwe.apps.cost.nodes import COST_NODES
from kgwe.apps.cost.pods import COST_PODS
from kgwe.apps.cost.quotas import QUOTAS
from kgwe.kube import dialects
from kgwe.kube.api import resources
from kgwe.kube.api.meta import ObjectMeta  # noqa: TC001 - read by msgspec when it decodes
from kgwe.kube.client.informer import Informer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kgwe.apps.cost.nodes import CostNode
    from kgwe.apps.cost.quotas import Quota
    from kgwe.costing.attribution import AttributionRules
    from kgwe.costing.prices.book import PriceBook
    from kgwe.kube.api.kgwe.gpunode import GPUNode
    from kgwe.kube.api.resource import ResourceClaim, ResourceSlice
    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.informer import Change


class _Namespace(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta


_NAMESPACES: Final = resources.Resource("", "v1", "namespaces", "Namespace", namespaced=False, type=_Namespace)


class ClusterView:
    """Informers of nodes, pods and namespaces, and of GPUNodes and claims if the cluster has them."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._nodes = Informer(client, COST_NODES)
        self._pods = Informer(client, COST_PODS)
        self._namespaces = Informer(client, _NAMESPACES)
        self._gpu_nodes: Informer[GPUNode] = Informer(client, resources.GPU_NODE)
        self._quotas = Informer(client, QUOTAS)
        self._claims: Informer[ResourceClaim] = Informer(client, resources.RESOURCE_CLAIM)
        self.informers: list[Informer[Any]] = [self._nodes, self._pods, self._namespaces, self._quotas]
        self._devices = KnownDevices()
        self._meter: ClusterMeter | None = None
        self._nodes.on_change(lambda change: self._tell("on_node", change))
        self._pods.on_change(lambda change: self._tell("on_pod", change))
        self._gpu_nodes.on_change(lambda change: self._tell("on_gpu_node", change))
        self._claims.on_change(lambda change: self._tell("on_claim", change))

    async def add_optional_kinds(self) -> None:
        """Watch GPUNodes and ResourceClaims, as far as the cluster serves them."""
        kinds = (resources.GPU_NODE, resources.RESOURCE_SLICE, resources.RESOURCE_CLAIM)
        served = set(await dialects.find_served(self._client, kinds))
        if resources.GPU_NODE in served:
            self.informers.append(self._gpu_nodes)
        if {resources.RESOURCE_SLICE, resources.RESOURCE_CLAIM} <= served:
            slices: Informer[ResourceSlice] = Informer(self._client, resources.RESOURCE_SLICE)
            slices.on_change(self._on_slice)
            self.informers += [slices, self._claims]

    def start_meter(
        self, settled_s: int, rules: AttributionRules, clock: Callable[[], float], book: PriceBook | None = None
    ) -> ClusterMeter:
        """Return a meter that gets all changes from now on."""
        stores = Stores(
            self._nodes.store, self._pods.store, self._gpu_nodes.store, self._claims.store, self._namespaces.store
        )
        self._meter = ClusterMeter(
            stores, rules=rules, settled_s=settled_s, clock=clock, devices=self._devices, book=book
        )
        return self._meter

    def list_nodes(self) -> Iterator[CostNode]:
        """Yield all nodes."""
        yield from self._nodes.store.values()

    def list_gpu_nodes(self) -> Iterator[GPUNode]:
        """Yield what agents report."""
        yield from self._gpu_nodes.store.values()

    def list_quotas(self) -> Iterator[Quota]:
        """Yield all ResourceQuotas."""
        yield from self._quotas.store.values()

    def stop_meter(self) -> None:
        """Tell the meter nothing more."""
        self._meter = None

    def _tell(self, name: str, change: Change[Any]) -> None:
        if self._meter is not None:
            getattr(self._meter, name)(change)

    def _on_slice(self, change: Change[ResourceSlice]) -> None:
        for node in self._devices.set_slice(change.key, change.new):
            if self._meter is not None:
                self._meter.on_devices(node)
