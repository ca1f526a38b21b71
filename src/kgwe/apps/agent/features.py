"""Adds the agent's optional features to its hooks and tasks. A feature is imported only if it is enabled.

Features that change the report run in order: health, then MIG, then the device plugins, which advertise healthy GPUs.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors

if TYPE_CHECKING:
    from kgwe.apps.agent.mig.reconfigurer import DeviceUsers
    from kgwe.apps.agent.node_pods import KubeletAccess
    from kgwe.apps.agent.services import AgentServices
    from kgwe.hardware.mps.daemons import MpsDaemons

log = structlog.get_logger(__name__)

# Seconds within which a kubelet lists an allocation.
_GRACE_S: Final = 1.0
# Seconds between two checks of the MPS daemons.
_TEND_S: Final = 5.0


def add(services: AgentServices) -> None:
    """Add each enabled feature. If one fails, the agent runs without it and reports the failure."""
    _Features(services).add_all()


class _Features:
    def __init__(self, services: AgentServices) -> None:
        self._services = services
        self._kubelet: KubeletAccess | None = None

    def add_all(self) -> None:
        steps = {
            "kubelet": self._open_kubelet,
            "health": self._add_health,
            "mig": self._add_mig,
            "mps": self._add_mps,
            "exporter": self._add_exporter,
            "devices": self._add_devices,
        }
        for name, step in steps.items():
            try:
                step()
            except Exception as exc:  # a failing feature must not stop the others
                log.exception("feature_failed", feature=name)
                self._services.tasks.problems[name] = f"{type(exc).__name__}: {exc}"

    def _open_kubelet(self) -> None:
        """Open the kubelet sources that several features share; None without an API server."""
        settings = self._services.settings
        if self._services.client is not None and (settings.enable_pod_resources or settings.enable_device_plugin):
            from kgwe.apps.agent.devices import wiring  # noqa: PLC0415 - a node without a kubelet needs none of it

            self._kubelet = wiring.open_kubelet(settings, self._services.client)

    def _add_health(self) -> None:
        if self._services.settings.enable_health:
            from kgwe.apps.agent.health import wiring  # noqa: PLC0415

            wiring.add(self._services)

    def _add_mig(self) -> None:
        services = self._services
        if not services.settings.enable_mig:
            return
        from kgwe.apps.agent.mig.reconfigurer import MigReconfigurer  # noqa: PLC0415

        async def report() -> None:
            services.reporter.report()

        reconfigurer = MigReconfigurer(
            services.supervisor,
            users=self._find_users(),
            grace_s=_GRACE_S,
            on_withhold=report,
            on_change=services.reporter.request_discovery,
        )
        services.hooks.withheld_devices = lambda: reconfigurer.withheld
        services.hooks.mig = reconfigurer
        services.hooks.amend_status.append(reconfigurer.amend_status)
        if services.informer is not None:
            services.informer.on_change(reconfigurer.on_gpunode)
        services.tasks.add("mig", reconfigurer.run)

    def _find_users(self) -> DeviceUsers | None:
        """Return the source of devices in use: the kubelet, else the pods of the node, else None (processes only)."""
        services, kubelet = self._services, self._kubelet
        if services.client is None:
            return None
        if not services.settings.enable_pod_resources:
            from kgwe.apps.agent.devices.claims import ClaimedDevices  # noqa: PLC0415
            from kgwe.apps.agent.node_pods import NodePods  # noqa: PLC0415

            pods = NodePods(services.client, services.node)
            services.tasks.add("pods that may have slices", pods.run)
            return ClaimedDevices(services.supervisor, pods.informer)

        async def list_held() -> frozenset[str] | None:
            if kubelet is None:
                return None
            from kgwe.apps.agent.metrics import node_context  # noqa: PLC0415

            try:
                listed = await kubelet.pod_resources.list()
                return frozenset(node_context.map_holders(listed, services.reporter.machine))
            except errors.KgweError:
                return None

        return list_held

    def _add_mps(self) -> None:
        services, settings = self._services, self._services.settings
        if not settings.enable_mps:
            return
        from kgwe.apps.agent.mps import orders  # noqa: PLC0415
        from kgwe.hardware.linux import compute_mode  # noqa: PLC0415
        from kgwe.hardware.mps.daemons import MpsDaemons  # noqa: PLC0415
        from kgwe.hardware.nvml.driver import SMI_VARIABLE  # noqa: PLC0415

        # Also if it is disabled now: an earlier setting may have enabled it.
        exclusive = compute_mode.compute_mode_setter(os.environ.get(SMI_VARIABLE) or "nvidia-smi")
        daemons = MpsDaemons(Path(settings.mps_directory), set_exclusive=exclusive)
        handler = orders.MpsOrders(daemons, services.reporter, is_exclusive=settings.mps_exclusive)
        services.hooks.mps = handler
        services.hooks.mps_servers = daemons.map_servers
        services.hooks.renderers.append(lambda: handler.render(services.node))
        services.tasks.add("mps", lambda: _check_daemons(daemons))

    def _add_exporter(self) -> None:
        if self._services.settings.exporter_bind_address:
            from kgwe.apps.agent.metrics import wiring  # noqa: PLC0415

            wiring.add(self._services, self._kubelet)

    def _add_devices(self) -> None:
        if self._kubelet is not None and self._services.client is not None:
            from kgwe.apps.agent.devices import wiring  # noqa: PLC0415 - as above

            wiring.add(self._services, self._services.client, self._kubelet)


async def _check_daemons(daemons: MpsDaemons) -> None:
    await daemons.open()
    try:
        while True:
            await daemons.check_daemons()
            await asyncio.sleep(_TEND_S)
    finally:
        await daemons.close()
