"""An API server with one Node and its GPUNode, as far as the agent asks: it counts writes and fails when told."""

from __future__ import annotations

import json
from typing import Any

import httpx2

from kgwe.kube.client.client import APPLY_PATCH, KubeClient
from kgwe.kube.transport.httpx_transport import HttpxTransport

NODE = "n1"
_PATH = f"/apis/kgwe.nvidia.io/v1/gpunodes/{NODE}"


class OneNode:
    """Keeps the object as the API server does: apply to a status needs an object, versions move."""

    def __init__(self) -> None:
        self.obj: dict[str, Any] | None = None
        self.version = 10
        self.writes: list[tuple[str, dict[str, Any]]] = []
        self.failing = 0
        self.code = 503
        self.has_node = True
        #: fields of the status that this server's definition does not know
        self.unknown: tuple[str, ...] = ()

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        if self.failing:
            self.failing -= 1
            return httpx2.Response(self.code, json={"message": "not now"})
        if request.url.path == f"/api/v1/nodes/{NODE}":
            if not self.has_node:
                return httpx2.Response(404, json={"message": f"nodes {NODE} not found"})
            return httpx2.Response(200, json={"metadata": {"name": NODE, "uid": "node-uid"}})
        body = json.loads(request.content)
        is_apply = request.headers["Content-Type"] == APPLY_PATCH
        if request.url.path == _PATH and is_apply:
            return self._store("object", body, {**(self.obj or {"status": {}}), "spec": body["spec"]})
        assert request.url.path == f"{_PATH}/status"
        if self.obj is None:
            return httpx2.Response(404, json={"message": "gone"})
        known = {key: value for key, value in body["status"].items() if key not in self.unknown}
        status = known if is_apply else {**self.obj["status"], **known}
        return self._store("status" if is_apply else "heartbeat", body, {**self.obj, "status": status})

    def _store(self, kind: str, body: dict[str, Any], obj: dict[str, Any]) -> httpx2.Response:
        self.version += 1
        self.writes.append((kind, body))
        owners = body.get("metadata", {}).get("ownerReferences")
        metadata = {**(self.obj or {}).get("metadata", {"name": NODE}), "resourceVersion": str(self.version)}
        if owners:
            metadata["ownerReferences"] = owners
        self.obj = {**obj, "metadata": metadata}
        return httpx2.Response(200, json=self.obj)

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.writes]

    def client(self) -> KubeClient:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self), base_url="https://cluster.example")
        return KubeClient(HttpxTransport(http), field_manager="kgwe-agent")
