"""A fleet of 300 nodes, each with an agent: all are published, all answer, and then it is quiet."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import functools
import os
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.support.clusters.clients import connect
from tests.support.machines import memory_driver as memory
from tests.support.machines.naming import named_alike

from kgwe.agentapi.client import Access
from kgwe.apps.agent.main import Agent, build_agent
from kgwe.apps.agent.settings import Settings
from kgwe.apps.agent.status import gpunode_status
from kgwe.apps.discovery import freshness
from kgwe.apps.discovery.live import LiveFleet
from kgwe.bench.cluster.measure import apiwrites
from kgwe.errors import Transient
from kgwe.hardware.nvml.driver import NvmlDriver
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.local.cluster.cluster import ClusterOptions, LocalCluster
from kgwe.local.fleet import agents, apply, models
from kgwe.local.nvml.hardware import Hardware
from kgwe.model.simfleet import inventory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from kgwe.hardware.driver import GpuDriver
    from kgwe.model.simfleet.inventory import FleetNode

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

NODES = 300
# So many of them through the C library; the others' drivers answer from memory, which takes fewer threads.
ON_LIBRARY = 64
MIXED = models.load("mixed")


@pytest.fixture
def many_cluster(cluster_root: Path) -> Iterator[LocalCluster]:
    name = f"test-{os.getpid()}-agents"
    started = LocalCluster(name, state_root=cluster_root)
    try:
        yield LocalCluster.start(ClusterOptions(name, state_root=cluster_root))
    finally:
        started.stop(grace_s=2.0)


async def open_driver(node: FleetNode, folder: Path | None) -> GpuDriver:
    if folder is None:
        return memory.MemoryDriver(memory.machine(node))
    hardware = await asyncio.to_thread(Hardware.create, folder, node)
    environment = hardware.environment
    hardware.close()
    return NvmlDriver.from_environment(environment)


@contextlib.asynccontextmanager
async def running(kubeconfig: Path, nodes: list[FleetNode], folder: Path) -> AsyncIterator[list[Agent]]:
    """Each with connections of its own, as on machines of their own."""
    stop = asyncio.Event()
    made, tasks, clients = [], [], []
    for number, node in enumerate(nodes):
        where = folder / node.name if number < ON_LIBRARY else None
        settings = Settings(
            node_name=node.name,
            grpc_bind_address="127.0.0.1:0",
            exporter_bind_address="",
            enable_pod_resources=False,
            enable_mig=False,
        )
        clients.append(KubeClient.connect(kubeconfig, field_manager="kgwe-agent"))
        made.append(build_agent(settings, functools.partial(open_driver, node, where), clients[-1]))
        tasks.append(asyncio.create_task(made[-1].run(stop)))
    try:
        yield made
    finally:
        stop.set()
        await asyncio.gather(*tasks)
        await asyncio.gather(*(client.close() for client in clients))


async def writes(cluster: LocalCluster) -> dict[str, int]:
    with cluster.api() as api:
        counted = apiwrites.count_writes(await asyncio.to_thread(api.text, "/metrics"))
    return {name: count for name, count in counted.items() if name.startswith("gpunodes")}


async def judged_nodes(client: KubeClient) -> list[freshness.Seen]:
    """Return nothing while the API server is too busy with 300 new connections to answer in time."""
    try:
        published = await client.list(resources.GPU_NODE)
    except Transient:
        return []
    return freshness.judge_all(published, dt.datetime.now(dt.UTC))


async def test_three_hundred_agents_publish_answer_and_are_quiet(many_cluster: LocalCluster, tmp_path: Path):
    nodes = list(inventory.expand_fleet(MIXED, NODES))
    async with connect(many_cluster.kubeconfig) as client:
        await agents.install(client)
        await apply.apply_fleet(client, MIXED, NODES)
        before, began = await writes(many_cluster), time.monotonic()
        async with running(agents.write_kubeconfig(many_cluster), nodes, tmp_path) as started:
            async with asyncio.timeout(300):
                while True:
                    seen = await judged_nodes(client)
                    if seen and all(each.freshness is freshness.Freshness.FRESH for each in seen):
                        break
                    await asyncio.sleep(0.5)
            print(f"{NODES} agents published after {time.monotonic() - began:.1f} s")  # noqa: T201 - for `pytest -s`
            after = await writes(many_cluster)
            assert after["gpunodes"] - before.get("gpunodes", 0) == NODES
            assert NODES <= after["gpunodes/status"] - before["gpunodes/status"] <= NODES * 1.2

            expected = {node.name: gpunode_status.build_status(memory.machine(node)) for node in nodes}
            for each in seen:
                gpus = named_alike(msgspec.structs.replace(each.node.status, nics=())).gpus
                told = [(card.uuid, card.pcie, card.nvlink, card.mig) for card in gpus]
                model = named_alike(msgspec.structs.replace(expected[each.node.metadata.name], nics=())).gpus
                assert told == [(card.uuid, card.pcie, card.nvlink, card.mig) for card in model]

            addresses = {agent.node: f"127.0.0.1:{agent.services.ports.grpc}" for agent in started}
            async with LiveFleet(Access(deadline_s=30.0)) as live:
                began = time.monotonic()
                answers = await live.ask(addresses)
                print(f"{NODES} agents answered after {time.monotonic() - began:.2f} s")  # noqa: T201
                assert [answer.problem for answer in answers.values() if answer.status is None] == []
                began = time.monotonic()
                await live.ask(addresses)
                print(f"and from memory after {(time.monotonic() - began) * 1000:.1f} ms")  # noqa: T201

            # Reports go on all the while; nothing changes, so nothing is written.
            settled = await writes(many_cluster)
            await asyncio.sleep(20)
            assert await writes(many_cluster) == settled
