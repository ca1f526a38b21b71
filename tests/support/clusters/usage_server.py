"""CPU usage of simulated pods as the metrics API, for an APIService."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from typing import TYPE_CHECKING, Any

from tests.support.fakes.pki import Authority

from kgwe.kube.api import timestamp
from kgwe.local.host import ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from kgwe.kube.api import core

_GROUP = "/apis/metrics.k8s.io/v1beta1"


class ServiceLoad:
    """A load in cores that the running pods of a service share equally."""

    def __init__(self, list_pods: Callable[[], list[core.Pod]]) -> None:
        self.cores = 0.0
        self._list_pods = list_pods

    def read_rates(self) -> dict[tuple[str, str], float]:
        """(namespace, name) of each running pod -> cores."""
        pods = [pod.metadata for pod in self._list_pods() if pod.status.phase == "Running"]
        return {(meta.namespace, meta.name): self.cores / len(pods) for meta in pods}


def answer_metrics_api(load: ServiceLoad, path: str) -> dict[str, Any]:
    """An answer of metrics.k8s.io."""
    if not path.startswith(f"{_GROUP}/"):
        named = {"name": "pods", "singularName": "", "namespaced": True, "kind": "PodMetrics", "verbs": ["get", "list"]}
        return {"kind": "APIResourceList", "groupVersion": "metrics.k8s.io/v1beta1", "resources": [named]}
    items = [
        {
            "metadata": {"namespace": namespace, "name": name},
            "timestamp": timestamp.seconds(),
            "window": "1s",
            "containers": [{"name": "main", "usage": {"cpu": f"{round(cores * 1000)}m", "memory": "1Mi"}}],
        }
        for (namespace, name), cores in load.read_rates().items()
    ]
    return {"kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}, "items": items}


@contextlib.asynccontextmanager
async def serving(load: ServiceLoad, folder: Path) -> AsyncIterator[int]:
    """The API behind TLS on loopback; yields the port."""
    files = Authority(folder).issue("usage", "localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                path = head.split()[1]
                body = json.dumps(answer_metrics_api(load, path)).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
                writer.write(f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, ports.LOOPBACK, 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]
