"""CPU usage of simulated pods: as the metrics API behind an APIService, or as a kubelet for metrics-server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
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
        self._used: dict[tuple[str, str], float] = {}
        self._last = time.time()

    def read_rates(self) -> dict[tuple[str, str], float]:
        """(namespace, name) of each running pod -> cores."""
        pods = [pod.metadata for pod in self._list_pods() if pod.status.phase == "Running"]
        return {(meta.namespace, meta.name): self.cores / len(pods) for meta in pods}

    def read_counters(self) -> dict[tuple[str, str], float]:
        """(namespace, name) -> seconds of CPU so far."""
        now, last = time.time(), self._last
        self._last = now
        for pod, cores in self.read_rates().items():
            self._used[pod] = self._used.get(pod, 1.0) + cores * (now - last)
        return {pod: self._used[pod] for pod in self.read_rates()}


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


def describe_as_kubelet(load: ServiceLoad) -> str:
    """The page /metrics/resource of a kubelet."""
    now_ms = int(time.time() * 1000)
    lines = [
        f"node_cpu_usage_seconds_total {time.time() % 1e6:f} {now_ms}",
        f"node_memory_working_set_bytes 1e9 {now_ms}",
    ]
    for (namespace, name), seconds in load.read_counters().items():
        labels = f'{{container="main",namespace="{namespace}",pod="{name}"}}'
        lines.append(f"container_cpu_usage_seconds_total{labels} {seconds:f} {now_ms}")
        lines.append(f"container_memory_working_set_bytes{labels} 1e6 {now_ms}")
        lines.append(f"container_start_time_seconds{labels} 1.7e9")
    return "\n".join(lines) + "\n"


@contextlib.asynccontextmanager
async def serving(load: ServiceLoad, folder: Path) -> AsyncIterator[int]:
    """Both faces behind TLS on loopback; yields the port."""
    files = Authority(folder).issue("usage", "localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                path = head.split()[1]
                if path.startswith("/metrics/resource"):
                    kind, body = "text/plain; version=0.0.4", describe_as_kubelet(load).encode()
                else:
                    kind, body = "application/json", json.dumps(answer_metrics_api(load, path)).encode()
                writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
                writer.write(body)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, ports.LOOPBACK, 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]
