"""Shared cards: the device plugins offer pieces of them to a kubelet that speaks the real protocols."""

from __future__ import annotations

import asyncio
import collections
import random
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from tests.support.fakes import kubelet as bed
from tests.support.fakes.kubelet import GPU, Kubelet, Refused, machine, until
from tests.support.fakes.one_node import OneNode
from tests.support.machines import memory_driver as gpus
from tests.support.machines.plugins import Node, running

from kgwe.apps.agent.devices.allocator import AccessMethod, ContainerAccess, Outcome
from kgwe.apps.agent.main import build_agent
from kgwe.apps.agent.settings import Settings
from kgwe.model.devices import holdings
from kgwe.model.devices.assignment import NO_DEVICES, DeviceSet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from kgwe.kube.api import core

SHARED = "nvidia.com/gpu.shared"
SLICE = "nvidia.com/mig-3g.40gb"
CUT = machine(cut={7: (("3g.40gb", 0, 4), ("3g.40gb", 4, 4))})


def pod(name: str, *wants: int, card: int | None = None, **more) -> core.Pod:
    plan = DeviceSet(1 << card) if card is not None else NO_DEVICES
    return bed.pod(name, *(wants or (1,)), resource=SHARED, plan=plan, **more)


def halves(*, planned: bool) -> list[core.Pod]:
    """Half a card each, two for each of eight cards."""
    return [pod(f"half-{i:02}", card=i // 2 if planned else None) for i in range(16)]


def cards(pieces: Iterable[str]) -> collections.Counter[str]:
    return collections.Counter(holdings.device_uuid(each) for each in pieces)


def pieces(*cards: int, of: int = 2) -> set[str]:
    return {f"GPU-{card}::{piece}" for card in cards for piece in range(of)}


TWO_EACH = {f"GPU-{card}": 2 for card in range(8)}


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with running(pieces=2) as made:
        yield made


class TestOffer:
    async def test_pieces_and_no_whole_cards(self, node):
        assert sorted(node.kubelet.registrations) == [GPU, SHARED]
        assert node.kubelet.healthy(SHARED) == pieces(*range(8))
        assert node.kubelet.devices[GPU] == {}

    async def test_a_kubelet_that_had_whole_cards_has_none_any_more(self):
        with bed.folder() as root:
            kubelet = Kubelet(root)
            async with running(kubelet=kubelet) as node:
                assert len(kubelet.healthy()) == 8
            async with running(kubelet=kubelet, pieces=4) as node:
                assert node.kubelet.healthy() == set()
                assert len(node.kubelet.healthy(SHARED)) == 32

    async def test_a_card_that_is_cut_offers_slices(self):
        async with running(pieces=2, built=CUT) as node:
            assert node.kubelet.healthy(SHARED) == pieces(*range(7))
            assert node.kubelet.healthy(SLICE) == {"MIG-7-0", "MIG-7-4"}
            node.built = machine()
            node.offer()
            await until(lambda: node.kubelet.healthy(SHARED) == pieces(*range(8)))
            await until(lambda: node.kubelet.devices[SLICE] == {})

    async def test_a_sick_card_takes_its_pieces_with_it_and_brings_them_back(self, node):
        node.offer("GPU-3")
        await until(lambda: node.kubelet.healthy(SHARED) == pieces(0, 1, 2, 4, 5, 6, 7))
        node.offer()
        await until(lambda: len(node.kubelet.healthy(SHARED)) == 16)

    async def test_as_the_agents_settings_say(self):
        driver = gpus.MemoryDriver(gpus.machine(gpus.node("h100")))

        async def opened() -> gpus.MemoryDriver:
            return driver

        with bed.folder() as root:
            kubelet = Kubelet(root)
            await kubelet.start()
            settings = Settings(
                node_name="n1",
                host_root=str(root),
                kubelet_folder="/",
                enable_device_plugin=True,
                device_plugin_replicas=3,
            )
            client = OneNode().client()
            agent = build_agent(settings, opened, client)
            (plugin,) = (task for each in agent.features for task in each.tasks if task.name == "device plugin")
            tasks = [asyncio.ensure_future(run()) for run in (agent.supervisor.run, plugin.run)]
            await until(lambda: agent.driver.is_ready)
            await agent.reporter.discover()
            uuids = [each.uuid for each in driver.now.devices]
            await until(lambda: kubelet.healthy(SHARED) == {f"{uuid}::{i}" for uuid in uuids for i in range(3)})
            assert kubelet.healthy() == set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await kubelet.stop()


class TestHalves:
    """16 pods at once, half a card each, on 8 cards: exactly two on each card. A binder that chose cards one by one put
    up to four on one and left others with one (https://github.com/kai-scheduler/KAI-Scheduler/issues/2153)."""

    @pytest.mark.parametrize("planned", [True, False])
    @pytest.mark.parametrize("seed", range(4))
    async def test_kai_2153_in_whatever_order_they_come(self, node, planned, seed):
        pods = halves(planned=planned)
        node.pods.add(*pods)
        await asyncio.gather(*(node.kubelet.admit(each) for each in random.Random(seed).sample(pods, len(pods))))
        assert cards(node.kubelet.in_use(SHARED)) == TWO_EACH
        assert len(set(node.kubelet.in_use(SHARED))) == 16
        if planned:
            assert all(node.kubelet.held(p.metadata.key, SHARED) <= self.of_plan(p) for p in pods)
            assert set(node.outcomes) == {Outcome.PLANNED}

    @pytest.mark.parametrize("each", [2, 4])
    async def test_kai_2153_all_asked_for_at_the_same_moment(self, each):
        """No kubelet does that; it holds all the same, and where cards have more pieces too."""
        async with running(pieces=each) as node:
            pods = halves(planned=True)
            node.pods.add(*pods)
            free = sorted(node.kubelet.healthy(SHARED))
            for made in pods:
                node.kubelet.pods[made.metadata.key] = made

            async def served() -> str:
                (piece,) = await node.kubelet.prefer(SHARED, free, [], 1)
                await node.kubelet.allocate(piece, resource=SHARED)
                return piece

            given = await asyncio.gather(*(served() for _ in pods))
            assert len(set(given)) == 16
            assert cards(given) == TWO_EACH
            assert node.outcomes == [Outcome.PLANNED] * 16

    async def test_kai_2153_the_watch_shows_them_late(self, node):
        pods = halves(planned=True)
        node.pods.late = {each.metadata.key: each for each in pods}
        for each in pods:
            await node.kubelet.admit(each)
        assert cards(node.kubelet.in_use(SHARED)) == TWO_EACH

    async def test_kai_2153_without_pod_resources(self, node):
        """Who it is may be mistaken then, and pods swap cards: each card still has two."""
        node.kubelet.is_mute = True
        pods = halves(planned=True)
        node.pods.add(*pods)
        for each in reversed(pods):
            await node.kubelet.admit(each)
        assert cards(node.kubelet.in_use(SHARED)) == TWO_EACH

    async def test_kai_2153_while_others_come_and_go(self):
        """Pods without a plan take what nobody is planned on, as long as there is any."""
        async with running(pieces=4) as node:
            node.pods.add(*halves(planned=True))
            plain = [pod(f"plain-{i}") for i in range(16)]
            both = random.Random(5).sample([*plain, *node.pods.known.values()], 32)
            node.pods.add(*plain)
            for each in both:
                await node.kubelet.admit(each)
            for made in halves(planned=True):
                assert node.kubelet.held(made.metadata.key, SHARED) <= self.of_plan(made)
            assert cards(node.kubelet.in_use(SHARED)) == {f"GPU-{card}": 4 for card in range(8)}

    @staticmethod
    def of_plan(made: core.Pod) -> set[str]:
        return pieces(int(made.metadata.name[-2:]) // 2, of=4)


class TestPlans:
    async def test_pods_planned_on_one_card_share_it(self):
        async with running(pieces=4) as node:
            await node.admit(*(pod(name, card=5) for name in "abcd"))
            assert set(node.kubelet.in_use(SHARED)) == pieces(5, of=4)
            assert node.outcomes == [Outcome.PLANNED] * 4

    async def test_one_too_many_goes_elsewhere_and_that_is_told(self, node):
        await node.admit(pod("a", card=5), pod("b", card=5), pod("c", card=5))
        assert node.kubelet.held("team/c", SHARED) == {"GPU-0::0"}
        assert node.outcomes == [Outcome.PLANNED, Outcome.PLANNED, Outcome.OTHER]

    async def test_pods_without_a_plan_fill_one_card_before_the_next(self):
        async with running(pieces=4) as node:
            await node.admit(*(pod(f"p{i}") for i in range(6)))
            assert cards(node.kubelet.in_use(SHARED)) == {"GPU-0": 4, "GPU-1": 2}

    async def test_they_keep_off_pieces_of_those_to_come(self, node):
        node.pods.add(pod("later", card=0), pod("later2", card=0), pod("later3", card=1))
        await node.admit(pod("plain"), pod("plain2"))
        assert node.kubelet.held("team/plain", SHARED) == {"GPU-1::0"}, "card 1 has one to spare"
        assert node.kubelet.held("team/plain2", SHARED) == {"GPU-2::0"}
        for name, card in (("later", 0), ("later2", 0), ("later3", 1)):
            await node.kubelet.admit(node.pods.known[f"team/{name}"])
            assert node.kubelet.held(f"team/{name}", SHARED) <= pieces(card)

    async def test_a_pod_of_two_containers_is_kept_two(self, node):
        node.pods.add(pod("later", 1, 1, init=(1,), card=0))
        await node.admit(pod("plain"))
        assert node.kubelet.held("team/plain", SHARED) == {"GPU-1::0"}

    async def test_where_nothing_else_is_left_they_take_those_too(self):
        async with running(pieces=2, built=machine(1)) as node:
            node.pods.add(pod("later", card=0))
            await node.admit(pod("a"), pod("b"))
            assert set(node.kubelet.in_use(SHARED)) == pieces(0)

    async def test_a_place_is_free_again_when_its_pod_has_ended(self, node):
        first = pod("a", card=3)
        await node.admit(first, pod("b", card=3))
        node.kubelet.end(first)
        await node.admit(pod("c", card=3))
        assert node.kubelet.held("team/c", SHARED) == {"GPU-3::0"}

    async def test_and_for_the_next_of_the_same_name(self, node):
        first = pod("a", card=3)
        await node.admit(first)
        node.kubelet.end(first)
        again = pod("a", card=6)
        await node.admit(replace(again, metadata=replace(again.metadata, uid="another")))
        assert node.kubelet.held("team/a", SHARED) == {"GPU-6::0"}

    async def test_containers_have_one_piece_each_of_the_planned_card(self, node):
        await node.admit(pod("a", 1, 1, init=(1,), card=4))
        assert node.kubelet.held("team/a", SHARED) == pieces(4)
        assert len(node.kubelet.in_use(SHARED)) == 2

    async def test_a_kubelet_that_does_otherwise_leaves_the_rest_to_others(self, node):
        node.kubelet.stubborn = True
        await node.admit(pod("a", card=0))
        node.kubelet.stubborn = False
        await node.admit(pod("b", card=0), pod("c", card=0))
        assert node.kubelet.held("team/a", SHARED) == {"GPU-7::1"}
        assert node.kubelet.held("team/b", SHARED) | node.kubelet.held("team/c", SHARED) == pieces(0)


class TestRefusals:
    async def test_two_pieces_are_not_twice_as_much(self, node):
        with pytest.raises(Refused, match=r"INVALID_ARGUMENT: 2 of nvidia.com/gpu.shared for one container: request 1"):
            await node.admit(pod("greedy", 2, card=0))
        assert node.outcomes == [Outcome.REFUSED]
        await node.admit(pod("a", card=0), pod("b", card=0))
        assert set(node.kubelet.in_use(SHARED)) == pieces(0), "nothing was lost to it"

    async def test_a_piece_that_another_pod_holds(self, node):
        await node.admit(pod("a", card=1))
        with pytest.raises(Refused, match=r"FAILED_PRECONDITION: GPU-1::0: held by team/a"):
            await node.kubelet.allocate("GPU-1::0", resource=SHARED)
        await node.kubelet.allocate("GPU-1::1", resource=SHARED)

    async def test_two_calls_for_one_piece_at_once_and_for_two_of_a_card(self, node):
        node.kubelet.may_answer.clear()
        first = asyncio.create_task(node.kubelet.allocate("GPU-0::0", resource=SHARED))
        await until(lambda: bool(node.desk._in_allocation))
        with pytest.raises(Refused, match="GPU-0::0: being allocated to another container"):
            await node.kubelet.allocate("GPU-0::0", resource=SHARED)
        second = asyncio.create_task(node.kubelet.allocate("GPU-0::1", resource=SHARED))
        await until(lambda: len(node.desk._in_allocation) == 2)
        node.kubelet.may_answer.set()
        await asyncio.gather(first, second)

    @pytest.mark.parametrize("name", ["GPU-0::2", "GPU-99::0", "GPU-0"])
    async def test_what_is_not_offered(self, node, name):
        with pytest.raises(Refused, match="NOT_FOUND"):
            await node.kubelet.allocate(name, resource=SHARED)

    async def test_a_piece_of_a_card_that_has_just_failed(self, node):
        node.plugins.offer = lambda _offers: None
        node.offer("GPU-2")
        with pytest.raises(Refused, match=r"GPU-2::1: out of service"):
            await node.kubelet.allocate("GPU-2::1", resource=SHARED)

    async def test_a_card_that_somebody_has_whole_from_before(self):
        """The setting was changed while a pod ran: to the kubelet the pieces of its card are new, free devices."""
        with bed.folder() as root:
            kubelet = Kubelet(root)
            async with running(kubelet=kubelet) as node:
                await node.admit(bed.pod("old", 1, plan=DeviceSet(0b1)))
            async with running(kubelet=kubelet, pieces=2) as node:
                with pytest.raises(Refused, match="GPU-0::1: held by team/old"):
                    await node.kubelet.allocate("GPU-0::1", resource=SHARED)
                await node.admit(pod("plain"))
                assert node.kubelet.held("team/plain", SHARED) == {"GPU-1::0"}
            async with running(kubelet=kubelet) as node:
                with pytest.raises(Refused, match="GPU-1: held by team/plain"):
                    await node.kubelet.allocate("GPU-1")
                await node.admit(bed.pod("new", 6))
                assert node.kubelet.held("team/new") == {f"GPU-{card}" for card in range(2, 8)}

    async def test_a_new_plugin_knows_which_pieces_are_held(self):
        with bed.folder() as root:
            kubelet = Kubelet(root)
            async with running(kubelet=kubelet, pieces=2) as node:
                await node.admit(pod("a", card=5))
            async with running(kubelet=kubelet, pieces=2) as node:
                with pytest.raises(Refused, match="held by team/a"):
                    await node.kubelet.allocate("GPU-5::0", resource=SHARED)
                await node.admit(pod("b", card=5))
                assert set(node.kubelet.in_use(SHARED)) == pieces(5)


class TestWhatAContainerIsTold:
    async def test_the_card_by_its_uuid(self, node):
        node.desk._access = ContainerAccess((AccessMethod.ENV, AccessMethod.CDI, AccessMethod.NODES))
        made = pod("a", card=3)
        node.pods.add(made)
        answer = (await node.kubelet.admit(made))["c0"]
        assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": "GPU-3"}
        assert [each.name for each in answer.cdi_devices] == ["nvidia.com/gpu=GPU-3"]
        assert [each.host_path for each in answer.devices][:2] == ["/dev/nvidia3", "/dev/nvidiactl"]


async def test_a_plan_for_a_whole_card_that_somebody_still_shares_is_given_another():
    """Sharing was switched off while he ran; the kubelet takes his card for free."""
    with bed.folder() as root:
        kubelet = Kubelet(root)
        async with running(kubelet=kubelet, pieces=2) as node:
            await node.admit(pod("sharer", card=2))
            before = node.pods.pods()
        async with running(kubelet=kubelet) as node:
            node.pods.add(*before)
            await node.admit(bed.pod("whole", 1, resource=GPU, plan=DeviceSet(0b100)))
            assert kubelet.held("team/whole") <= {f"GPU-{card}" for card in range(8) if card != 2}
