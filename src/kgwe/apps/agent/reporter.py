"""Reads the machine from the driver and reports it as the status of the GPUNode."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import structlog

from kgwe import errors
from kgwe.apps.agent.status import gpunode_status
from kgwe.apps.agent.status.publisher import DRIVER_READY
from kgwe.kube.api.kgwe import gpunode
from kgwe.kube.api.meta import Condition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.apps.agent.driver_supervisor import DriverState, DriverSupervisor
    from kgwe.apps.agent.hooks import HookRunner, Hooks
    from kgwe.apps.agent.services import NodeState
    from kgwe.apps.agent.status.publisher import StatusPublisher
    from kgwe.apps.agent.status.topology_file import TopologyFile
    from kgwe.kube.client.informer import Informer
    from kgwe.model.gpu.driver_data import Machine

log = structlog.get_logger(__name__)


class NodeReporter:
    """Keeps the machine as last read, and its status with the additions of all features."""

    def __init__(
        self,
        supervisor: DriverSupervisor,
        hooks: Hooks,
        runner: HookRunner,
        *,
        state: NodeState,
        wake: asyncio.Event,
        interval_s: float,
        topology_file: TopologyFile,
        publisher: StatusPublisher | None = None,
        informer: Informer[gpunode.GPUNode] | None = None,
    ) -> None:
        """Sets `state`. Setting `wake` causes a read now. `publisher` and `informer` are None without an API server."""
        self._supervisor = supervisor
        self._hooks = hooks
        self._runner = runner
        self._state = state
        self._wake = wake
        self._interval_s = interval_s
        self._topology_file = topology_file
        self._publisher = publisher
        self._informer = informer
        self.status = gpunode.GPUNodeStatus()
        self._before: gpunode.GPUNodeStatus | None = None
        self._read_at = 0.0
        self._reading = asyncio.Lock()

    @property
    def driver(self) -> DriverState:
        return self._supervisor.state

    @property
    def machine(self) -> Machine | None:
        """The machine as last read."""
        return self._state.machine

    async def topology(self, *, fresh: bool) -> tuple[gpunode.GPUNodeStatus, float, Sequence[Sequence[str]]]:
        """Return (status, age in seconds, matrix of paths).

        The data is from memory unless older than the discovery interval or `fresh` is set. Concurrent callers cause
        one read.
        """
        asked = time.monotonic()
        oldest = asked if fresh else asked - self._interval_s
        if self.machine is None or self._read_at < oldest:
            try:
                await self.discover(oldest)
            except errors.KgweError:
                if fresh or self.machine is None:
                    raise
        if self.machine is None:
            raise errors.Transient(f"the GPUs have not been read yet: {self.driver.message}")
        matrix = gpunode_status.build_wiring(self.machine, self.status).matrix()
        return self.status, time.monotonic() - self._read_at, matrix

    async def discover(self, oldest: float | None = None) -> None:
        """Read the machine and report it, unless it was read after `oldest` meanwhile."""
        async with self._reading:
            if oldest is not None and self.machine is not None and self._read_at >= oldest:
                return
            machine = self._topology_file.complete(await self._supervisor.machine())
            self._state.machine = machine = gpunode_status.with_memory(machine, self.machine)
            self._read_at = time.monotonic()
        self._runner.call_all(self._hooks.on_machine, machine)
        self.report()

    def report(self) -> None:
        """Report the current state; features call it after a change of their part."""
        state = self.driver
        status = self._known_status()
        if not state.is_ready:
            status = gpunode_status.without_driver(status, state.message)
        for amend in self._hooks.amend_status:
            status = self._runner.call(amend, status, status)
        self.status = status
        self._runner.call_all(self._hooks.on_status, status)
        # Before the API was read, an agent without a reading would overwrite the published status.
        has_read = self._informer is None or self._informer.synced.is_set()
        if self._publisher is not None and (has_read or self.machine is not None):
            condition = Condition(DRIVER_READY, str(state.is_ready), state.reason, state.message[:1024])
            self._publisher.set_status(status, (condition, *(each() for each in self._hooks.conditions)))

    async def run(self) -> None:
        """Read the machine at each interval, and after known changes."""
        while True:
            self._wake.clear()
            try:
                await self.discover()
            except errors.KgweError as exc:
                log.debug("machine_not_read", error=str(exc))
                self.report()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._wake.wait()

    def _known_status(self) -> gpunode.GPUNodeStatus:
        """Return the machine's status; before the first reading, the status that an earlier agent published."""
        if self.machine is not None:
            status = gpunode_status.build_status(self.machine, self._hooks.health_of)
            return gpunode_status.with_known_links(status, self._published_before())
        if self._publisher is not None and self._publisher.stored is not None:
            return self._publisher.stored.status
        return gpunode.GPUNodeStatus()

    def _published_before(self) -> gpunode.GPUNodeStatus:
        """Return the status that an earlier agent published; nothing until the API was read."""
        if self._before is None and self._publisher is not None and self._publisher.stored is not None:
            stored = self._publisher.stored
            is_ours = stored.spec.source == gpunode.Source.AGENT
            self._before = stored.status if is_ours else gpunode.GPUNodeStatus()
        return self._before or gpunode.GPUNodeStatus()
