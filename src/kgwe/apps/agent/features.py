"""The parts of the agent that can be left out, hung into it. Each is imported only where it is switched on.

The order counts where they change what is reported: health first, then what is being cut, and last the device plugins,
which offer what the report says is fit.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.apps.agent.main import Agent
    from kgwe.apps.agent.mig.reconfigurer import DeviceUsers
    from kgwe.hardware.mps.daemons import MpsDaemons

log = structlog.get_logger(__name__)

# How long a kubelet may take to tell of what it gave a pod.
_GRACE_S = 1.0
# How often the MPS daemons are looked after.
_TEND_S = 5.0


def add(agent: Agent) -> None:
    """All that the settings ask for. One that cannot be hung in is named, and the agent runs without it."""
    for name, hang in _PARTS.items():
        try:
            hang(agent)
        except Exception as exc:  # whatever it is, the rest is worth having
            log.exception("part_left_out", part=name)
            agent.parts.problems[name] = f"{type(exc).__name__}: {exc}"


def _health(agent: Agent) -> None:
    if agent.settings.enable_health:
        from kgwe.apps.agent.health import monitor  # noqa: PLC0415

        monitor.add(agent)


def _mps(agent: Agent) -> None:
    if not agent.settings.enable_mps:
        return
    from kgwe.apps.agent.mps import orders  # noqa: PLC0415
    from kgwe.hardware.linux import compute_mode  # noqa: PLC0415
    from kgwe.hardware.mps.daemons import MpsDaemons  # noqa: PLC0415
    from kgwe.hardware.nvml.driver import SMI_VARIABLE  # noqa: PLC0415

    settings = agent.settings
    # Also where it is not asked for now: another setting may have been in force before.
    exclusive = compute_mode.through(os.environ.get(SMI_VARIABLE) or "nvidia-smi")
    daemons = MpsDaemons(Path(settings.mps_directory), set_exclusive=exclusive)
    handler = orders.MpsOrders(daemons, agent, is_exclusive=settings.mps_exclusive)
    agent.mps = handler
    agent.mps_servers = daemons.servers
    agent.renderers.append(lambda: handler.render(agent.node))
    agent.parts.add("mps", lambda: _tend(daemons))


async def _tend(daemons: MpsDaemons) -> None:
    await daemons.open()
    try:
        while True:
            await daemons.tend()
            await asyncio.sleep(_TEND_S)
    finally:
        await daemons.close()


def _mig(agent: Agent) -> None:
    if not agent.settings.enable_mig:
        return
    from kgwe.apps.agent.mig.reconfigurer import MigReconfigurer  # noqa: PLC0415

    cutter = MigReconfigurer(agent.keeper, users=_users(agent), grace_s=_GRACE_S)

    async def withhold(_devices: frozenset[str]) -> None:
        agent.tell()

    cutter.withhold = withhold
    agent.withheld = lambda: cutter.withheld
    cutter.on_change = agent.nudge
    agent.mig = cutter
    agent.amend.append(cutter.amend_status)
    if agent.informer is not None:
        agent.informer.on_change(cutter.on_gpunode)
    agent.parts.add("mig", cutter.run)


def _users(agent: Agent) -> DeviceUsers | None:
    """Who has what, as the kubelet says; where it is not asked, the pods of the node tell, and without an API server
    processes alone."""
    if agent.client is None:
        return None
    if not agent.settings.enable_pod_resources:
        from kgwe.apps.agent.devices.claims import ClaimedDevices  # noqa: PLC0415
        from kgwe.apps.agent.devices.node_pods import NodePods  # noqa: PLC0415

        pods = NodePods(agent.client, agent.node)
        agent.parts.add("pods that may have slices", pods.run)
        return ClaimedDevices(agent.keeper, pods.informer)

    async def held() -> frozenset[str] | None:
        if agent.devices is None:
            return None
        from kgwe.apps.agent import node_context  # noqa: PLC0415

        try:
            return frozenset(node_context.map_holders(await agent.devices.truth.list(), agent.machine))
        except errors.KgweError:
            return None

    return held


def _exporter(agent: Agent) -> None:
    if agent.settings.exporter_bind_address:
        from kgwe.apps.agent.metrics import wiring as exporting  # noqa: PLC0415

        exporting.add(agent)


def _devices(agent: Agent) -> None:
    settings = agent.settings
    if agent.client is not None and (settings.enable_pod_resources or settings.enable_device_plugin):
        from kgwe.apps.agent.devices import wiring as devices  # noqa: PLC0415 - a node without a kubelet needs none of it

        agent.devices = devices.add(agent)
        if agent.devices is not None:
            agent.renderers.append(agent.devices.render)


_PARTS: Mapping[str, Callable[[Agent], None]] = {
    "health": _health,
    "mig": _mig,
    "mps": _mps,
    "exporter": _exporter,
    "devices": _devices,
}
