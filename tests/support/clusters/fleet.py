"""Shared by the fleet tests: the exporter as Prometheus sees it, pods on chosen nodes, waiting for a state."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from prometheus_client import parser
from tests.support.patience import PATIENCE_S

from kgwe.kube.client.informer import Informer
from kgwe.local.fleet import exporter, gpupods, models
from kgwe.local.fleet.simulator import Simulator
from kgwe.telemetry import http

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from kgwe.kube.api import resources
    from kgwe.kube.client.client import KubeClient

MIXED = models.load("mixed")
NODES = 16
_names = itertools.count(1)


class Metrics:
    """The exporter as Prometheus sees it."""

    def __init__(self, http_client: httpx2.AsyncClient) -> None:
        self._http = http_client

    async def get(self, path: str) -> httpx2.Response:
        return await self._http.get(path)

    async def samples(self, path: str, name: str) -> list[Any]:
        text = (await self.get(path)).raise_for_status().text
        return [s for family in parser.text_string_to_metric_families(text) for s in family.samples if s.name == name]

    async def until(self, path: str, name: str, holds: Callable[[list[Any]], bool]) -> list[Any]:
        """The samples once they are as they should be; scraped often instead of slept for."""
        found: list[Any] = []
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds(found := await self.samples(path, name)):  # noqa: ASYNC110 - it has to be asked
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail(f"{name} of {path} never became so; last: {found}")
        return found


@contextlib.asynccontextmanager
async def exporting(client: KubeClient, memory: Path | None = None) -> AsyncIterator[Metrics]:
    simulator = Simulator(client, memory=memory)
    async with (
        simulator.run_in_background(),
        http.serving(exporter.ExporterApp(simulator), http.Address("127.0.0.1", 0)) as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http_client,
    ):
        yield Metrics(http_client)


@contextlib.asynccontextmanager
async def watching(client: KubeClient, resource: resources.Resource[Any]) -> AsyncIterator[Informer[Any]]:
    watch: Informer[Any] = Informer(client, resource)
    task = asyncio.create_task(watch.run())
    try:
        await watch.synced.wait()
        yield watch
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(watch: Informer[Any], key: str, holds: Callable[[Any], bool], timeout_s: float = PATIENCE_S) -> Any:
    """The object once it is so; None counts as gone."""
    seen = asyncio.Event()
    watch.on_change(lambda change: seen.set() if change.key == key else None)
    async with asyncio.timeout(timeout_s):
        while not holds(watch.store.get(key)):
            seen.clear()
            await seen.wait()
    return watch.store.get(key)


async def run_pod(
    client: KubeClient,
    node: str,
    gpus: int = 1,
    *,
    resource: str = "nvidia.com/gpu",
    restart: str = "Never",
    profile: str = "constant(util=0.8, mem=0.5, noise=0)",
) -> str:
    """A pod on that node, bound by kube-scheduler and running; its name."""
    name = f"pod-{next(_names)}"
    body = {
        "metadata": {"name": name, "annotations": {"kgwe.nvidia.io/use-profile": profile}},
        "spec": {
            "restartPolicy": restart,
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [{"name": "main", "image": "none", "resources": {"limits": {resource: str(gpus)}}}],
        },
    }
    async with watching(client, gpupods.GPU_PODS) as watch:
        await client.create(gpupods.GPU_PODS, body, "default")
        await until(watch, f"default/{name}", lambda pod: pod is not None and pod.status.phase == "Running")
    return name


def pods_of(samples: list[Any]) -> dict[int, str]:
    return {int(s.labels["gpu"]): s.labels["pod"] for s in samples if "pod" in s.labels}
