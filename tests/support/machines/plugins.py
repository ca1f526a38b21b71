"""Device plugins beside a kubelet that speaks the real protocols."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from tests.support.fakes import kubelet as bed
from tests.support.fakes.kubelet import Kubelet, Pods, machine, until

from kgwe.apps.agent.devices.allocator import DeviceAllocator, Outcome
from kgwe.apps.agent.devices.deviceplugin import DevicePlugins
from kgwe.hardware.kubelet.podresources import PodResources
from kgwe.model.devices import advertised

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kgwe.kube.api import core
    from kgwe.model.gpu.driver_data import Machine


class Node:
    """A kubelet and our plugins beside it."""

    def __init__(
        self, kubelet: Kubelet, pods: Pods, *, built: Machine, prefix: str = "nvidia.com", pieces: int = 0
    ) -> None:
        self.kubelet = kubelet
        self.pods = pods
        self.prefix = prefix
        self.pieces = pieces
        self.built = built
        self.truth = PodResources(kubelet.socket)
        self.outcomes: list[Outcome] = []
        self.desk = DeviceAllocator(
            pods, self.truth, on_outcome=lambda _resource, outcome: self.outcomes.append(outcome)
        )
        self.plugins = DevicePlugins(kubelet.plugins, self.desk, look_s=0.05)

    def offer(self, *sick: str) -> None:
        offers = advertised.list_advertised(self.built, out_of_service=sick, prefix=self.prefix, pieces=self.pieces)
        self.desk.set_devices(offers, None)
        self.plugins.advertise(offers)

    async def admit(self, *pods: core.Pod) -> None:
        self.pods.add(*pods)
        for each in pods:
            await self.kubelet.admit(each)


@contextlib.asynccontextmanager
async def running(
    *, built: Machine | None = None, prefix: str = "nvidia.com", pieces: int = 0, kubelet: Kubelet | None = None
) -> AsyncIterator[Node]:
    with bed.folder() as root:
        other = kubelet or Kubelet(root)
        await other.start()
        node = Node(other, Pods(), built=built or machine(), prefix=prefix, pieces=pieces)
        node.offer()
        task = asyncio.create_task(node.plugins.run())
        try:
            await until(lambda: set(other.devices) == set(node.plugins.resources))
            yield node
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await node.truth.close()
            await other.stop()


def ids(*cards: int) -> set[str]:
    return {f"GPU-{card}" for card in cards}
