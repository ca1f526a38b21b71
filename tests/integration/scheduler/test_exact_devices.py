"""From a plan to the cards in a container: scheduler, agent, device plugin, and a kubelet that speaks the protocols."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clusters.bed import kgwe
from tests.support.fakes import kubelet as stand_in
from tests.support.fakes.kubelet import GPU, Kubelet
from tests.support.machines import memory_driver as gpus

from kgwe.apps.agent.main import build_agent
from kgwe.apps.agent.settings import Settings
from kgwe.kube.api import resources
from kgwe.kube.client.informer import Informer
from kgwe.model.devices import assignment, holdings
from kgwe.model.gpu.driver_data import Event
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from tests.support.clusters.bed import Bed

    from kgwe.kube.api.kgwe.gpunode import GPUNode
    from kgwe.kube.client.informer import Change

NODE = "n1"


class OneNode:
    """A node with an agent of ours and a kubelet that admits whatever is bound to it, one pod after another."""

    def __init__(self, bed: Bed, root: Path, pieces: int) -> None:
        self.bed = bed
        self.kubelet = Kubelet(root)
        self.driver = gpus.MemoryDriver(gpus.machine(gpus.node("h100")))
        self.uuids = [each.uuid for each in self.driver.now.devices]
        self.gpunodes: Informer[GPUNode] = Informer(bed.client, resources.GPU_NODE)
        self._bound: asyncio.Queue[Any] = asyncio.Queue()
        settings = Settings(
            node_name=NODE,
            host_root=str(root),
            kubelet_folder="/",
            grpc_bind_address="",
            exporter_bind_address="",
            enable_device_plugin=True,
            device_plugin_replicas=pieces,
            enable_mig=False,
            discovery_interval_seconds=2.0,
        )
        self.agent = build_agent(settings, self._open, bed.client)

    async def _open(self) -> gpus.MemoryDriver:
        return self.driver

    def on_pod(self, change: Change[Any]) -> None:
        if change.new is None:
            if change.old is not None:
                self.kubelet.end(change.old)
        elif change.new.spec.nodeName == NODE and (change.old is None or not change.old.spec.nodeName):
            self._bound.put_nowait(change.new)

    async def admit(self) -> None:
        while True:
            await self.kubelet.admit(await self._bound.get())

    def planned(self, pod: Any) -> set[str]:
        return {self.uuids[card] for card in assignment.parse_planned(pod.metadata.annotations).numbers}

    def pods(self) -> list[Any]:
        return [each for each in self.bed.pods.store.values() if each.spec.nodeName == NODE]

    def verdict(self) -> tuple[str, str]:
        """What the GPUNode says of plan and truth; nothing while it is not there."""
        found = self.gpunodes.store.get(NODE)
        said = [each for each in found.status.conditions if each.type == "DevicesAsPlanned"] if found else []
        return (said[0].status, said[0].reason) if said else ("", "")

    def holders(self) -> dict[str, set[str]]:
        """Pod -> its cards, as the GPUNode says."""
        return {
            each.pod: {self.uuids[card] for card in assignment.DeviceSet(assignment.parse_mask(each.cards)).numbers}
            for each in (self.gpunodes.store[NODE].status.held if NODE in self.gpunodes.store else ())
        }


@pytest.fixture
async def node(bed: Bed) -> AsyncIterator[OneNode]:
    async with one_node(bed) as made:
        yield made


@pytest.fixture
async def divided(bed: Bed) -> AsyncIterator[OneNode]:
    """The same with two pieces to a card."""
    async with one_node(bed, pieces=2) as made:
        yield made


@contextlib.asynccontextmanager
async def one_node(bed: Bed, *, pieces: int = 0) -> AsyncIterator[OneNode]:
    resource, count = (amounts.SHARED, 8 * pieces) if pieces else (amounts.GPU, 8)
    await bed.node(NODE, 0, more={resource: str(count)})
    with stand_in.folder() as root:
        made = OneNode(bed, root, pieces)
        await made.kubelet.start()
        stop = asyncio.Event()
        jobs: list[Awaitable[None]] = [made.agent.run(stop), made.admit(), made.gpunodes.run()]
        tasks = [asyncio.ensure_future(each) for each in jobs]
        bed.pods.on_change(made.on_pod)
        try:
            offered = made.kubelet.healthy
            await stand_in.until(lambda: len(offered(resource)) == count and NODE in made.gpunodes.store)
            yield made
        finally:
            stop.set()
            await asyncio.wait([tasks[0]], timeout=10)
            # A card that was sick stays so over a restart: the next test has a new machine.
            await bed.client.delete(resources.GPU_NODE, NODE)
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)
            bed.pods._handlers.remove(made.on_pod)
            await made.kubelet.stop()


async def run(bed: Bed, name: str, count: int) -> Any:
    workload = await bed.submit(kgwe(name, count))
    return await bed.until_phase(workload, "Running")


def half(name: str) -> dict[str, Any]:
    return kgwe(name, gpuRequirements={"share": 0.5})


async def eventually(true: Callable[[], Any]) -> None:
    await stand_in.until(true)


async def test_every_pod_gets_the_cards_of_its_plan_and_the_node_says_so(bed: Bed, node: OneNode):
    await bed.controller()
    for name, count in (("a", 3), ("b", 1), ("c", 2), ("d", 2)):
        await run(bed, name, count)
    await eventually(lambda: len(node.kubelet.in_use(GPU)) == 8)

    assert len(set(node.kubelet.in_use())) == 8
    for pod in node.pods():
        assert node.planned(pod), "every pod is told its cards"
        assert node.kubelet.held(pod.metadata.key) == node.planned(pod)
    await eventually(lambda: len(node.holders()) == 4)
    assert node.holders() == {pod.metadata.key: node.planned(pod) for pod in node.pods()}
    assert node.verdict() == ("True", "AsPlanned")


async def offer(bed: Bed, **offered: int) -> None:
    """What a kubelet reports after its device plugins have changed."""
    names = {amounts.GPU: offered.get("gpus", 0), amounts.SHARED: offered.get("shares", 0)}
    counts = {name: str(count) for name, count in names.items()}
    await bed.client.patch(
        resources.NODE, NODE, {"status": {"capacity": counts, "allocatable": counts}}, subresource="status"
    )


@pytest.mark.slow
async def test_a_sharing_policy_divides_a_node_and_its_end_makes_the_gpus_whole(bed: Bed, node: OneNode):
    await bed.client.patch(resources.NODE, NODE, {"metadata": {"labels": {"pool": "notebooks"}}})
    await bed.controller()
    spec = {
        "strategy": "timeslicing",
        "nodeSelector": {"pool": "notebooks"},
        "timeSlicingConfig": {"replicasPerGPU": 2},
    }
    body = {"apiVersion": "kgwe.nvidia.io/v1", "kind": "GPUSharingPolicy", "metadata": {"name": "halves"}, "spec": spec}
    await bed.client.create(resources.GPU_SHARING_POLICY, body)
    try:
        await eventually(lambda: len(node.kubelet.healthy(amounts.SHARED)) == 16)
        await eventually(lambda: not node.kubelet.healthy(GPU))
        await eventually(lambda: node.gpunodes.store[NODE].spec.sharing)
        told = node.gpunodes.store[NODE].spec.sharing
        assert told is not None
        assert (told.method, told.replicas, told.policy) == ("timeslicing", 2, "halves")
        await offer(bed, shares=16)
        pair = [await bed.submit(half(name)) for name in ("a", "b")]
        for workload in pair:
            await bed.until_phase(workload, "Running")
        await eventually(lambda: len(node.kubelet.in_use(amounts.SHARED)) == 2)
        for workload in pair:
            await bed.delete(workload)
        await bed.until(lambda: not bed.pods.store)
    finally:
        await bed.client.delete(resources.GPU_SHARING_POLICY, "halves")
    await eventually(lambda: len(node.kubelet.healthy(GPU)) == 8)
    await eventually(lambda: node.gpunodes.store[NODE].spec.sharing is None)
    await offer(bed, gpus=8)
    await run(bed, "whole", 8)


async def test_where_the_kubelet_does_otherwise_it_is_told_and_the_next_plan_follows_the_truth(bed: Bed, node: OneNode):
    await bed.controller()
    node.kubelet.stubborn = True
    first = await run(bed, "first", 3)
    await eventually(lambda: len(node.kubelet.in_use()) == 3)
    (pod,) = node.pods()
    really = node.kubelet.held(pod.metadata.key)
    assert really != node.planned(pod)

    await eventually(lambda: node.holders() == {pod.metadata.key: really})
    await eventually(lambda: node.verdict() == ("False", "OtherDevices"))
    listed = await bed.client.list(resources.EVENT, "default")
    assert any(b"OtherDevices" in bytes(each) for each in listed)

    node.kubelet.stubborn = False
    await run(bed, "second", 5)
    await eventually(lambda: len(node.kubelet.in_use()) == 8)
    second = next(each for each in node.pods() if each.metadata.uid != pod.metadata.uid)
    assert node.planned(second) == set(node.uuids) - really, "planned on what is really free"
    assert node.kubelet.held(second.metadata.key) == node.planned(second)

    await bed.delete(first)
    await eventually(lambda: len(node.kubelet.in_use()) == 5)
    await eventually(lambda: node.verdict() == ("True", "AsPlanned"))


async def test_a_card_that_fails_is_taken_from_the_kubelet_and_nobody_is_planned_on_it(bed: Bed, node: OneNode):
    await bed.controller()
    broken = node.uuids[2]
    node.driver.happened.put_nowait(Event(broken, 79))
    await eventually(lambda: node.kubelet.healthy() == set(node.uuids) - {broken})
    assert node.kubelet.devices[GPU][broken] == "Unhealthy"
    await eventually(lambda: NODE in node.gpunodes.store and node.gpunodes.store[NODE].status.healthyGPUs == 7)
    await run(bed, "rest", 7)
    await eventually(lambda: len(node.kubelet.in_use()) == 7)
    (pod,) = node.pods()
    assert node.kubelet.held(pod.metadata.key) == node.planned(pod) == set(node.uuids) - {broken}


async def test_sixteen_halves_at_once_are_two_to_a_card_and_each_where_it_was_planned(bed: Bed, divided: OneNode):
    """KAI#2153: 16 pods of half a GPU at once on 8 cards; there 3 or 4 came to one card and crashed."""
    await bed.controller()
    made = await asyncio.gather(*(bed.submit(half(f"half-{number}")) for number in range(16)))
    for workload in made:
        await bed.until_phase(workload, "Running")
    await eventually(lambda: len(divided.kubelet.in_use(amounts.SHARED)) == 16)

    pieces = divided.kubelet.in_use(amounts.SHARED)
    assert len(set(pieces)) == 16, "nobody has a piece of another"
    assert collections.Counter(holdings.device_uuid(each) for each in pieces) == dict.fromkeys(divided.uuids, 2)
    for pod in divided.pods():
        mine = divided.kubelet.held(pod.metadata.key, amounts.SHARED)
        assert {holdings.device_uuid(each) for each in mine} == divided.planned(pod)
    await eventually(lambda: len(divided.holders()) == 16)
    assert divided.verdict() == ("True", "AsPlanned")


async def test_where_the_kubelet_shares_otherwise_the_next_plan_follows_the_truth(bed: Bed, divided: OneNode):
    await bed.controller()
    divided.kubelet.stubborn = True
    for name in ("a", "b", "c"):
        await bed.until_phase(await bed.submit(half(name)), "Running")
    await eventually(lambda: len(divided.holders()) == 3)
    really = collections.Counter(uuid for mine in divided.holders().values() for uuid in mine)
    assert any(divided.holders()[pod.metadata.key] != divided.planned(pod) for pod in divided.pods())
    await eventually(lambda: divided.verdict() == ("False", "OtherDevices"))

    divided.kubelet.stubborn = False
    for workload in [await bed.submit(half(f"rest-{number}")) for number in range(13)]:
        await bed.until_phase(workload, "Running")
    await eventually(lambda: len(divided.kubelet.in_use(amounts.SHARED)) == 16)
    planned = collections.Counter(
        uuid for pod in divided.pods() if pod.metadata.name.startswith("rest-") for uuid in divided.planned(pod)
    )
    assert planned + really == dict.fromkeys(divided.uuids, 2), "planned on what is really free"
