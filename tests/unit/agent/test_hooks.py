"""Hooks and the reporter that calls them, without an agent around them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.support.machines import memory_driver

from kgwe import errors
from kgwe.apps.agent.driver_supervisor import DriverSupervisor
from kgwe.apps.agent.hooks import HookRunner, Hooks
from kgwe.apps.agent.reporter import NodeReporter
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
    return supervisor, NodeReporter(supervisor, hooks, runner, wake=wake, interval_s=30.0, topology_file=file)


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

    hooks = Hooks(
        amend_status=[rename, lambda status: msgspec.structs.replace(status, bootID=f"{status.bootID}y")],
        on_machine=[lambda machine: seen.append(len(machine.devices))],
        on_status=[lambda status: seen.append(status.bootID)],
    )
    reporter = await discovered(hooks, {})
    assert seen == [8, "xy"]
    assert reporter.status.bootID == "xy"


async def test_a_hook_that_fails_is_named_until_it_works_again():
    problems: dict[str, str] = {}
    is_broken = True

    def broken(status: GPUNodeStatus) -> GPUNodeStatus:
        if is_broken:
            raise RuntimeError("out of order")
        return status

    reporter = await discovered(Hooks(amend_status=[broken]), problems)
    assert reporter.status.gpuCount == 8
    assert [*problems.values()] == ["RuntimeError: out of order"]
    is_broken = False
    reporter.report()
    assert problems == {}


async def test_without_a_driver_there_is_no_topology():
    _, reporter = make_reporter(Hooks(), {})
    with pytest.raises(errors.Transient, match="no driver"):
        await reporter.topology(fresh=False)


def test_every_listener_hears_of_a_reset_and_of_a_write():
    resets: list[str] = []
    writes: list[tuple[str, int]] = []
    hooks = Hooks(on_reset=[resets.append, resets.append], on_write=[lambda kind, size: writes.append((kind, size))])
    hooks.call_on_reset("GPU-1")
    hooks.call_on_write("status", 7)
    assert (resets, writes) == (["GPU-1", "GPU-1"], [("status", 7)])
