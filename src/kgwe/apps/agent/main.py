"""`kgwe agent`: the process on every GPU node.

    driver ──► keeper ──► machine (30 s) ──► report ──► publisher ──► GPUNode
                 │                              ▲
                 ├──► readings (5 s) ──► hub ───┼──► gRPC streams, metrics
                 └──► events ──► health ────────┘

Everything runs on one event loop; the driver has threads of its own. No part is needed by the others: without a driver
the agent says so and waits for one, without an API server it keeps the newest report, and a part that breaks is started
again while the rest goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import signal
import time
from typing import TYPE_CHECKING, TypeVar

import structlog

from kgwe import errors
from kgwe.apps.agent import features, rpc
from kgwe.apps.agent.driver_supervisor import DriverSupervisor
from kgwe.apps.agent.metrics.stream import TelemetryHub
from kgwe.apps.agent.status import gpunode_status
from kgwe.apps.agent.status.publisher import DRIVER_READY, FIELD_MANAGER, StatusPublisher
from kgwe.apps.agent.tasks import SupervisedTasks
from kgwe.kube.api.kgwe import gpunode
from kgwe.kube.api.meta import Condition
from kgwe.model.telemetry.sample import NodeReadings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from kgwe.apps.agent.devices.wiring import KubeletDevices
    from kgwe.apps.agent.driver_supervisor import DriverState
    from kgwe.apps.agent.rpc import MigHandler, MpsHandler
    from kgwe.apps.agent.settings import Settings
    from kgwe.hardware.driver import GpuDriver
    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.informer import Informer
    from kgwe.model.gpu.driver_data import Event, Machine, Reading
    from kgwe.model.telemetry.sample import Series

log = structlog.get_logger(__name__)
T = TypeVar("T")
R = TypeVar("R")

# How long one call waits for the driver's events; the driver decides when to look.
_EVENTS_S = 5.0
_SETTLED_S = 10.0


class Agent:
    """One node's agent. Parts of others hang themselves into the lists below, and change what is reported."""

    def __init__(
        self,
        settings: Settings,
        open_driver: Callable[[], Awaitable[GpuDriver]],
        client: KubeClient | None = None,
    ) -> None:
        self.settings = settings
        self.node = settings.node
        self.version = importlib.metadata.version("kgwe")
        self.client = client
        self.keeper = DriverSupervisor(
            open_driver, retry_s=settings.driver_retry_seconds, retry_max_s=settings.driver_retry_max_seconds
        )
        self.keeper.on_change = self.nudge
        self.hub = TelemetryHub(settings.grpc_watchers)
        self.parts = SupervisedTasks()
        self.mig: MigHandler | None = None
        #: cards and slices that are about to change: nobody is given one
        self.withheld: Callable[[], frozenset[str]] = frozenset
        self.mps: MpsHandler | None = None
        self.mps_servers: Callable[[], Mapping[int, Sequence[int]]] = dict
        #: what of the newest readings is worth keeping over time; the exporter puts its own here
        self.series: Callable[[], Mapping[Series, float | None]] = dict
        self.devices: KubeletDevices | None = None
        self.grpc_port = 0
        self.exporter_port = 0
        #: the machine as last read, with what was known before
        self.machine: Machine | None = None
        self.status = gpunode.GPUNodeStatus()
        self._before: gpunode.GPUNodeStatus | None = None
        self._looked_at = 0.0
        self._looking = asyncio.Lock()
        self._nudge = asyncio.Event()
        self._measured = asyncio.Event()

        #: health of a card; the health part puts its own here
        self.health_of: gpunode_status.HealthOf = gpunode_status.basic_health
        #: each may change what is reported
        self.amend: list[Callable[[gpunode.GPUNodeStatus], gpunode.GPUNodeStatus]] = []
        #: each adds a condition to what is reported
        self.conditions: list[Callable[[], Condition]] = []
        self.on_status: list[Callable[[gpunode.GPUNodeStatus], None]] = []
        #: each adds lines to the metrics
        self.renderers: list[Callable[[], bytes]] = []
        self.on_machine: list[Callable[[Machine], None]] = []
        self.on_readings: list[Callable[[Sequence[Reading]], None]] = []
        self.on_events: list[Callable[[Sequence[Event]], None]] = []

        self.publisher: StatusPublisher | None = None
        self.informer: Informer[gpunode.GPUNode] | None = None
        if client is not None:
            self._connect(client)

    def _connect(self, client: KubeClient) -> None:
        from kgwe.kube.api import resources  # noqa: PLC0415 - not needed standalone
        from kgwe.kube.client.informer import Informer  # noqa: PLC0415

        self.publisher = StatusPublisher(client, self.node, heartbeat_s=self.settings.heartbeat_interval_seconds)
        self.informer = Informer(client, resources.GPU_NODE, field_selector=f"metadata.name={self.node}")
        self.informer.on_change(self.publisher.on_change)

    # --- what can be asked ------------------------------------------------------------------------------

    @property
    def driver(self) -> DriverState:
        return self.keeper.state

    @property
    def problems(self) -> Sequence[str]:
        found = [f"{name}: {why}" for name, why in self.parts.problems.items()]
        if self.publisher is not None and self.publisher.problem:
            found.append(f"publisher: {self.publisher.problem}")
        return found

    async def topology(self, *, fresh: bool) -> tuple[gpunode.GPUNodeStatus, float, Sequence[Sequence[str]]]:
        """From memory while that is not older than the discovery interval; several callers cause one look."""
        asked = time.monotonic()
        oldest = asked if fresh else asked - self.settings.discovery_interval_seconds
        if self.machine is None or self._looked_at < oldest:
            try:
                await self.look(oldest)
            except errors.KgweError:
                if fresh or self.machine is None:
                    raise
        if self.machine is None:
            raise errors.Transient(f"nothing is known of the GPUs yet: {self.driver.message}")
        matrix = gpunode_status.wiring(self.machine, self.status).matrix()
        return self.status, time.monotonic() - self._looked_at, matrix

    # --- looking ----------------------------------------------------------------------------------------

    def nudge(self) -> None:
        """Something changed: look at the machine now rather than at the next interval."""
        self._nudge.set()

    async def look(self, oldest: float | None = None) -> None:
        """Read the machine, unless somebody did so after `oldest` while we waited."""
        async with self._looking:
            if oldest is not None and self.machine is not None and self._looked_at >= oldest:
                return
            machine = await self.keeper.machine()
            self.machine = gpunode_status.with_memory(machine, self.machine)
            self._looked_at = time.monotonic()
        self._call(self.on_machine, self.machine)
        self.tell()

    def tell(self) -> None:
        """Report what is known now; parts call it when something they add has changed."""
        state = self.driver
        if self.machine is not None:
            status = gpunode_status.with_known_links(
                gpunode_status.status(self.machine, self.health_of), self._published_before()
            )
        elif self.publisher is not None and self.publisher.stored is not None:
            # From before a restart, as long as there is no driver that knows better.
            status = self.publisher.stored.status
        else:
            status = gpunode.GPUNodeStatus()
        if not state.is_ready:
            status = gpunode_status.without_driver(status, state.message)
        for amend in self.amend:
            status = self._guarded(amend, status, status)
        self.status = status
        self._call(self.on_status, status)
        # Before the API was read, an agent that has not seen its machine would write over what is known of it.
        has_read = self.informer is None or self.informer.synced.is_set()
        if self.publisher is not None and (has_read or self.machine is not None):
            condition = Condition(DRIVER_READY, str(state.is_ready), state.reason, state.message[:1024])
            self.publisher.set_status(status, (condition, *(each() for each in self.conditions)))

    def _published_before(self) -> gpunode.GPUNodeStatus:
        """What an agent before this one wrote; nothing until the API was read."""
        if self._before is None and self.publisher is not None and self.publisher.stored is not None:
            there = self.publisher.stored
            is_ours = there.spec.source == gpunode.Source.AGENT
            self._before = there.status if is_ours else gpunode.GPUNodeStatus()
        return self._before or gpunode.GPUNodeStatus()

    def _call(self, listeners: Iterable[Callable[[T], None]], value: T) -> None:
        """Each of them; one that breaks is named, and the others hear of it all the same."""
        for listener in listeners:
            self._guarded(listener, value, None)

    def _guarded(self, part: Callable[[T], R], value: T, otherwise: R) -> R:
        """What the part makes of it; a part that breaks is named in `problems` until it works again."""
        name = getattr(part, "__qualname__", repr(part))
        try:
            made = part(value)
        except Exception as exc:  # somebody else's part: the rest is worth having
            if name not in self.parts.problems:
                log.exception("listener_failed", listener=name)
            self.parts.problems[name] = f"{type(exc).__name__}: {exc}"
            return otherwise
        self.parts.problems.pop(name, None)
        return made

    async def _discover(self) -> None:
        """The machine, every interval and whenever something is known to have changed."""
        if self.informer is not None:
            # What was published before tells what was known; without an API server that is nothing.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.telemetry_interval_seconds):
                    await self.informer.synced.wait()
        await self._opened(self.settings.telemetry_interval_seconds)
        while True:
            self._nudge.clear()
            try:
                await self.look()
            except errors.KgweError as exc:
                log.debug("machine_not_read", error=str(exc))
                self.tell()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.discovery_interval_seconds):
                    await self._nudge.wait()

    async def _measure(self) -> None:
        """The instruments, every interval by the clock."""
        loop = asyncio.get_running_loop()
        step = self.settings.telemetry_interval_seconds
        await self._opened(step)
        due = loop.time()
        while True:
            try:
                readings = await self.keeper.readings()
            except errors.KgweError as exc:
                log.debug("instruments_not_read", error=str(exc))
            else:
                self._call(self.on_readings, readings)
                self.hub.publish(NodeReadings(int(time.time() * 1000), readings, self.series()))
                self._measured.set()
            # A reading that took longer than the interval skips those it overran.
            due = max(due + step, loop.time())
            await asyncio.sleep(due - loop.time())

    async def _listen(self) -> None:
        """XID errors, as they happen."""
        while True:
            try:
                events = await self.keeper.events(_EVENTS_S)
            except errors.KgweError as exc:
                log.debug("events_not_read", error=str(exc))
                await asyncio.sleep(_EVENTS_S)
                continue
            if events:
                self._call(self.on_events, events)
                self.nudge()

    # --- running ----------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set."""
        parts = self.parts
        parts.add("driver", self.keeper.run)
        parts.add("discovery", self._discover)
        parts.add("telemetry", self._measure)
        parts.add("events", self._listen)
        if self.informer is not None and self.publisher is not None:
            parts.add("informer", self.informer.run)
            parts.add("publisher", self._publish)
        if self.settings.grpc_bind_address:
            parts.add("grpc", lambda: rpc.serve(self, self.settings, self._on_port))
        features.add(self)
        log.info("agent_started", node=self.node, version=self.version, parts=parts.names)
        running = asyncio.create_task(parts.run())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (running, stopping):
                task.cancel()
            await asyncio.gather(running, stopping, return_exceptions=True)
            log.info("agent_stopped", node=self.node)

    def _on_port(self, port: int) -> None:
        self.grpc_port = port

    async def _publish(self) -> None:
        if self.informer is None or self.publisher is None:
            return
        await self.informer.synced.wait()
        if await self._opened(self.settings.telemetry_interval_seconds):
            # The first report says how the cards are, not that it is not known yet.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.telemetry_interval_seconds):
                    await self._measured.wait()
        await self.publisher.run()

    async def _opened(self, timeout_s: float) -> bool:
        """Whether there is a driver, after giving it a moment to come."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.keeper.opened.wait()
        return self.keeper.opened.is_set()


def open_nvml(settings: Settings) -> Callable[[], Awaitable[GpuDriver]]:
    """Opens NVIDIA's driver; Permanent, with the reason, when there is none."""

    async def opened() -> GpuDriver:
        from kgwe.hardware.nvml import driver as nvml  # noqa: PLC0415 - another driver can be given

        environment = dict(os.environ)
        environment.setdefault(nvml.SYSFS_VARIABLE, os.path.join(settings.host_root, "sys"))  # noqa: PTH118 - a text
        if settings.nvml_library:
            environment[nvml.LIBRARY_VARIABLE] = settings.nvml_library
        driver = nvml.NvmlDriver.from_environment(environment)
        try:
            await driver.machine()
        except errors.KgweError:
            await driver.close()
            raise
        return driver

    return opened


async def serve(
    settings: Settings, kubeconfig: Path | None = None, *, settled: Callable[[], object] = lambda: None
) -> None:
    """Run the agent until SIGTERM or SIGINT; `settled` is called when all that comes with a start is over."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.call_later(_SETTLED_S, settled)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if settings.standalone:
        await Agent(settings, open_nvml(settings)).run(stop)
        return
    from kgwe.kube.client.client import KubeClient  # noqa: PLC0415 - not needed standalone

    async with KubeClient.connect(kubeconfig, field_manager=FIELD_MANAGER) as client:
        await Agent(settings, open_nvml(settings), client).run(stop)
