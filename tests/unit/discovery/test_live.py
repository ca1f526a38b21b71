"""Many agents asked at once: bounded, remembered, and none waits for another."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.support.machines import memory_driver
from tests.support.machines.agent_settings import QUICK

from kgwe.agentapi.client import Access
from kgwe.apps.agent import rpc
from kgwe.apps.agent.main import build_agent
from kgwe.apps.agent.status import gpunode_status
from kgwe.apps.discovery.live import Answer, LiveFleet
from kgwe.local.host import ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

COUNT = 12


def links(answer: Answer) -> int:
    """Of the first card."""
    assert answer.status is not None
    nvlink = answer.status.gpus[0].nvlink
    assert nvlink is not None
    return nvlink.links


class Served:
    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        self.drivers: dict[str, memory_driver.MemoryDriver] = {}
        self.now = 0.0
        self.busiest = 0


@pytest.fixture
async def fleet() -> AsyncIterator[Served]:
    """Agents of many nodes, in this process."""
    served = Served()
    busy = 0
    async with contextlib.AsyncExitStack() as stack:
        for number in range(COUNT):
            name = f"n{number}"
            driver = served.drivers[name] = memory_driver.MemoryDriver(memory_driver.machine(memory_driver.node()))

            async def opened(driver: memory_driver.MemoryDriver = driver) -> memory_driver.MemoryDriver:
                return driver

            agent = build_agent(msgspec.structs.replace(QUICK, node_name=name), opened)
            keeping = asyncio.create_task(agent.supervisor.run())
            stack.callback(keeping.cancel)
            await agent.supervisor.opened.wait()
            ask = agent.topology

            async def counted(*, fresh: bool, ask: object = ask) -> object:
                nonlocal busy
                busy += 1
                served.busiest = max(served.busiest, busy)
                try:
                    await asyncio.sleep(0.001)
                    return await ask(fresh=fresh)  # type: ignore[operator] # the agent's own
                finally:
                    busy -= 1

            agent.topology = counted  # type: ignore[assignment,method-assign] # counts who asks at the same time
            port = await stack.enter_async_context(rpc.serving(agent, agent.services.settings))
            served.addresses[name] = f"127.0.0.1:{port}"
        yield served


async def test_every_agent_answers_for_its_node(fleet):
    async with LiveFleet() as live:
        answers = await live.ask(fleet.addresses)
        expected = gpunode_status.build_status(memory_driver.machine(memory_driver.node()))
        assert list(answers) == list(fleet.addresses)
        assert all(answer.status == expected for answer in answers.values())


async def test_only_so_many_are_asked_at_once(fleet):
    async with LiveFleet(at_once=3) as live:
        await live.ask(fleet.addresses)
    # Topology and health of each.
    assert fleet.busiest <= 2 * 3


async def test_answers_are_kept_for_a_while_and_asked_for_afresh_on_demand(fleet):
    async with LiveFleet(clock=lambda: fleet.now) as live:
        await live.ask(fleet.addresses)
        driver = fleet.drivers["n3"]
        driver.now = memory_driver.link_down(driver.now, 0, 0)
        fleet.now += 29
        again = await live.ask(fleet.addresses)
        assert links(again["n3"]) == 18
        fresh = await live.ask({"n3": fleet.addresses["n3"]}, fresh=True)
        assert links(fresh["n3"]) == 17
        clients = dict(live._clients)
        await live.ask(fleet.addresses, fresh=True)
        assert live._clients == clients, "connections are kept"


async def test_an_agent_that_is_away_is_named_and_holds_up_nobody(fleet):
    dead = ports.allocate(("dead",))["dead"]
    addresses = {**fleet.addresses, "gone": f"127.0.0.1:{dead}"}
    async with LiveFleet(Access(deadline_s=5.0)) as live:
        answers = await live.ask(addresses)
        assert answers["gone"].status is None
        assert f"127.0.0.1:{dead}" in answers["gone"].problem
        assert sum(answer.status is not None for answer in answers.values()) == COUNT


async def test_an_address_that_another_node_has_by_now_is_not_believed(fleet):
    async with LiveFleet() as live:
        answers = await live.ask({"n0": fleet.addresses["n1"]})
        assert answers["n0"].status is None
        assert "belongs to node n1, not to n0" in answers["n0"].problem


async def test_nodes_that_are_gone_are_forgotten(fleet):
    async with LiveFleet() as live:
        await live.ask(fleet.addresses)
        await live.keep(["n0"])
        assert list(live._clients) == list(live._answers) == ["n0"]
