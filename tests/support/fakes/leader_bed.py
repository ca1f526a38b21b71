"""What a leader's controllers need, on an API server in memory: the client, the state that it feeds, and the events.

There are no informers and no controllers: the state has seen a change as soon as it is stored, unless `pause_watch` was
called. So a test decides what happens between two calls.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import msgspec
from tests.support.fakes.memory_api import Change as Stored
from tests.support.fakes.memory_api import MemoryApi

from kgwe.apps.scheduler.deps import Deps
from kgwe.apps.scheduler.metrics import Metrics
from kgwe.apps.scheduler.planning_errors import PlanningErrors
from kgwe.apps.scheduler.settings import Settings
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.cluster.workload.signatures import Signer
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.kube.client.events import EventRecorder
from kgwe.kube.client.informer import Change
from kgwe.model.units import amounts
from kgwe.telemetry.tracing import NoTracer

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.cluster.workload.effective_request import DecisionSource
    from kgwe.kube.api.resources import Resource

NAMESPACE = "team"


class LeaderBed:
    """Create and change objects through `client`; `deps` are for the controllers."""

    def __init__(self, *sources: DecisionSource, **settings: Any) -> None:
        self.api = MemoryApi()
        self.api.on_change = self._feed
        self.client = KubeClient(self.api)
        self.signer = Signer(b"k" * 32)
        self.state = ClusterState(self.signer, decision_sources=sources)
        self.metrics = Metrics()
        self._events = EventRecorder(self.client, controller="kgwe", instance="test", per_second=1e9)
        self.deps = Deps(
            client=self.client,
            state=self.state,
            gangs=self.state.gangs,
            settings=Settings(**settings),
            events=self._events,
            metrics=self.metrics,
            faults=PlanningErrors(self.metrics),
            tracer=NoTracer(),
            rng=random.Random(1),
            choosers={},
        )
        listeners = self.state.listeners()
        self._listeners = {kind.path().strip("/"): (kind, listen) for kind, listen in listeners.items()}
        self._seen: dict[tuple[str, str], Any] = {}
        self._unseen: list[Stored] | None = None
        self._changed = asyncio.Event()

    # --- the watch --------------------------------------------------------------------------------------

    def pause_watch(self) -> None:
        """The state sees no changes until `resume_watch`."""
        self._unseen = []

    def resume_watch(self) -> None:
        unseen, self._unseen = self._unseen or [], None
        for each in unseen:
            self._feed(each)

    def resume_only(self, kind: Resource[Any]) -> None:
        """The state sees what happened to objects of this kind, and nothing else until `resume_watch`."""
        unseen, self._unseen = self._unseen or [], None
        for each in unseen:
            if each.collection == kind.path().strip("/"):
                self._feed(each)
        self._unseen = [each for each in unseen if each.collection != kind.path().strip("/")]

    def _feed(self, stored: Stored) -> None:
        self._changed.set()
        if stored.collection not in self._listeners:
            return
        if self._unseen is not None:
            self._unseen.append(stored)
            return
        kind, listen = self._listeners[stored.collection]
        meta = stored.obj["metadata"]
        key = "/".join(part for part in (meta.get("namespace", ""), meta["name"]) if part)
        new = None if stored.type == "DELETED" else msgspec.convert(stored.obj, kind.type, strict=False)
        old = self._seen.pop((stored.collection, key), None)
        if new is not None:
            self._seen[stored.collection, key] = new
        listen(Change(key, old, new))

    # --- doing ------------------------------------------------------------------------------------------

    async def node(self, name: str, *, gpus: int = 8, **offered: str) -> None:
        offers = {amounts.GPU: str(gpus), "pods": "110", "cpu": "64"} | offered
        status = {"allocatable": offers, "conditions": [{"type": "Ready", "status": "True"}]}
        await self.client.create(resources.NODE, {"metadata": {"name": name}, "status": status})

    def set_ready(self, node: str, status: str) -> None:
        """`status` of the node's condition Ready: True, False or Unknown."""
        body = {"status": {"conditions": [{"type": "Ready", "status": status}]}}
        self.api.call("PATCH", f"/api/v1/nodes/{node}/status", body)

    async def workload(self, name: str = "w", *, count: int = 4, **spec: Any) -> Any:
        body = {"metadata": {"name": name}, "spec": {"gpuRequirements": {"count": count}, **spec}}
        return await self.client.create(resources.GPU_WORKLOAD, body, NAMESPACE)

    def set_status(self, kind: Resource[Any], name: str, status: dict[str, Any]) -> None:
        """Write a status, as a controller of Kubernetes does."""
        self.api.call("PATCH", f"{kind.path(namespace=NAMESPACE, name=name)}/status", {"status": status})

    # --- seeing -----------------------------------------------------------------------------------------

    def objects(self, kind: Resource[Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.api.call("GET", kind.path())["items"]
        return found

    def stored(self, kind: Resource[Any], name: str) -> dict[str, Any]:
        return self.api.call("GET", kind.path(namespace=NAMESPACE, name=name))

    async def until(self, true: Callable[[], object], timeout_s: float = 20.0) -> None:
        """Return when `true()` is, looked at after every change of an object."""
        async with asyncio.timeout(timeout_s):
            while not true():
                self._changed.clear()
                await self._changed.wait()

    async def events(self) -> list[tuple[str, str]]:
        """(reason, note) of every Event, in the order of their names."""
        await self._events.flush()
        return [(each["reason"], each["note"]) for each in self.objects(resources.EVENT)]
