"""One process that lists all pods with one method and reports the cost: `python -m kgwe.bench.nodes.informer_probe`.

Separate processes keep the memory of the methods apart.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import resource
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from kgwe.kube.api import resources
from kgwe.kube.api.resources import Resource
from kgwe.kube.client.client import KubeClient
from kgwe.kube.client.informer import Informer
from kgwe.kube.transport import encoding
from kgwe.kube.transport.codec import Codecs
from kgwe.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
    from contextlib import AbstractAsyncContextManager

    List = Callable[[], Coroutine[Any, Any, Any]]

INFORMER = "informer"
JSON = "json"
LIGHTKUBE = "lightkube"
DICTS = "dicts"
WAYS = (INFORMER, JSON, LIGHTKUBE, DICTS)


class Result(msgspec.Struct, frozen=True):
    pods: int
    wall_s: list[float]
    cpu_s: list[float]
    rss_before_mb: float
    rss_mb: float
    rss_peak_mb: float
    bytes: int


async def measure(way: str, kubeconfig: str, page_size: int, lists: int) -> Result:
    """List once to warm up, then `lists` times; keep the objects of the last list while memory is measured."""
    connected = {
        INFORMER: _list_in_protobuf,
        JSON: _list_in_json,
        LIGHTKUBE: _list_with_lightkube,
        DICTS: _list_as_dicts,
    }[way]
    before_mb = _rss_mb()
    walls, cpus = [], []
    kept: Any = None
    async with connected(kubeconfig, page_size) as list_all:
        for number in range(lists + 1):
            kept = None
            gc.collect()
            began, began_cpu = time.perf_counter(), time.process_time()
            kept = await list_all()
            if number:
                walls.append(time.perf_counter() - began)
                cpus.append(time.process_time() - began_cpu)
        gc.collect()
        weight_mb = _rss_mb()
    return Result(
        pods=len(kept),
        wall_s=walls,
        cpu_s=cpus,
        rss_before_mb=before_mb,
        rss_mb=weight_mb,
        rss_peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        bytes=await _estimate_bytes(
            kubeconfig, page_size, Codecs(resources.POD).accept if way == INFORMER else encoding.JSON
        ),
    )


def _list_in_protobuf(kubeconfig: str, page_size: int) -> AbstractAsyncContextManager[List]:
    """List in protobuf, as KGWE's processes do."""
    return _list_with_informer(resources.POD, kubeconfig, page_size)


def _list_in_json(kubeconfig: str, page_size: int) -> AbstractAsyncContextManager[List]:
    """List with the informer in JSON, as for kinds without protobuf."""
    return _list_with_informer(dataclasses.replace(resources.POD, message=""), kubeconfig, page_size)


@asynccontextmanager
async def _list_with_informer(kind: Resource[Any], kubeconfig: str, page_size: int) -> AsyncIterator[List]:
    async with KubeClient.connect(kubeconfig) as client:

        async def list_all() -> Any:
            informer = Informer(client, kind, page_size=page_size)
            running = asyncio.ensure_future(informer.run())
            try:
                await informer.synced.wait()
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
            return informer.store

        yield list_all


@asynccontextmanager
async def _list_with_lightkube(kubeconfig: str, page_size: int) -> AsyncIterator[List]:
    # Imported here, because its models would add to the memory of the other methods.
    from lightkube import AsyncClient, KubeConfig  # noqa: PLC0415
    from lightkube.resources.core_v1 import Pod  # noqa: PLC0415

    client = AsyncClient(KubeConfig.from_file(kubeconfig))

    async def list_all() -> Any:
        return [pod async for pod in client.list(Pod, namespace="*", chunk_size=page_size)]

    try:
        yield list_all
    finally:
        await client.close()


@asynccontextmanager
async def _list_as_dicts(kubeconfig: str, page_size: int) -> AsyncIterator[List]:
    pods: Resource[Any] = Resource("", "v1", "pods", "Pod", namespaced=True, type=dict[str, Any])
    async with KubeClient.connect(kubeconfig) as client:

        async def list_all() -> Any:
            return await client.list(pods, limit=str(page_size))

        yield list_all


async def _estimate_bytes(kubeconfig: str, page_size: int, accept: str) -> int:
    """Return the total size of the responses, extrapolated from one page."""
    async with KubeClient.connect(kubeconfig) as client:
        params = {"limit": str(page_size)}
        body = await client.request("GET", resources.POD.path(), params=params, accept=accept)
        page: dict[str, Any] = msgspec.json.decode(await client.request("GET", resources.POD.path(), params=params))
        total: int = len(page["items"]) + page["metadata"].get("remainingItemCount", 0)
        return len(body) * total // max(len(page["items"]), 1)


def _rss_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - a path object is no clearer here
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _run() -> Callable[[Awaitable[Result]], Result]:
    """Run with uvloop if it is installed, as KGWE's processes do; the same for all methods."""
    try:
        import uvloop  # noqa: PLC0415 - optional: absent on other systems
    except ImportError:
        return asyncio.run  # type: ignore[return-value] # the same call
    return uvloop.run  # type: ignore[return-value] # the same call


if __name__ == "__main__":
    way, kubeconfig, page_size, lists = sys.argv[1:]
    logs.configure(level="warning")
    result = _run()(measure(way, kubeconfig, int(page_size), int(lists)))
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
