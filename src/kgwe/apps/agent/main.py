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
from kgwe.apps.agent.hooks import HookRunner, combine_features
from kgwe.apps.agent.instruments import InstrumentReader
from kgwe.apps.agent.reporter import NodeReporter
from kgwe.apps.agent.services import AgentServices, WriteCounts
from kgwe.apps.agent.status.publisher import FIELD_MANAGER, StatusPublisher
from kgwe.apps.agent.status.topology_file import TopologyFile
from kgwe.apps.agent.tasks import SupervisedTasks
from kgwe.apps.agent.telemetry_hub import TelemetryHub

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from kgwe.apps.agent.driver_supervisor import DriverState
    from kgwe.apps.agent.features import BuiltFeatures
    from kgwe.apps.agent.hooks import Feature, Hooks, MigHandler, MpsHandler
    from kgwe.apps.agent.settings import Settings
    from kgwe.hardware.driver import GpuDriver
    from kgwe.kube.api.kgwe import gpunode
    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.informer import Informer

log = structlog.get_logger(__name__)

_SETTLED_S = 10.0


class Agent:
    """The agent of one node: runs its parts and the tasks of its features under supervision."""

    def __init__(self, services: AgentServices, enabled: Sequence[Feature]) -> None:
        """`enabled` are the features, in the order in which they amend the status."""
        settings, hooks = services.settings, combine_features(enabled)
        self.version = importlib.metadata.version("kgwe")
        self.services = services
        self.supervisor, self.hub, self.hooks = services.supervisor, services.hub, hooks
        self.features = enabled
        runner = HookRunner(services.failures)
        #: None without an API server
        self.informer = None if services.client is None else _watch_gpunode(services, services.client, hooks)
        self.reporter = NodeReporter(
            services.supervisor,
            hooks,
            runner,
            state=services.state,
            wake=services.wake,
            interval_s=settings.discovery_interval_seconds,
            topology_file=TopologyFile(settings.topology_file, services.failures),
            publisher=services.publisher,
            informer=self.informer,
        )
        self._instruments = InstrumentReader(
            services.supervisor,
            hooks,
            runner,
            services.hub,
            interval_s=settings.telemetry_interval_seconds,
            request_discovery=services.request_discovery,
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
        tasks = self._list_tasks()
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

    def _list_tasks(self) -> SupervisedTasks:
        tasks, settings = SupervisedTasks(self.services.failures), self.services.settings
        tasks.add("driver", self.supervisor.run)
        tasks.add("discovery", self._discover)
        tasks.add("telemetry", self._measure)
        tasks.add("events", self._instruments.run_events)
        if self.informer is not None:
            tasks.add("informer", self.informer.run)
            tasks.add("publisher", self._publish)
        if settings.grpc_bind_address:
            tasks.add("grpc", lambda: rpc.serve(self, settings, self._set_grpc_port))
        for task in (task for feature in self.features for task in feature.tasks):
            tasks.add(task.name, task.run)
        return tasks

    def _set_grpc_port(self, port: int) -> None:
        self.services.ports.grpc = port

    async def _discover(self) -> None:
        informer, first_s = self.informer, self.services.settings.telemetry_interval_seconds
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
        informer, publisher = self.informer, self.services.publisher
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


def _watch_gpunode(services: AgentServices, client: KubeClient, hooks: Hooks) -> Informer[gpunode.GPUNode]:
    from kgwe.kube.api import resources  # noqa: PLC0415 - not needed standalone
    from kgwe.kube.client.informer import Informer  # noqa: PLC0415

    informer = Informer(client, resources.GPU_NODE, field_selector=f"metadata.name={services.node}")
    if services.publisher is not None:
        informer.on_change(services.publisher.on_change)
    for on_gpunode in hooks.on_gpunode:
        informer.on_change(on_gpunode)
    return informer


def build_agent(
    settings: Settings,
    open_driver: Callable[[], Awaitable[GpuDriver]],
    client: KubeClient | None = None,
    *,
    build: Callable[[AgentServices], BuiltFeatures] = features.build_features,
) -> Agent:
    """Build the agent with the features that the settings enable. `client` is None without an API server."""

    def report() -> None:
        # Features are built before the agent. They call this later, when their part has changed.
        agent.reporter.report()

    services = _build_services(settings, open_driver, client, report)
    built = build(services)
    services.failures.update(built.problems)
    agent = Agent(services, built.features)
    return agent


def _build_services(
    settings: Settings,
    open_driver: Callable[[], Awaitable[GpuDriver]],
    client: KubeClient | None,
    report: Callable[[], None],
) -> AgentServices:
    wake, writes = asyncio.Event(), WriteCounts()
    supervisor = DriverSupervisor(
        open_driver,
        retry_s=settings.driver_retry_seconds,
        retry_max_s=settings.driver_retry_max_seconds,
        on_change=wake.set,
    )
    publisher = None
    if client is not None:
        heartbeat_s = settings.heartbeat_interval_seconds
        publisher = StatusPublisher(client, settings.node, heartbeat_s=heartbeat_s, on_write=writes.count_write)
    return AgentServices(
        settings=settings,
        supervisor=supervisor,
        hub=TelemetryHub(settings.grpc_watchers),
        report=report,
        wake=wake,
        writes=writes,
        client=client,
        publisher=publisher,
    )


def open_nvml(settings: Settings) -> Callable[[], Awaitable[GpuDriver]]:
    """Return a function that opens NVIDIA's driver, or raises Permanent with the reason."""

    async def open_driver() -> GpuDriver:
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

    return open_driver


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
        await build_agent(settings, open_nvml(settings)).run(stop)
        return
    from kgwe.kube.client.client import KubeClient  # noqa: PLC0415 - not needed standalone

    async with KubeClient.connect(kubeconfig, field_manager=FIELD_MANAGER) as client:
        await build_agent(settings, open_nvml(settings), client).run(stop)
