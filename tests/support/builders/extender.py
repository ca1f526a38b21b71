"""The extender over a state with one node, and plain pods for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from tests.support.builders.objects import added, make, node, pod_spec

from kgwe.apps.scheduler.extender.handlers import ExtenderHandlers
from kgwe.apps.scheduler.extender.http import ExtenderApp
from kgwe.apps.scheduler.metrics import Metrics
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.kube.api import resources
from kgwe.telemetry.http import Reply, Request

if TYPE_CHECKING:
    from kgwe.kube.translate.extender_wire import BindArgs


def plain(
    name: str = "p", *, gpus: int = 2, at: str = "", notes: dict[str, str] | None = None, priority: int = 0
) -> Any:
    meta = {"name": name, "namespace": "team", "uid": f"uid-{name}", "annotations": notes or {}}
    spec = {**pod_spec(gpus, at), "priority": priority}
    return make(resources.POD.type, {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})


class Bed:
    """A state with one node, and the extender over it."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.state.on_node(added(node()))
        self.gangs = self.state.gangs
        self.now = 100.0
        self.answers = ExtenderHandlers(self.state, self.gangs, assume_s=30.0, clock=lambda: self.now)
        self.metrics = Metrics()
        self.bound: list[BindArgs] = []
        self.app = ExtenderApp(self.answers, self.metrics, bind=self._bind, sightings=self.state.pod_index.sightings)

    async def _bind(self, args: BindArgs) -> str:
        self.bound.append(args)
        return ""

    async def ask(self, path: str, body: Any) -> Any:
        sent = body if isinstance(body, bytes) else msgspec.json.encode(body)
        reply = self.app(Request("POST", path, [], sent, too_large=False))
        found = reply if isinstance(reply, Reply) else await reply
        return msgspec.json.decode(found.body)

    async def filter(self, made: Any, **more: Any) -> Any:
        return await self.ask("/filter", {"Pod": msgspec.to_builtins(made), "NodeNames": ["n1"], **more})

    def counted(self, outcome: str, verb: str = "filter") -> float:
        return float(self.metrics.extender_requests.labels(verb, outcome)._value.get())
