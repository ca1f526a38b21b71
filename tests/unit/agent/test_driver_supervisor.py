"""A driver that is not there, comes, hangs and goes: the agent waits and says why."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from tests.support.machines import memory_driver
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.apps.agent.driver_supervisor import DriverSupervisor
from kgwe.hardware.nvml.driver import Absence, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


class Opening:
    """Opens a driver, or says why not."""

    def __init__(self, *outcomes: errors.KgweError | memory_driver.MemoryDriver) -> None:
        self.outcomes = list(outcomes)
        self.opened: list[memory_driver.MemoryDriver] = []
        self.tries = 0

    async def __call__(self) -> memory_driver.MemoryDriver:
        self.tries += 1
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, errors.KgweError):
            raise outcome
        self.opened.append(outcome)
        return outcome


@contextlib.asynccontextmanager
async def kept(opening: Opening, reasons: list[str] | None = None) -> AsyncIterator[DriverSupervisor]:
    """`reasons`: gets the reason of every new state."""

    def on_change() -> None:
        if reasons is not None:
            reasons.append(keeper.state.reason)

    keeper = DriverSupervisor(opening, retry_s=0.001, retry_max_s=0.002, on_change=on_change)
    task = asyncio.create_task(keeper.run())
    try:
        yield keeper
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.002)


def driver() -> memory_driver.MemoryDriver:
    return memory_driver.MemoryDriver(memory_driver.machine(memory_driver.node()))


async def test_a_driver_that_is_not_there_is_waited_for():
    opening = Opening(errors.Permanent("no libnvidia-ml.so.1"), errors.Transient("busy"), driver())
    changes: list[str] = []
    async with kept(opening, changes) as keeper:
        with pytest.raises(errors.Transient, match="no driver"):
            await keeper.machine()
        await until(lambda: keeper.state.is_ready)
        assert opening.tries == 3
        assert changes == ["Unavailable", "Unavailable", "Ready"]
        assert len((await keeper.machine()).devices) == 8
    assert opening.opened[0].closed


async def test_the_reason_is_the_drivers_own_where_it_has_one():
    missing = Unavailable(Absence.NO_LIBRARY, "no library")
    async with kept(Opening(missing)) as keeper:
        await until(lambda: keeper.state.reason == "NoLibrary")
        assert keeper.state.message == "no library"


async def test_one_slow_answer_is_no_news_but_three_are():
    memory = driver()
    async with kept(Opening(memory)) as keeper:
        await keeper.opened.wait()
        memory.failure = errors.Transient("did not answer within 5 s")
        for ready in (True, True, False, False):
            with pytest.raises(errors.Transient):
                await keeper.readings()
            assert keeper.state.is_ready is ready
        assert keeper.state.reason == "NotResponding"
        memory.failure = None
        await keeper.readings()
        assert keeper.state.is_ready


async def test_a_driver_that_is_gone_is_opened_again():
    first, second = driver(), driver()
    opening = Opening(first, errors.Permanent("driver not loaded"), second)
    async with kept(opening) as keeper:
        await keeper.opened.wait()
        first.failure = errors.Permanent("driver not loaded")
        with pytest.raises(errors.Permanent):
            await keeper.machine()
        assert not keeper.state.is_ready
        await until(lambda: keeper.state.is_ready)
        assert first.closed
        assert opening.opened == [first, second]


async def test_a_refused_cut_says_nothing_about_the_driver():
    memory = driver()
    async with kept(Opening(memory)) as keeper:
        await keeper.opened.wait()
        for _ in range(4):
            with pytest.raises(errors.Permanent):
                await keeper.create_instance("GPU-x", "9g.9gb", 0)
        assert keeper.state.is_ready
        assert not memory.closed


async def test_events_wait_for_a_driver():
    async with kept(Opening(errors.Permanent("none"))) as keeper:
        assert list(await keeper.events(0.01)) == []
