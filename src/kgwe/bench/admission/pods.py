"""Bursts of pods: created at a number in flight or at a rate, timed, and counted by what became of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from kgwe import errors
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.kube.client.client import KubeClient

SLICE: Final = "nvidia.com/mig-1g.10gb"
IMAGE: Final = "registry.example/bench:1"
_NUMBERS: Final = itertools.count()
_PERCENTILE: Final = 99


class _Meta(msgspec.Struct, frozen=True):
    annotations: dict[str, str] = {}


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Meta


class _Pods(msgspec.Struct, frozen=True):
    items: tuple[_Pod, ...] = ()


@dataclass
class Burst:
    """What became of the pods of one namespace."""

    seconds: list[float] = field(default_factory=list)
    failed: int = 0
    changed: int = 0

    def percentile_ms(self, percentile: float = _PERCENTILE) -> float:
        return float(np.percentile(self.seconds, percentile)) * 1000 if self.seconds else 0.0


def build_pod() -> dict[str, Any]:
    """A pod of a Deployment that asks for one GPU. No scheduler takes it."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "bench-abc", "uid": "0", "controller": True}
    meta = {
        "name": f"p{next(_NUMBERS)}",
        "labels": {"pod-template-hash": "abc", "app": "bench"},
        "ownerReferences": [owner],
    }
    container = {"name": "main", "image": IMAGE, "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"containers": [container], "schedulerName": "none", "automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def build_decisions(mode: str = "enforce") -> dict[str, Any]:
    """The decision that the pods get a slice."""
    kind = resources.RIGHTSIZING_DECISION
    smaller = {"resource": SLICE, "profile": "1g.10gb", "reason": "benchmark"}
    others = {f"Deployment/other-{number} {IMAGE} 1": smaller for number in range(99)}
    spec = {"mode": mode, "offered": [SLICE], "decisions": others | {f"Deployment/bench {IMAGE} 1": smaller}}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "default"}, "spec": spec}


async def create_pod(client: KubeClient, namespace: str, burst: Burst) -> None:
    """Create a pod, and note how long it took."""
    body = build_pod()
    started = time.perf_counter()
    try:
        reply = await client.request("POST", f"/api/v1/namespaces/{namespace}/pods", body=body)
    except errors.KgweError:
        burst.failed += 1
        return
    burst.seconds.append(time.perf_counter() - started)
    made = msgspec.json.decode(reply, type=_Pod)
    burst.changed += "kgwe.nvidia.io/original-gpu-request" in made.metadata.annotations


async def create_many(
    client: KubeClient,
    namespaces: Sequence[str],
    *,
    pods: int,
    in_flight: int,
    at_half: Callable[[], None] = lambda: None,
) -> dict[str, Burst]:
    """Create so many pods in each namespace, in turns, with so many requests at a time.

    `at_half`: called once half of the pods were started.
    """
    bursts = {each: Burst() for each in namespaces}
    waiting = iter([each for _ in range(pods) for each in namespaces])
    total, started = pods * len(namespaces), itertools.count(1)

    async def work() -> None:
        for namespace in waiting:
            if next(started) == total // 2:
                at_half()
            await create_pod(client, namespace, bursts[namespace])

    await asyncio.gather(*(work() for _ in range(in_flight)))
    return bursts


async def create_steadily(
    client: KubeClient, namespaces: Sequence[str], *, per_second: float, is_over: Callable[[], bool], timeout_s: float
) -> dict[str, Burst]:
    """Create pods at a rate, in turns in each namespace, until it is over."""
    bursts, tasks = {each: Burst() for each in namespaces}, set[asyncio.Task[None]]()
    turns = itertools.cycle(namespaces)
    end, following = time.monotonic() + timeout_s, time.monotonic()
    while not is_over() and time.monotonic() < end:
        namespace = next(turns)
        task = asyncio.create_task(create_pod(client, namespace, bursts[namespace]))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        following += 1 / per_second
        await asyncio.sleep(max(following - time.monotonic(), 0.0))
    await asyncio.gather(*tasks)
    return bursts


async def delete_pods(client: KubeClient, namespaces: Sequence[str], timeout_s: float) -> None:
    """Delete all pods, and wait until they are gone. A busy API server may answer too late; it is asked again."""
    async with asyncio.timeout(timeout_s):
        for namespace in namespaces:
            path = f"/api/v1/namespaces/{namespace}/pods"
            while True:
                with contextlib.suppress(errors.Transient):
                    await client.request("DELETE", path, params={"gracePeriodSeconds": "0"})
                    left = msgspec.json.decode(await client.request("GET", path, params={"limit": "1"}), type=_Pods)
                    if not left.items:
                        break
                await asyncio.sleep(0.5)
