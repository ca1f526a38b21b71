"""Health on the NVML driver: what happens to simulated hardware shows as the state it should be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.builders import gpus

from kgwe.apps.agent.health.monitor import HealthMonitor
from kgwe.model.health.health import assess_health

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

_THERMAL = 0x40


class Node:
    """A DGX H100 and the health part of its agent, on a clock that tests turn."""

    def __init__(self, folder: Path) -> None:
        self.hardware = gpus.hardware(folder, gpus.node_of("dgx-h100"))
        self.driver = gpus.driver(self.hardware)
        self.now_s = 1_800_000_000.0
        self.health = HealthMonitor(wall=lambda: self.now_s)
        self.energy_mj = 10**9

    async def look(self) -> None:
        self.health.on_machine(await self.driver.machine())

    async def listen(self, seconds: float = 5.0) -> None:
        # As seldom as counts in full: reading eight cards takes a while.
        for _ in range(max(int(seconds / 15), 1)):
            self.now_s += 15
            self.energy_mj += 10**6
            for card in range(8):
                self.hardware.set(card, energy_mj=self.energy_mj)
            self.health.on_readings(await self.driver.readings())

    async def happen(self) -> None:
        self.health.on_events(await self.driver.events(5.0))

    def state(self, card: int) -> tuple[str, str]:
        found = assess_health(list(self.health.watches.values())[card])
        return found.state, found.reason


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    await made.look()
    await made.driver.events(0.01)  # from now on nothing is missed
    await made.listen()
    assert {made.state(card) for card in range(8)} == {("Healthy", "")}
    yield made
    await made.driver.close()
    made.hardware.close()


async def test_an_xid_condemns_its_card(node):
    node.hardware.report_xid(5, 119)
    await node.happen()
    assert node.state(5) == ("Unhealthy", "GSPTimeout")
    assert {node.state(card) for card in range(8) if card != 5} == {("Healthy", "")}


async def test_memory_heat_and_links_degrade_their_cards(node):
    node.hardware.set(0, ecc_uncorrected=1)
    node.hardware.set(1, rows_pending=1)
    node.hardware.set(2, rows_failed=1)
    node.hardware.set(3, ecc_corrected=5000)
    node.hardware.set(4, throttle=_THERMAL)
    node.hardware.set_link(5, 7, replays=500)
    node.hardware.set_link(6, 2, up=0)
    await node.look()
    await node.listen(90)
    assert [node.state(card) for card in range(8)] == [
        ("Degraded", "UncorrectedECCErrors"),
        ("Degraded", "RowRemapPending"),
        ("Unhealthy", "RowRemapFailed"),
        ("Degraded", "CorrectedECCErrors"),
        ("Degraded", "Overheated"),
        ("Degraded", "NVLinkErrors"),
        ("Degraded", "NVLinkDown"),
        ("Healthy", ""),
    ]


async def test_a_lost_card_is_out_of_service_and_comes_back_by_a_reset(node):
    uuid = list(node.health.watches)[4]
    node.hardware.lose(4)
    await node.listen()
    assert node.state(4) == ("Unhealthy", "GPULost")
    await node.driver.reset(uuid)
    node.health.on_reset(uuid)
    assert node.state(4) == ("Unknown", "NotReadYet")
    await node.listen()
    assert node.state(4) == ("Healthy", "")


async def test_a_reset_shows_in_the_energy_counter(node):
    node.hardware.report_xid(1, 95)
    await node.happen()
    await node.listen()
    assert node.state(1)[0] == "Unhealthy"
    await node.driver.reset(list(node.health.watches)[1])
    node.energy_mj = 0
    await node.listen(30)
    assert node.state(1) == ("Healthy", "")
