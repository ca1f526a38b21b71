"""Hooks and the reporter that calls them, without an agent around them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.support.fakes.one_node import OneNode
from tests.support.machines import memory_driver

from kgwe import errors
from kgwe.apps.agent.driver_supervisor import DriverSupervisor
from kgwe.apps.agent.hooks import Feature, HookRunner, Hooks, combine_features
from kgwe.apps.agent.main import build_agent
from kgwe.apps.agent.reporter import NodeReporter
from kgwe.apps.agent.services import NodeState
from kgwe.apps.agent.settings import Settings
from kgwe.apps.agent.status.topology_file import TopologyFile

if TYPE_CHECKING:
    from kgwe.kube.api.kgwe.gpunode import GPUNodeStatus


async def opened() -> memory_driver.MemoryDriver:
    return memory_driver.MemoryDriver(memory_driver.machine(memory_driver.node()))


def make_reporter(hooks: Hooks, problems: dict[str, str]) -> tuple[DriverSupervisor, NodeReporter]:
    wake = asyncio.Event()
    supervisor = DriverSupervisor(opened, on_change=wake.set)
    file = TopologyFile("", problems)
    runner = HookRunner(problems)
    reporter = NodeReporter(
        supervisor, hooks, runner, state=NodeState(), wake=wake, interval_s=30.0, topology_file=file
    )
    return supervisor, reporter


async def discovered(hooks: Hooks, problems: dict[str, str]) -> NodeReporter:
    supervisor, reporter = make_reporter(hooks, problems)
    running = asyncio.create_task(supervisor.run())
    await supervisor.opened.wait()
    await reporter.discover()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return reporter


async def test_hooks_see_the_machine_first_and_change_the_status_in_their_order():
    seen: list[object] = []

    def rename(status: GPUNodeStatus) -> GPUNodeStatus:
        return msgspec.structs.replace(status, bootID=f"{status.bootID}x")

    first = Feature(name="first", amend_status=rename, on_status=lambda status: seen.append(status.bootID))
    second = Feature(
        name="second",
        amend_status=lambda status: msgspec.structs.replace(status, bootID=f"{status.bootID}y"),
        on_machine=lambda machine: seen.append(len(machine.devices)),
    )
    reporter = await discovered(combine_features((first, second)), {})
    assert seen == [8, "xy"]
    assert reporter.status.bootID == "xy"


async def test_a_hook_that_fails_is_named_until_it_works_again():
    problems: dict[str, str] = {}
    is_broken = True

    def broken(status: GPUNodeStatus) -> GPUNodeStatus:
        if is_broken:
            raise RuntimeError("out of order")
        return status

    reporter = await discovered(Hooks(amend_status=(broken,)), problems)
    assert reporter.status.gpuCount == 8
    assert [*problems.values()] == ["RuntimeError: out of order"]
    is_broken = False
    reporter.report()
    assert problems == {}


async def test_without_a_driver_there_is_no_topology():
    _, reporter = make_reporter(Hooks(), {})
    with pytest.raises(errors.Transient, match="no driver"):
        await reporter.topology(fresh=False)


async def test_a_feature_that_cannot_be_built_is_left_out_and_reported(monkeypatch):
    def fail(*_: object) -> Feature:
        raise RuntimeError("no such folder")

    monkeypatch.setattr("kgwe.apps.agent.health.wiring.build_health", fail)
    agent = build_agent(Settings(node_name="n1", standalone=True), opened)
    assert [each.name for each in agent.features] == ["mig", "exporter"]
    assert agent.problems == ["health: RuntimeError: no such folder"]


async def test_health_and_mig_amend_the_status_before_devices_are_advertised():
    agent = build_agent(Settings(node_name="n1", enable_device_plugin=True), opened, OneNode().client())
    assert [each.name for each in agent.features if each.amend_status] == ["health", "mig", "holdings", "device plugin"]
    assert len(agent.hooks.amend_status) == 4


async def test_building_an_agent_reports_nothing():
    """Features are built before the reporter, and call it only after a change."""
    agent = build_agent(Settings(node_name="n1", standalone=True), opened)
    assert (agent.reporter.machine, agent.reporter.status.gpuCount) == (None, 0)
