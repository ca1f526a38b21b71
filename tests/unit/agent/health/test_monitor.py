"""The agent's health part: changes are told at once, and the next agent begins where this one left off."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import pytest
from tests.support.machines import memory_driver
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.apps.agent.health.monitor import Change, HealthMonitor
from kgwe.apps.agent.health.node_condition import CONDITION, RESET_ANNOTATION, TAINT, NodeHealthWriter, decide_condition
from kgwe.apps.agent.main import build_agent
from kgwe.apps.agent.settings import Settings
from kgwe.apps.agent.status import gpunode_status
from kgwe.kube.api.kgwe import gpunode
from kgwe.kube.api.meta import ObjectMeta
from kgwe.kube.client.client import KubeClient
from kgwe.kube.transport.httpx_transport import HttpxTransport
from kgwe.model.gpu.driver_data import Event, Faults, LinkErrors, Machine, Reading
from kgwe.model.health.health import DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T0 = 1_800_000_000.0


class Bed:
    """Eight cards, a clock, and what was called back."""

    def __init__(self) -> None:
        self.now_s = T0
        self.machine: Machine = memory_driver.machine(memory_driver.node())
        self.uuids = [each.uuid for each in self.machine.devices]
        self.changes: list[Change] = []
        self.energy_j = 1e6
        self.boot_id = "boot-1"
        self.on_change: Callable[[Sequence[Change]], None] = lambda _: None
        self.health = self.start()

    def start(self) -> HealthMonitor:
        def heard(changes: Sequence[Change]) -> None:
            self.changes.extend(changes)
            self.on_change(changes)

        self.health = HealthMonitor(on_change=heard, wall=lambda: self.now_s, boot_id=self.boot_id)
        return self.health

    def restart(self, after_s: float = 0.0) -> gpunode.GPUNodeStatus:
        """Another agent, from what this one published."""
        before = self.status
        self.now_s += after_s
        stored = msgspec.json.decode(msgspec.json.encode(before), type=gpunode.GPUNodeStatus)
        self.start().restore(stored)
        return before

    def listen(self, seconds: float = 5.0, **more: Any) -> None:
        for _ in range(max(int(seconds / 5), 1)):
            self.now_s += 5
            self.energy_j += 1000
            common: dict[str, Any] = {"util": 0.5, "energy_j": self.energy_j, **more}
            self.health.on_readings([Reading(uuid, **common) for uuid in self.uuids])
            self.health.tick()

    @property
    def status(self) -> gpunode.GPUNodeStatus:
        return self.health.amend_status(gpunode_status.build_status(self.machine, self.health.health_of))

    def state(self, card: int = 0) -> str:
        return self.status.gpus[card].health.state


@pytest.fixture
def there() -> Bed:
    made = Bed()
    made.health.on_machine(made.machine)
    made.listen()
    made.changes.clear()
    return made


def test_a_fatal_error_is_called_back_and_reported_at_once(there):
    there.health.on_events([Event(there.uuids[3], 79)])
    (change,) = there.changes
    assert (change.uuid, change.before.state, change.now.state) == (there.uuids[3], "Healthy", "Unhealthy")
    health = there.status.gpus[3].health
    assert (health.state, health.reason, health.lastXID, health.action) == (
        "Unhealthy", "FallenOffTheBus", 79, "RestartNode",
    )  # fmt: skip
    assert there.status.healthyGPUs == 7
    assert there.state(2) == "Healthy"


def test_nothing_is_told_while_nothing_changes(there):
    before = there.status
    there.listen(600)
    assert there.changes == []
    assert there.status == before
    assert before.reliability is None
    assert before.incidents == ()


def test_an_error_without_a_card_condemns_all_of_them_and_is_charged_to_the_node(there):
    there.health.on_events([Event("", 48)])
    assert {each.health.state for each in there.status.gpus} == {"Unhealthy"}
    assert there.status.reliability is not None
    assert there.status.reliability.demerits == 1.0
    assert [each.gpu for each in there.status.incidents].count("") == 1


def test_a_harmless_error_without_a_card_condemns_nobody(there):
    there.health.on_events([Event("", 13)])
    assert {each.health.state for each in there.status.gpus} == {"Healthy"}


def test_silence_of_the_driver_makes_the_cards_unknown(there):
    for _ in range(20):
        there.now_s += 5
        there.health.tick()
    assert {each.health.state for each in there.status.gpus} == {"Unknown"}
    there.listen()
    assert {each.health.state for each in there.status.gpus} == {"Healthy"}


def test_a_card_that_the_driver_lists_as_lost_is_out_of_service(there):
    devices = (replace(there.machine.devices[0], is_lost=True), *there.machine.devices[1:])
    there.health.on_machine(replace(there.machine, devices=devices))
    assert (there.state(0), there.state(1)) == ("Unhealthy", "Healthy")


# --- restarts -------------------------------------------------------------------------------------------


def test_a_condemned_card_stays_condemned_over_a_restart_and_until_a_reset(there):
    there.health.on_events([Event(there.uuids[0], 95)])
    before = there.restart()
    assert there.status == before, "a restart changes nothing"
    there.listen(1800)
    assert there.state(0) == "Unhealthy"
    there.energy_j = 0.0
    there.listen(10)
    assert there.state(0) == "Healthy"


def test_a_reset_while_no_agent_ran_is_seen_by_the_next(there):
    there.health.on_events([Event(there.uuids[0], 79), Event(there.uuids[0], 13)])
    there.restart()
    there.energy_j = 0.0
    there.listen(5)
    assert there.state(0) == "Unhealthy", "one odd reading shows nothing"
    there.listen(5)
    assert there.state(0) == "Healthy"


def test_a_machine_that_was_started_again_has_no_condemned_cards_until_they_fail_again(there):
    there.health.on_events([Event(there.uuids[0], 79)])
    there.boot_id = "boot-2"
    there.restart()
    assert there.state(0) == "Unknown", "it has to speak first"
    there.listen()
    assert there.state(0) == "Healthy"
    assert there.status.reliability is not None, "the past is kept"


def test_a_restart_forgives_nothing(there):
    there.health.on_events([Event(there.uuids[0], 94)])
    for _ in range(3):
        there.listen(DEFAULTS.contained_quiet_s / 2)
        there.restart()
        assert there.state(0) == "Degraded"
    there.listen(DEFAULTS.contained_quiet_s + 10)
    assert there.state(0) == "Healthy"


def test_reliability_survives_restarts_and_decays(there):
    there.health.on_events([Event(there.uuids[0], 48)])
    told = there.status.gpus[0].reliability
    assert told is not None
    assert told.score == pytest.approx(0.37)
    assert there.status.reliability == gpunode.Reliability(0.37)
    there.health.on_reset(there.uuids[0])
    for _ in range(4):
        there.restart(7 * 86_400)
        there.listen()
    later = there.status
    assert later.gpus[0].reliability is not None
    assert later.gpus[0].reliability.score == pytest.approx(0.94, abs=0.06)
    assert (later.gpus[0].reliability.demerits, later.gpus[0].reliability.asOf) == (told.demerits, told.asOf)
    assert [(each.gpu, each.xid) for each in later.incidents] == [(there.uuids[0], 48)]
    assert there.status.gpus[1].reliability is None
    there.restart(20 * 7 * 86_400)
    assert there.status.reliability is None, "forgiven"


def test_the_past_of_a_link_survives(there):
    for total in (0, 500):
        there.listen(faults=Faults(links=(LinkErrors(3, replays=total),)))
    before = there.restart()
    told = there.status.gpus[0].reliability
    assert told is not None
    assert [each.link for each in told.links] == [3]
    assert told == before.gpus[0].reliability


def test_a_link_that_is_down_stays_so_over_a_restart(there):
    there.machine = memory_driver.link_down(there.machine, 2, 7)
    there.health.on_machine(there.machine)
    assert there.state(2) == "Degraded"
    there.restart()
    there.health.on_machine(there.machine)
    there.listen(1200)
    assert there.status.gpus[2].health.reason == "NVLinkDown"
    there.machine = memory_driver.machine(memory_driver.node())
    there.health.on_machine(there.machine)
    there.listen(DEFAULTS.quiet_s + 10)
    assert there.state(2) == "Healthy"


def test_what_is_written_is_small(there):
    for card, number in enumerate((48, 79, 94, 63, 13, 31, 95, 119)):
        for _ in range(100):
            there.health.on_events([Event(there.uuids[card], number)])
            there.now_s += 1
    status = there.status
    assert len(status.incidents) <= 32
    assert {each.count for each in status.incidents} <= {1, 2, 4, 8, 16, 32, 64}
    added = msgspec.json.encode((status.incidents, [each.reliability for each in status.gpus], status.reliability))
    assert len(added) < 6000


def test_a_flood_of_one_error_is_not_told_again_and_again(there):
    for _ in range(100):
        there.health.on_events([Event(there.uuids[0], 13)])
    assert len(there.changes) == 1


def test_an_error_before_the_past_is_known_counts_as_well(there):
    there.health.on_events([Event(there.uuids[0], 94)])
    stored = there.status
    late = there.start()
    late.on_machine(there.machine)
    late.on_events([Event(there.uuids[1], 79)])
    late.restore(stored)
    assert (there.state(0), there.state(1)) == ("Degraded", "Unhealthy")


def test_an_operator_can_tell_of_a_reset(there):
    told = NodeHealthWriter(Api().client(), "n1", there.health)
    for number in (0, 1):
        there.health.on_events([Event(there.uuids[number], 79)])
    meta = ObjectMeta(name="n1", annotations={RESET_ANNOTATION: f"{there.uuids[0]}, GPU-unknown"})
    told.on_gpunode(gpunode.GPUNode(metadata=meta))
    there.listen()
    assert (there.state(0), there.state(1)) == ("Healthy", "Unhealthy")
    there.health.on_events([Event(there.uuids[0], 79)])
    told.on_gpunode(gpunode.GPUNode(metadata=meta))
    there.listen()
    assert there.state(0) == "Unhealthy", "it was heard once"


# --- the Node -------------------------------------------------------------------------------------------


def test_the_condition_names_what_is_out_of_service(there):
    assert decide_condition(there.health)[:2] == ("True", "GPUsHealthy")
    there.health.on_events([Event(there.uuids[0], 94)])
    assert decide_condition(there.health)[:2] == ("True", "GPUDegraded")
    there.health.on_events([Event(there.uuids[1], 79)])
    found = decide_condition(there.health)
    assert found[:2] == ("False", "GPUUnhealthy")
    assert f"1 of 8 GPUs out of service: {there.uuids[1]} FallenOffTheBus" in found.message


class Api:
    """An API server with one Node."""

    def __init__(self) -> None:
        self.node: dict[str, Any] = {
            "metadata": {"name": "n1", "uid": "u1", "resourceVersion": "1"},
            "spec": {"taints": [{"key": "other", "effect": "NoExecute", "timeAdded": "2026-11-15T10:00:00Z"}]},
            "status": {"conditions": []},
        }
        self.events: list[dict[str, Any]] = []
        self.writes = 0
        self.failing = 0

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        if self.failing:
            self.failing -= 1
            return httpx2.Response(503, json={"message": "not now"})
        body = json.loads(request.content) if request.content else {}
        if request.url.path.endswith("/events"):
            self.events.append(body)
            return httpx2.Response(201, json=body)
        if request.method == "PATCH":
            self.writes += 1
            self.node["status"] |= body.get("status", {})
            self.node["spec"] |= body.get("spec", {})
        return httpx2.Response(200, json=self.node)

    def client(self) -> KubeClient:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self), base_url="https://cluster.example")
        return KubeClient(HttpxTransport(http), field_manager="kgwe-agent")

    @property
    def condition(self) -> str:
        return next((each["status"] for each in self.node["status"]["conditions"] if each["type"] == CONDITION), "")

    @property
    def taints(self) -> list[str]:
        return [each["key"] for each in self.node["spec"]["taints"]]

    async def until(self, status: str, taints: list[str], events: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (self.condition, self.taints) != (status, taints) or len(self.events) < events:  # noqa: ASYNC110 - bounded
                await asyncio.sleep(0.01)


async def test_the_node_says_it_and_is_tainted_only_if_asked(there):
    for taint, expected in ((False, ["other"]), (True, ["other", TAINT])):
        api = Api()
        api.failing = 1
        made = NodeHealthWriter(api.client(), "n1", there.health, taint=taint)
        there.on_change = made.on_change
        task = asyncio.create_task(made.run())
        await api.until("True", ["other"], 0)
        there.health.on_events([Event(there.uuids[0], 79)])
        await api.until("False", expected, 1)
        assert api.node["spec"]["taints"][0]["timeAdded"], "taints of others are left as they are"
        assert api.events[0]["reason"] == "GPUUnhealthy"
        assert "FallenOffTheBus" in api.events[0]["note"]
        there.health.on_reset(there.uuids[0])
        there.listen()
        await api.until("True", ["other"], 1)
        assert api.writes <= 6
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


# --- the agent ------------------------------------------------------------------------------------------


async def test_an_agent_that_has_seen_nothing_writes_nothing_over_what_is_known(monkeypatch):
    """Its machine is not read yet, and neither is the API."""

    async def no_driver() -> memory_driver.MemoryDriver:
        raise errors.Transient("not yet")

    agent = build_agent(Settings(node_name="n1"), no_driver, Api().client())
    offered: list[gpunode.GPUNodeStatus] = []
    monkeypatch.setattr(agent.services.publisher, "set_status", lambda status, _: offered.append(status))
    agent.reporter.report()
    assert offered == []
    assert agent.informer is not None
    agent.informer.synced.set()
    agent.reporter.report()
    assert [each.gpuCount for each in offered] == [0], "there is nothing to lose"
