"""A cluster in memory: objects the informers would show, an API that takes what the controller writes, and agents that
cut what it asks."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import msgspec

from kgwe import errors
from kgwe.apps.mig.claims import Claims
from kgwe.apps.mig.controller import Controller
from kgwe.apps.mig.settings import Settings
from kgwe.apps.mig.stores import Stores
from kgwe.kube.api import resources
from kgwe.kube.api.kgwe.gpunode import CardSpec, MIGLayout
from kgwe.kube.client.client import DisruptionBudgetRefused
from kgwe.kube.translate import mig_layouts
from kgwe.local.fleet import gpunodes, mig_layout, models
from kgwe.model.simfleet import inventory
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe import gpunode
    from kgwe.kube.api.kgwe.gpuworkload import GPUWorkload
    from kgwe.kube.api.kgwe.migstrategy import MIGStrategy
    from kgwe.kube.api.resource import ResourceClaim
    from kgwe.kube.client.events import Event

POOL = "a100-mig"
"""Eight cards, each 3g.40gb@0 2g.20gb@4 1g.10gb@6."""


class World:
    """Some nodes of one pool of `hgx-a100`; what every card is cut into can be said."""

    def __init__(self, nodes: int = 1, pool: str = POOL, cards: int = 2, **settings: Any) -> None:
        self.gpu_nodes: dict[str, gpunode.GPUNode] = {}
        self.nodes: dict[str, core.Node] = {}
        self.pods: dict[str, core.Pod] = {}
        self.strategies: dict[str, MIGStrategy] = {}
        self.workloads: dict[str, GPUWorkload] = {}
        self.owned: dict[str, tuple[CardSpec, ...]] = {}
        self._version = itertools.count(1)
        self.writes: list[str] = []
        self.evicted: list[str] = []
        self.budgeted: set[str] = set()
        self.is_down = False
        self.claimed: dict[str, ResourceClaim] = {}
        self.claims = Claims(self.claimed, lambda pool, device: (pool, device))
        self.events: list[Event] = []
        self.now = 1000.0
        built = [each for each in inventory.expand_fleet(models.load("hgx-a100"), 8 * nodes) if each.pool.name == pool]
        for each in built[:nodes]:
            self._add(each, cards)
        self.start(**settings)

    def start(self, **settings: Any) -> None:
        """The controller, or another in its place: what the last one remembered is gone."""
        self.controller = Controller(
            self,  # type: ignore[arg-type] # takes what a controller writes
            Settings(**{"cooldown_seconds": 0.0, "enable_prewarming": False, **settings}),
            Stores(self.strategies, self.nodes, self.gpu_nodes, self.pods, self.workloads, self.claims),
            record=self.events.append,
            clock=lambda: self.now,
            wall=lambda: self.now,
        )

    def _add(self, built: inventory.FleetNode, cards: int) -> None:
        manifest = gpunodes.node_manifest(built, now="2026-01-01T00:00:00Z")
        self.nodes[built.name] = msgspec.convert(manifest, resources.NODE.type)
        obj = gpunodes.gpu_node(built, "uid")
        status = msgspec.structs.replace(obj.status, gpus=obj.status.gpus[:cards])
        self._put(msgspec.structs.replace(obj, status=status))

    def _put(self, obj: gpunode.GPUNode) -> gpunode.GPUNode:
        meta = msgspec.structs.replace(
            obj.metadata, resourceVersion=str(next(self._version)), uid=f"uid-{obj.metadata.name}"
        )
        self.gpu_nodes[obj.metadata.name] = stored = msgspec.structs.replace(obj, metadata=meta)
        return stored

    # --- the API ----------------------------------------------------------------------------------------

    async def apply(self, resource: object, body: Mapping[str, Any]) -> gpunode.GPUNode:
        del resource
        name = body["metadata"]["name"]
        assert body["metadata"]["uid"] == f"uid-{name}"
        self.writes.append(f"node {name}")
        old = self.gpu_nodes[name]
        cards = msgspec.convert({"cards": body["spec"].get("cards", [])}, type(old.spec)).cards
        if not cards:
            cards = self.owned.get(name, ())  # fields of other managers stay
        return self._put(msgspec.structs.replace(old, spec=msgspec.structs.replace(old.spec, cards=cards)))

    async def patch(self, resource: object, name: str, body: Mapping[str, Any], *, subresource: str) -> None:
        del resource
        assert subresource == "status"
        self.writes.append(f"status {name}")
        old = self.strategies[name]
        shares = body["status"]["currentDistribution"]
        status = {**msgspec.to_builtins(old.status), **body["status"]}
        status["currentDistribution"] = {key: value for key, value in shares.items() if value is not None}
        self.strategies[name] = msgspec.structs.replace(old, status=msgspec.convert(status, type(old.status)))

    async def create(self, resource: object, body: Mapping[str, Any], *_: str, **__: str) -> None:
        """An eviction: the pod is on its way out, or a budget keeps it."""
        assert resource is resources.EVICTION
        name = body["metadata"]["name"]
        pod = self.pods[name]
        assert body["deleteOptions"] == {"preconditions": {"uid": pod.metadata.uid}}
        if self.is_down:
            raise errors.Transient("connection refused")
        if name in self.budgeted:
            raise DisruptionBudgetRefused("Cannot evict pod as it would violate the pod's disruption budget.")
        self.evicted.append(name)
        leaving = msgspec.structs.replace(pod.metadata, deletionTimestamp="1970-01-01T00:20:00Z")
        self.pods[name] = msgspec.structs.replace(pod, metadata=leaving)

    # --- what happens -----------------------------------------------------------------------------------

    def strategy(self, name: str = "s", *, shares: Mapping[str, float] | None = None, **spec: Any) -> None:
        body = {
            "metadata": {"name": name, "generation": 1},
            "spec": {"profileDistribution": shares or {"1g.10gb": 1.0}, **spec},
        }
        self.strategies[name] = msgspec.convert(body, resources.MIG_STRATEGY.type)

    def pod(
        self,
        name: str,
        profile: str,
        count: int = 1,
        node: str = "",
        annotations: Mapping[str, str] | None = None,
        owner: str = "ReplicaSet",
        **spec: Any,
    ) -> None:
        waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        resource = f"{amounts.MIG_PREFIX}{profile}" if profile else amounts.GPU
        body = {
            "metadata": {
                "name": name,
                "namespace": "team",
                "uid": name,
                "creationTimestamp": "1970-01-01T00:10:00Z",
                "annotations": annotations or {},
                "ownerReferences": [
                    {"apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "o", "controller": True}
                ]
                if owner
                else [],
            },
            "spec": {
                "nodeName": node,
                "containers": [{"name": "main", "resources": {"limits": {resource: str(count)}}}],
                **spec,
            },
            "status": {"phase": "Running", "startTime": "1970-01-01T00:10:00Z"}
            if node
            else {"phase": "Pending", "conditions": [waiting]},
        }
        self.pods[name] = msgspec.convert(body, resources.POD.type)

    def workload(self, name: str, profile: str, count: int = 1, phase: str = "Pending", **status: Any) -> None:
        """`profile`: of the slices in its spec; empty: it asks for `count` whole GPUs."""
        wanted = {"mig": {"profile": profile, "count": count}} if profile else {"count": count}
        body = {
            "metadata": {"name": name, "namespace": "team", "uid": name},
            "spec": {"gpuRequirements": wanted},
            "status": {"phase": phase, **status},
        }
        self.workloads[name] = msgspec.convert(body, resources.GPU_WORKLOAD.type)

    def relabel(self, node: str, **labels: str | None) -> None:
        old = self.nodes[node]
        kept = {**old.metadata.labels, **{key: value for key, value in labels.items() if value is not None}}
        for key in (key for key, value in labels.items() if value is None):
            kept.pop(key, None)
        metadata = msgspec.structs.replace(old.metadata, labels=kept)
        self.nodes[node] = msgspec.structs.replace(old, metadata=metadata)

    def set_status(self, node: str, **changes: Any) -> None:
        old = self.gpu_nodes[node]
        self._put(msgspec.structs.replace(old, status=msgspec.structs.replace(old.status, **changes)))

    def own(self, node: str, *places: str) -> None:
        """An administrator writes the spec of card 0."""
        old = self.gpu_nodes[node]
        self.owned[node] = (CardSpec(old.status.gpus[0].uuid, MIGLayout(enabled=True, instances=places)),)
        spec = msgspec.structs.replace(old.spec, cards=self.owned[node])
        self._put(msgspec.structs.replace(old, spec=spec))

    def agents(self, *held: str) -> None:
        """Every agent does what it can; `held` are UUIDs that pods have."""
        for obj in list(self.gpu_nodes.values()):
            status = asyncio.run(mig_layout.apply_layout(obj, frozenset(held)))
            self._put(msgspec.structs.replace(obj, status=status))

    def round(self) -> list[str]:
        """One round; what it wrote."""
        self.writes.clear()
        self.now += 1
        asyncio.run(self.controller.reconcile())
        return list(self.writes)

    def settle(self, rounds: int = 20) -> None:
        """Controller and agents in turn, until nobody has anything left to do."""
        for _ in range(rounds):
            before = [obj.status for obj in self.gpu_nodes.values()]
            self.agents()
            is_still = before == [obj.status for obj in self.gpu_nodes.values()]
            if not self.round() and is_still:
                return
        raise AssertionError(f"no rest: {self.writes}")

    # --- what became of it ------------------------------------------------------------------------------

    def cuts(self, node: int = 0) -> list[str]:
        gpus = list(self.gpu_nodes.values())[node].status.gpus
        return [
            " ".join(f"{each.profile}@{each.start}" for each in device.mig.instances) if device.mig.enabled else "whole"
            for device in gpus
        ]

    def wishes(self, node: int = 0) -> list[str]:
        layouts = mig_layouts.read_layouts(list(self.gpu_nodes.values())[node])
        return [" ".join(layout.instances) if layout.enabled else "whole" for layout in layouts.values()]

    def ready(self, name: str = "s") -> tuple[str, str, str]:
        (condition,) = self.strategies[name].status.conditions
        return condition.status, condition.reason, condition.message
