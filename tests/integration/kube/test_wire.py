"""Our own HTTP against a real API server: killed under load, given up on, asked for too much."""

from __future__ import annotations

import asyncio
import gc
import random
import warnings
from typing import Any

import pytest
import uvloop
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.api.resources import Resource
from kgwe.kube.client.client import KubeClient
from kgwe.kube.client.informer import Informer
from kgwe.local.cluster import components

pytestmark = pytest.mark.cluster

CONFIG_MAP: Resource[Any] = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True, type=dict[str, Any])


async def test_an_object_too_big_for_the_server_is_refused_for_good(client, namespace):
    """The server answers before it has read all of it, and hangs up."""
    body = {"metadata": {"name": "big"}, "data": {"x": "y" * (4 << 20)}}
    for _ in range(3):
        with pytest.raises(errors.Permanent, match=r"too large|limit is"):
            await client.create(CONFIG_MAP, body, namespace)

    await client.create(CONFIG_MAP, {"metadata": {"name": "big"}, "data": {"x": "y" * (900 << 10)}}, namespace)
    assert len((await client.get(CONFIG_MAP, "big", namespace))["data"]["x"]) == 900 << 10


async def write(client: KubeClient, number: int) -> str:
    """How a create ended."""
    try:
        await client.create(CONFIG_MAP, {"metadata": {"name": f"w{number}"}}, "default")
    except errors.KgweError as exc:
        return type(exc).__name__
    return "created"


async def test_a_server_killed_under_writes_leaves_none_undecided(breakable):
    """Every call ends; what was confirmed is there; no create was sent twice behind our back (AlreadyExists)."""
    async with KubeClient.connect(breakable.kubeconfig) as client:
        calls = [asyncio.ensure_future(write(client, number)) for number in range(300)]
        async with asyncio.timeout(PATIENCE_S):
            while sum(call.done() for call in calls) < 60:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.005)
            await asyncio.to_thread(breakable.kill, components.APISERVER)
            outcomes = await asyncio.gather(*calls)
        await asyncio.to_thread(breakable.restart, components.APISERVER)

        assert {"created"} < set(outcomes) <= {"created", "Transient", "Unreachable"}
        async with asyncio.timeout(PATIENCE_S):
            there = {found["metadata"]["name"] for found in await client.list(CONFIG_MAP, "default")}
        assert {f"w{number}" for number, outcome in enumerate(outcomes) if outcome == "created"} <= there


async def give_up(kubeconfig: Any) -> None:
    luck = random.Random(12)
    for _ in range(10):
        async with KubeClient.connect(kubeconfig) as client:
            calls: list[asyncio.Future[Any]] = [asyncio.ensure_future(client.list(resources.POD)) for _ in range(4)]
            calls.append(asyncio.ensure_future(Informer(client, resources.POD).run()))
            await asyncio.sleep(luck.random() * 0.05)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            async with asyncio.timeout(PATIENCE_S):
                await client.list(resources.NODE)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
async def test_calls_given_up_leave_nothing_open_on_either_event_loop(cluster, loop):
    def run() -> None:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(give_up(cluster.kubeconfig))

    gc.collect()
    with warnings.catch_warnings(record=True) as leaks:
        warnings.simplefilter("always", ResourceWarning)
        await asyncio.to_thread(run)
        gc.collect()
    assert [str(leak.message) for leak in leaks] == []
