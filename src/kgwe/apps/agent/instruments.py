"""Reads GPU readings and events from the driver, and passes them to the features and the telemetry stream."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors
from kgwe.model.telemetry.sample import NodeReadings

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.apps.agent.driver_supervisor import DriverSupervisor
    from kgwe.apps.agent.hooks import HookRunner, Hooks
    from kgwe.apps.agent.telemetry_hub import TelemetryHub

log = structlog.get_logger(__name__)

# Seconds that one call waits for driver events.
_EVENTS_S: Final = 5.0


class InstrumentReader:
    def __init__(
        self,
        supervisor: DriverSupervisor,
        hooks: Hooks,
        runner: HookRunner,
        hub: TelemetryHub,
        *,
        interval_s: float,
        request_discovery: Callable[[], None],
    ) -> None:
        self._supervisor = supervisor
        self._hooks = hooks
        self._runner = runner
        self._hub = hub
        self._interval_s = interval_s
        self._request_discovery = request_discovery
        #: set after the first reading
        self.first_read = asyncio.Event()

    async def run_readings(self) -> None:
        """Read the GPUs at fixed intervals."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            try:
                readings = await self._supervisor.readings()
            except errors.KgweError as exc:
                log.debug("readings_failed", error=str(exc))
            else:
                self._runner.call_all(self._hooks.on_readings, readings)
                self._hub.publish(NodeReadings(int(time.time() * 1000), readings, self._hooks.series()))
                self.first_read.set()
            # A reading that took longer than the interval skips the missed ones.
            due = max(due + self._interval_s, loop.time())
            await asyncio.sleep(due - loop.time())

    async def run_events(self) -> None:
        """Pass on XID errors as they occur."""
        while True:
            try:
                events = await self._supervisor.events(_EVENTS_S)
            except errors.KgweError as exc:
                log.debug("events_failed", error=str(exc))
                await asyncio.sleep(_EVENTS_S)
                continue
            if events:
                self._runner.call_all(self._hooks.on_events, events)
                self._request_discovery()
