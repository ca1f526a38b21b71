"""A leader on an API server in memory, with the webhook that the API server calls while it creates a pod."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
from tests.support.builders.objects import free
from tests.support.fakes import json_patches
from tests.support.fakes.leader_bed import NAMESPACE, LeaderBed

from kgwe.apps.scheduler.leader import Leader
from kgwe.apps.scheduler.pods.admission import PATH, AdmissionApp
from kgwe.kube.api import resources, timestamp
from kgwe.kube.dialects.membership import PLAN_GATE
from kgwe.kube.translate.quota_room import Quota
from kgwe.model.units import amounts
from kgwe.telemetry.messages import Reply, Request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.fakes.memory_api import Change as Stored


class OfferBed(LeaderBed):
    """Create pods with `create`, as the API server does."""

    def __init__(self, **settings: Any) -> None:
        #: changes of pods after their creation
        self.pod_writes = 0
        super().__init__(**settings)
        self.api.now = timestamp.seconds()
        self.quotas: list[Quota] = []
        self.deps = dataclasses.replace(self.deps, list_quotas=lambda: self.quotas)
        self.leader: Leader | None = None

    @contextlib.asynccontextmanager
    async def leading(self) -> AsyncIterator[Leader]:
        """One term of leadership."""
        async with Leader(self.deps) as leader:
            self.leader = leader
            yield leader
        self.leader = None

    async def ask(self, pod: dict[str, Any], namespace: str = NAMESPACE, **more: Any) -> dict[str, Any]:
        """Return the pod as the answer of the webhook changes it; without a leader nothing changes it."""
        if self.leader is None:
            return pod
        app = AdmissionApp(self.leader.offers, self.metrics)
        request = {"uid": "u", "namespace": namespace, "operation": "CREATE", "object": pod} | more
        found = app(Request("POST", PATH, [], msgspec.json.encode({"request": request}), too_large=False))
        reply = found if isinstance(found, Reply) else await found
        answer = msgspec.json.decode(reply.body)["response"]
        assert answer["allowed"]
        patch = msgspec.json.decode(base64.b64decode(answer.get("patch", "W10=")))
        changed: dict[str, Any] = json_patches.apply(pod, patch)
        return changed

    async def create(self, name: str, gang: str = "g", size: int = 4, **more: Any) -> dict[str, Any]:
        """Create one pod of a gang through the webhook; returns it as it is stored."""
        namespace = more.pop("namespace", NAMESPACE)
        body = await self.ask(make_member(name, gang, size, **more), namespace)
        return await self.store(body, namespace)

    async def store(self, body: dict[str, Any], namespace: str = NAMESPACE) -> dict[str, Any]:
        await self.client.create(resources.POD, body, namespace)
        return self.api.call("GET", resources.POD.path(namespace=namespace, name=body["metadata"]["name"]))

    def pod(self, name: str) -> dict[str, Any]:
        return self.stored(resources.POD, name)

    def set_quota(self, namespace: str = NAMESPACE, used: str = "0", **hard: str) -> None:
        """Set a ResourceQuota; `hard`: its only entry, with __ for a slash and _ for a dot."""
        names = {name.replace("__", "/").replace("_", "."): value for name, value in hard.items()}
        status = {"hard": names, "used": dict.fromkeys(names, used)}
        self.quotas.append(msgspec.convert({"metadata": {"namespace": namespace}, "status": status}, Quota))

    def count_offers(self, outcome: str) -> float:
        return self.metrics.registry.get_sample_value("kgwe_seat_offers_total", {"outcome": outcome}) or 0.0

    def _feed(self, stored: Stored) -> None:
        self.pod_writes += stored.type == "MODIFIED" and stored.collection == resources.POD.path().strip("/")
        super()._feed(stored)

    def count_free(self) -> int:
        """Return the GPUs that the ledger has free; its books balance."""
        return sum(free(self.state).values())

    def find_overbooked(self) -> list[str]:
        """Return nodes whose pods ask for more GPUs than the node has, by what the pods are pinned to."""
        held: Counter[str] = Counter()
        for pod in self.objects(resources.POD):
            if node := read_node(pod):
                held[node] += int(pod["spec"]["containers"][0]["resources"]["limits"][amounts.GPU])
        return [node for node, gpus in held.items() if gpus > 8]


def make_member(name: str, gang: str = "g", size: int = 4, *, gpus: int = 4, rank: int | None = None) -> dict[str, Any]:
    """Return a pod as the policy kgwe-gang-gate leaves it: with the gate."""
    notes = {"kgwe.nvidia.io/gang": gang, "kgwe.nvidia.io/gang-size": str(size)}
    if rank is not None:
        notes["kgwe.nvidia.io/rank"] = str(rank)
    container = {"name": "main", "image": "i", "resources": {"limits": {amounts.GPU: str(gpus)}}}
    spec = {"schedulerName": "default-scheduler", "containers": [container], "schedulingGates": [{"name": PLAN_GATE}]}
    return {"metadata": {"name": name, "annotations": notes}, "spec": spec}


def read_node(pod: dict[str, Any]) -> str:
    """Return the node that a pod is bound or pinned to; empty: none."""
    terms = (
        pod["spec"]
        .get("affinity", {})
        .get("nodeAffinity", {})
        .get("requiredDuringSchedulingIgnoredDuringExecution", {})
        .get("nodeSelectorTerms", [])
    )
    fields = [line["values"][0] for term in terms for line in term.get("matchFields", ())]
    return pod["spec"].get("nodeName") or next(iter(fields), "")


def is_gated(pod: dict[str, Any]) -> bool:
    return bool(pod["spec"].get("schedulingGates"))
