"""NodeClaims on an API server in memory, with a stand-in of Karpenter's launch controller, and the bed of the contract.

As Karpenter does, it launches a NodeClaim or deletes it for lack of capacity; other failures stay in a condition.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from typing import TYPE_CHECKING, Any

from tests.support.fakes.memory_api import MemoryApi, Refused

from kgwe.cloud.kubernetes.node_claims import NODE_CLAIM, KarpenterClaims
from kgwe.cloud.provider import CapacityType, LaunchErrorKind, LaunchRequest
from kgwe.kube.client.client import KubeClient
from kgwe.kube.transport.http1 import Reply

if TYPE_CHECKING:
    from tests.support.fakes.memory_api import Change

    from kgwe.cloud.provider import Provider

_PATH = "/apis/karpenter.sh/v1/nodeclaims"
_NUMBERS = itertools.count()


class FaultyApi(MemoryApi):
    """Loses the answer to a creation, or throttles any request."""

    lost_answers = 0
    throttled = 0

    async def request(self, method: str, path: str, **more: Any) -> Any:
        if self.throttled:
            self.throttled -= 1
            status = {"kind": "Status", "reason": "TooManyRequests", "message": "too many requests", "code": 429}
            return Reply(429, json.dumps(status).encode(), [(b"retry-after", b"1")])
        reply = await super().request(method, path, **more)
        if self.lost_answers and method == "POST" and "nodeclaims" in path:
            self.lost_answers -= 1
            return Refused(504, "Timeout", "no answer").reply()
        return reply


class KarpenterBed:
    """NodeClaims of one cluster."""

    def __init__(self) -> None:
        self.api = FaultyApi()
        self.api.on_change = self._react
        self.client = KubeClient(self.api)
        self.capacity = 1000
        self.failure = ""
        self.provider: Provider = self.reopen()
        self.kinds = tuple(kind for kind in LaunchErrorKind if kind is not LaunchErrorKind.LIMIT)

    def _react(self, change: Change) -> None:
        if change.collection == _PATH.strip("/") and change.type == "ADDED":
            asyncio.get_running_loop().call_soon(self._launch, change.obj["metadata"]["name"])

    def _launch(self, name: str) -> None:
        with contextlib.suppress(Refused):  # it is gone
            if self.failure:
                condition = {"type": "Launched", "status": "Unknown", "reason": "LaunchFailed", "message": self.failure}
                self.failure = ""
                self.api.call("PATCH", f"{_PATH}/{name}/status", {"status": {"conditions": [condition]}})
                return
            if self.capacity < 1:
                self.api.call("DELETE", f"{_PATH}/{name}")
                return
            self.capacity -= 1
            condition = {"type": "Launched", "status": "True", "reason": "Launched"}
            status = {"providerID": f"cloud:///zone-a/i-{next(_NUMBERS)}", "conditions": [condition]}
            self.api.call("PATCH", f"{_PATH}/{name}/status", {"status": status})

    def reopen(self) -> Provider:
        return KarpenterClaims(self.client, cluster="test", poll_s=0.01, wait_s=5)

    def make_request(self, request_id: str, count: int = 1, *, atomic: bool = False) -> LaunchRequest:
        return LaunchRequest(
            request_id=request_id,
            pool="h100",
            instance_type="p5.48xlarge",
            zone="zone-a",
            capacity_type=CapacityType.SPOT,
            count=count,
            atomic=atomic,
            template="karpenter.k8s.aws/EC2NodeClass/gpu",
        )

    def set_capacity(self, instances: int) -> None:
        self.capacity = instances

    def fail_next(self, kind: LaunchErrorKind) -> None:
        self.capacity = 1000
        if kind is LaunchErrorKind.NO_CAPACITY:
            self.capacity = 0
        elif kind is LaunchErrorKind.QUOTA:
            self.failure = "creating instance, VcpuLimitExceeded: You have requested more vCPU capacity than allowed"
        elif kind is LaunchErrorKind.AUTHENTICATION:
            self.api.refuse_next("POST", NODE_CLAIM, 403, "cannot create nodeclaims", "Forbidden")
        elif kind is LaunchErrorKind.BAD_TEMPLATE:
            self.api.refuse_next("POST", NODE_CLAIM, 422, "spec.nodeClassRef: Invalid value", "Invalid")
        elif kind is LaunchErrorKind.THROTTLED:
            self.api.throttled = 1
        else:
            self.api.refuse_next("POST", NODE_CLAIM, 500, "etcd leader changed", "InternalError")

    def lose_answer(self) -> None:
        self.api.lost_answers = 1

    async def add_foreign(self) -> str:
        other = KarpenterClaims(self.client, cluster="another", poll_s=0.01)
        return (await other.launch(self.make_request("foreign"))).instances[0].provider_id

    def _claims(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.api.call("GET", _PATH)["items"]
        return found

    def is_alive(self, provider_id: str) -> bool:
        return any(claim.get("status", {}).get("providerID") == provider_id for claim in self._claims())

    def count_alive(self) -> int:
        return sum(claim["metadata"]["labels"]["kgwe.nvidia.io/cluster"] == "test" for claim in self._claims())
