"""`kgwe agent`: the process on each GPU node.

    driver ──► supervisor ──► machine (30 s) ──► reporter ──► publisher ──► GPUNode
                   │                                ▲
                   ├──► instruments (5 s) ──► hub ──┼──► gRPC streams, metrics
                   └──► events ──► health ──────────┘

All tasks run on one event loop; the driver has its own threads. The parts are independent: without a driver the agent
reports that and waits for one, without an API server it keeps the newest report, and a failed task is restarted while
the others continue.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import signal
from typing import TYPE_CHECKING

import structlog

from kgwe import errors
from kgwe.apps.agent import features, rpc
from kgwe.apps.agent.driver_supervisor import DriverSupervisor
from kgwe.apps.agent.hooks import HookRunner, Hooks
from kgwe.apps.agent.instruments import InstrumentReader
from kgwe.apps.agent.reporter import NodeReporter
from kgwe.apps.agent.services import AgentServices
from kgwe.apps.agent.status.publisher import FIELD_MANAGER, StatusPublisher
from kgwe.apps.agent.status.topology_file import TopologyFile
from kgwe.apps.agent.tasks import SupervisedTasks
from kgwe.apps.agent.telemetry_hub import TelemetryHub

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from kgwe.apps.agent.driver_supervisor import DriverState
    from kgwe.apps.agent.hooks import MigHandler, MpsHandler
    from kgwe.apps.agent.settings import Settings
    from kgwe.hardware.driver import GpuDriver
    from kgwe.kube.api.kgwe import gpunode
    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.informer import Informer

log = structlog.get_logger(__name__)

_SETTLED_S = 10.0


class Agent:
    """The agent of one node: builds its parts and runs them as supervised tasks."""

    def __init__(
        self,
        settings: Settings,
        open_driver: Callable[[], Awaitable[GpuDriver]],
        client: KubeClient | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self.version = importlib.metadata.version("kgwe")
        self.hooks = hooks = hooks or Hooks()
        self.hub = TelemetryHub(settings.grpc_watchers)
        tasks = SupervisedTasks()
        runner = HookRunner(tasks.problems)
        wake = asyncio.Event()
        self.supervisor = DriverSupervisor(
            open_driver,
            retry_s=settings.driver_retry_seconds,
            retry_max_s=settings.driver_retry_max_seconds,
            on_change=wake.set,
            on_reset=hooks.call_on_reset,
        )
        publisher = informer = None
        if client is not None:
            heartbeat_s = settings.heartbeat_interval_seconds
            publisher = StatusPublisher(client, settings.node, heartbeat_s=heartbeat_s, on_write=hooks.call_on_write)
            informer = _watch_gpunode(client, settings.node)
            informer.on_change(publisher.on_change)
        self.reporter = NodeReporter(
            self.supervisor,
            hooks,
            runner,
            wake=wake,
            interval_s=settings.discovery_interval_seconds,
            topology_file=TopologyFile(settings.topology_file, tasks.problems),
            publisher=publisher,
            informer=informer,
        )
        self._instruments = InstrumentReader(
            self.supervisor,
            hooks,
            runner,
            self.hub,
            interval_s=settings.telemetry_interval_seconds,
            request_discovery=wake.set,
        )
        self.services = AgentServices(
            settings=settings,
            hooks=hooks,
            tasks=tasks,
            supervisor=self.supervisor,
            reporter=self.reporter,
            hub=self.hub,
            client=client,
            publisher=publisher,
            informer=informer,
        )

    # --- answers of the gRPC service --------------------------------------------------------------------

    @property
    def node(self) -> str:
        return self.services.node

    @property
    def driver(self) -> DriverState:
        return self.supervisor.state

    @property
    def problems(self) -> Sequence[str]:
        return self.services.problems

    @property
    def mig(self) -> MigHandler | None:
        return self.hooks.mig

    @property
    def mps(self) -> MpsHandler | None:
        return self.hooks.mps

    async def topology(self, *, fresh: bool) -> tuple[gpunode.GPUNodeStatus, float, Sequence[Sequence[str]]]:
        return await self.reporter.topology(fresh=fresh)

    # --- running ----------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set."""
        tasks = self.services.tasks
        self._add_tasks()
        features.add(self.services)
        log.info("agent_started", node=self.node, version=self.version, parts=tasks.names)
        running = asyncio.create_task(tasks.run())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (running, stopping):
                task.cancel()
            await asyncio.gather(running, stopping, return_exceptions=True)
            log.info("agent_stopped", node=self.node)

    def _add_tasks(self) -> None:
        tasks, settings = self.services.tasks, self.services.settings
        tasks.add("driver", self.supervisor.run)
        tasks.add("discovery", self._discover)
        tasks.add("telemetry", self._measure)
        tasks.add("events", self._instruments.run_events)
        if self.services.informer is not None:
            tasks.add("informer", self.services.informer.run)
            tasks.add("publisher", self._publish)
        if settings.grpc_bind_address:
            tasks.add("grpc", lambda: rpc.serve(self, settings, self._set_grpc_port))

    def _set_grpc_port(self, port: int) -> None:
        self.services.ports.grpc = port

    async def _discover(self) -> None:
        informer, first_s = self.services.informer, self.services.settings.telemetry_interval_seconds
        if informer is not None:
            # The first report keeps the published data; without an API server there is none.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(first_s):
                    await informer.synced.wait()
        await self._wait_for_driver()
        await self.reporter.run()

    async def _measure(self) -> None:
        await self._wait_for_driver()
        await self._instruments.run_readings()

    async def _publish(self) -> None:
        informer, publisher = self.services.informer, self.services.publisher
        if informer is None or publisher is None:
            return
        await informer.synced.wait()
        if await self._wait_for_driver():
            # The first report contains the health of the GPUs instead of Unknown.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.services.settings.telemetry_interval_seconds):
                    await self._instruments.first_read.wait()
        await publisher.run()

    async def _wait_for_driver(self) -> bool:
        """Wait briefly for the driver to open; return whether it did."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.services.settings.telemetry_interval_seconds):
                await self.supervisor.opened.wait()
        return self.supervisor.opened.is_set()


def _watch_gpunode(client: KubeClient, node: str) -> Informer[gpunode.GPUNode]:
    from kgwe.kube.api import resources  # noqa: PLC0415 - not needed standalone
    from kgwe.kube.client.informer import Informer  # noqa: PLC0415

    return Informer(client, resources.GPU_NODE, field_selector=f"metadata.name={node}")


def open_nvml(settings: Settings) -> Callable[[], Awaitable[GpuDriver]]:
    """Return a function that opens NVIDIA's driver, or raises Permanent with the reason."""

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
    """Run the agent until SIGTERM or SIGINT; call `settled` after the start."""
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
