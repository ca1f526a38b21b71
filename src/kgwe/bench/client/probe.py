"""One process that sends requests through one transport and reports their cost: `python -m kgwe.bench.client.probe`.

Separate processes keep the CPU times of the transports apart.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from kgwe import errors
from kgwe.bench.cluster.measure.timeline import percentile
from kgwe.bench.loop import loop_factory
from kgwe.kube.api import resources
from kgwe.kube.client.client import MERGE_PATCH
from kgwe.kube.transport import kubeconfig
from kgwe.kube.transport.http1 import LineSplitter

if TYPE_CHECKING:
    from kgwe.kube.transport.transport import Transport

OWN = "kgwe"
HTTPX2 = "httpx2"
WAYS = (OWN, HTTPX2)

REQUESTS = "requests"
WATCH = "watch"

NAMESPACE = "default"
_WARM_UP = 100
_SUCCESS = 200
_SILENCE_S = 30.0


class Result(msgspec.Struct, frozen=True):
    #: number of requests, or of watch events
    count: int
    wall_s: float
    cpu_s: float
    p50_ms: float = 0.0
    p99_ms: float = 0.0


def pod_name(worker: int) -> str:
    """Return the name of the pod that this worker reads and patches."""
    return f"bench-{worker}"


async def measure(way: str, path: str, part: str, count: int, workers: int) -> Result:
    """Send `count` requests from `workers` concurrent workers, or read `count` watch events."""
    transport, _ = kubeconfig.connect(path, context=None, user_agent="kgwe-bench", use_httpx=way == HTTPX2)
    try:
        if part == WATCH:
            return await _measure_watch(transport, count)
        await _send_all(transport, _WARM_UP, workers)
        return await _measure_requests(transport, count, workers)
    finally:
        await transport.close()


async def _measure_requests(transport: Transport, count: int, workers: int) -> Result:
    began, began_cpu = time.perf_counter(), time.process_time()
    took_ms = sorted(await _send_all(transport, count, workers))
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    return Result(len(took_ms), wall_s, cpu_s, percentile(took_ms, 50), percentile(took_ms, 99))


async def _send_all(transport: Transport, count: int, workers: int) -> list[float]:
    """Send the requests and return the milliseconds of each."""
    shares = [count // workers + (worker < count % workers) for worker in range(workers)]
    found = await asyncio.gather(*(_send(transport, worker, share) for worker, share in enumerate(shares)))
    return [each for some in found for each in some]


async def _send(transport: Transport, worker: int, count: int) -> list[float]:
    """Read and patch one pod alternately, as a controller does."""
    path = resources.POD.path(namespace=NAMESPACE, name=pod_name(worker))
    took_ms = []
    for number in range(count):
        began = time.perf_counter()
        if number % 2:
            reply = await transport.request("GET", path)
        else:
            body = msgspec.json.encode({"metadata": {"annotations": {"bench.example.com/number": str(number)}}})
            params = {"fieldManager": "kgwe-bench"}
            reply = await transport.request("PATCH", path, params=params, content=body, content_type=MERGE_PATCH)
        took_ms.append((time.perf_counter() - began) * 1e3)
        if reply.status_code != _SUCCESS:
            raise errors.Permanent(f"the server replied {reply.status_code}: {reply.content[:300]!r}")
    return took_ms


async def _measure_watch(transport: Transport, count: int) -> Result:
    """Read events that arrive one by one, and split them into lines."""
    lines, seen = LineSplitter(), 0
    began = began_cpu = 0.0
    async with transport.stream(resources.POD.path(), params={"watch": "true"}, silence_s=_SILENCE_S) as stream:
        async for piece in stream.aiter_bytes():
            if not began:
                began, began_cpu = time.perf_counter(), time.process_time()
                continue
            seen += len(lines.feed(piece))
            if seen >= count:
                break
        return Result(seen, time.perf_counter() - began, time.process_time() - began_cpu)


if __name__ == "__main__":
    way, path, part, count, workers = sys.argv[1:]
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        result = runner.run(measure(way, path, part, int(count), int(workers)))
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
