"""The device plugins of this node: one per resource, registered with the kubelet.

They are checked every second, because a restarted kubelet removes their sockets and forgets them.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors
from kgwe.hardware.kubelet.deviceplugin import AdvertisedDevice, DevicePlugin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kgwe.hardware.kubelet.deviceplugin import Allocator
    from kgwe.model.devices.advertised import OfferedDevice

log = structlog.get_logger(__name__)

#: directory of plugin sockets, below the kubelet's root directory
FOLDER: Final = "device-plugins"
_LOOK_S: Final = 1.0


class DevicePlugins:
    """The device plugins of all resources of the node."""

    def __init__(self, folder: Path, allocator: Allocator, *, look_s: float = _LOOK_S) -> None:
        self._folder = folder
        self._allocator = allocator
        self._look_s = look_s
        self._wake = asyncio.Event()
        self._plugins: dict[str, DevicePlugin] = {}
        #: resource -> why it is not registered
        self.problems: dict[str, str] = {}

    @property
    def resources(self) -> tuple[str, ...]:
        return tuple(self._plugins)

    def advertise(self, offers: Mapping[str, Sequence[OfferedDevice]]) -> None:
        """Set the advertised devices. A resource without devices is advertised empty.

        Otherwise the kubelet would keep counting the last devices for five minutes.
        """
        for resource in offers:
            if resource not in self._plugins:
                self._plugins[resource] = DevicePlugin(self._folder, socket_name(resource), resource, self._allocator)
                self._wake.set()
        for resource, plugin in self._plugins.items():
            plugin.advertise(
                [AdvertisedDevice(each.id, each.is_healthy, each.numa) for each in offers.get(resource, ())]
            )

    async def run(self) -> None:
        """Keep the plugins registered until cancelled."""
        try:
            while True:
                self._wake.clear()
                for plugin in tuple(self._plugins.values()):
                    if not plugin.is_current:
                        await self._start(plugin)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._look_s):
                        await self._wake.wait()
        finally:
            await asyncio.gather(*(plugin.stop() for plugin in self._plugins.values()))

    async def _start(self, plugin: DevicePlugin) -> None:
        try:
            await plugin.start()
        except errors.KgweError as exc:
            if self.problems.get(plugin.resource) != str(exc):
                log.warning("device_plugin_not_registered", resource=plugin.resource, error=str(exc))
            self.problems[plugin.resource] = str(exc)
        else:
            self.problems.pop(plugin.resource, None)
            log.info("device_plugin_registered", resource=plugin.resource)


def socket_name(resource: str) -> str:
    """Return the name of a resource's socket."""
    return f"kgwe-{resource.replace('/', '-')}.sock"
