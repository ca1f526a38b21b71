"""The simulated cloud passes the contract of providers."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from tests.support.contracts.provider import CONTRACT
from tests.support.fakes.memory_api import MemoryApi

from kgwe.cloud import kwok
from kgwe.cloud.kwok import KwokProvider
from kgwe.cloud.provider import CapacityType, LaunchErrorKind, LaunchRequest
from kgwe.kube.client.client import KubeClient
from kgwe.local.fleet import models
from kgwe.local.fleet.cloud import CloudRules, SimulatedCloud

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kgwe.cloud.provider import Provider

_PLACE = "/api/v1/namespaces/kgwe-system/configmaps"


class KwokBed:
    """A provider, the simulated cloud, and the API server between them."""

    kinds = (
        LaunchErrorKind.NO_CAPACITY,
        LaunchErrorKind.QUOTA,
        LaunchErrorKind.LIMIT,
        LaunchErrorKind.AUTHENTICATION,
        LaunchErrorKind.THROTTLED,
        LaunchErrorKind.TRANSIENT,
    )

    def __init__(self) -> None:
        self.api = MemoryApi()
        self.client = KubeClient(self.api)
        self.cloud = SimulatedCloud(self.client, [models.load("mixed")], CloudRules(launch_delay_s=0.0))
        self.provider = KwokProvider(self.client)

    def reopen(self) -> Provider:
        return KwokProvider(self.client)

    @staticmethod
    def make_request(request_id: str, count: int = 1, *, atomic: bool = False) -> LaunchRequest:
        return LaunchRequest(
            request_id=request_id, pool="h100", instance_type="p5.48xlarge", zone="us-east-1a", count=count,
            atomic=atomic, capacity_type=CapacityType.SPOT,
        )  # fmt: skip

    def set_capacity(self, instances: int) -> None:
        self.cloud.rules.stock = {"*": self.count_alive() + instances}

    def fail_next(self, kind: LaunchErrorKind) -> None:
        rules = self.cloud.rules
        rules.stock = {"*": 0} if kind is LaunchErrorKind.NO_CAPACITY else {}
        rules.quota = {"*": 0} if kind is LaunchErrorKind.QUOTA else {}
        rules.limits = {"*": 0} if kind is LaunchErrorKind.LIMIT else {}
        code, message = {
            LaunchErrorKind.AUTHENTICATION: (403, "forbidden"),
            LaunchErrorKind.THROTTLED: (429, "Too many requests, please try again later."),
            LaunchErrorKind.TRANSIENT: (500, "etcd is busy"),
        }.get(kind, (0, ""))
        if code:
            method = "GET" if self.count_alive() and kind is LaunchErrorKind.THROTTLED else "POST"
            self.api.refuse_next(method, kwok.CONFIG_MAP, code, message)

    def lose_answer(self) -> None:
        self.provider = KwokProvider(self.client, answer_s=0.0)

    async def add_foreign(self) -> str:
        order = {
            "requestId": "other-1", "pool": "h100", "instanceType": "p5.48xlarge", "zone": "us-east-1a",
            "capacityType": "spot", "count": 1,
        }  # fmt: skip
        answer = {"machines": [{"name": "other-1-0", "state": "running", "launchedAt": 0}]}
        meta = {"name": "other-1", "labels": {kwok.ORDER_LABEL: "another-cluster"}}
        body = {"metadata": meta, "data": {"order": json.dumps(order), "answer": json.dumps(answer)}}
        await self.client.request("POST", _PLACE, body=body)
        return "kwok://us-east-1a/other-1-0"

    def _states(self) -> dict[str, bool]:
        """Id -> whether it is alive."""
        found = {}
        for each in self.api.call("GET", _PLACE)["items"]:
            for machine in json.loads(each["data"].get("answer", "{}")).get("machines", ()):
                is_marked = f"{kwok.TERMINATE}{machine['name']}" in each["data"]
                found[f"kwok://us-east-1a/{machine['name']}"] = machine["state"] != "gone" and not is_marked
        return found

    def is_alive(self, provider_id: str) -> bool:
        return self._states().get(provider_id, False)

    def count_alive(self) -> int:
        return sum(alive for name, alive in self._states().items() if "other" not in name)


@pytest.mark.parametrize("clause", CONTRACT, ids=lambda clause: clause.__name__)
def test_contract(clause: Callable[[KwokBed], Awaitable[None]]) -> None:
    async def run() -> None:
        bed = KwokBed()
        async with bed.cloud.run_in_background():
            await clause(bed)

    asyncio.run(run())
