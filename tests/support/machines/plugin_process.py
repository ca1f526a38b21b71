"""The device plugins as a process of their own, to be killed: `plugin_process.py FOLDER PIECES`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from kgwe.apps.agent.devices.allocator import DeviceAllocator
from kgwe.apps.agent.devices.deviceplugin import DevicePlugins
from kgwe.hardware.kubelet.podresources import PodResources
from kgwe.kube.api import core
from kgwe.model.devices import advertised
from kgwe.model.gpu.driver_data import Device, Machine
from kgwe.model.gpu.topology import Slot

MACHINE = Machine("", "", tuple(Device(f"GPU-{i}", i, "H100", 80_000, Slot("")) for i in range(8)))


class FilePods:
    """Pods as the test last wrote them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pods(self) -> list[core.Pod]:
        return msgspec.json.decode(self._path.read_bytes(), type=list[core.Pod])

    async def find(self, namespace: str, name: str) -> core.Pod | None:
        key = f"{namespace}/{name}"
        return next((pod for pod in self.pods() if pod.metadata.key == key), None)


async def main(folder: Path, pieces: int) -> None:
    desk = DeviceAllocator(FilePods(folder / "pods.json"), PodResources(folder / "pod-resources" / "kubelet.sock"))
    plugins = DevicePlugins(folder / "device-plugins", desk, look_s=0.05)
    offers = advertised.list_advertised(MACHINE, pieces=pieces)
    desk.set_devices(offers, None)
    plugins.advertise(offers)
    await plugins.run()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
