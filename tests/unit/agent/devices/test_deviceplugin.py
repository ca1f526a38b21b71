"""The device plugins against a kubelet that speaks the real protocols."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.support.fakes import kubelet as bed
from tests.support.fakes.kubelet import GPU, Kubelet, Refused, machine, pod, until
from tests.support.machines.plugins import Node, ids, running

from kgwe.apps.agent.devices.allocator import AccessMethod, ContainerAccess, Outcome
from kgwe.model.devices import advertised
from kgwe.model.devices.assignment import DeviceSet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SLICE = "nvidia.com/mig-3g.40gb"
CUT = machine(cut={6: (("3g.40gb", 0, 4), ("3g.40gb", 4, 4)), 7: (("3g.40gb", 0, 4), ("3g.40gb", 4, 4))})


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with running() as made:
        yield made


class TestRegistration:
    async def test_every_resource_is_registered_with_its_devices(self):
        async with running(built=CUT) as node:
            assert sorted(node.kubelet.registrations) == [GPU, SLICE]
            assert node.kubelet.healthy() == ids(*range(6))
            assert node.kubelet.healthy(SLICE) == {"MIG-6-0", "MIG-6-4", "MIG-7-0", "MIG-7-4"}

    async def test_another_name_beside_another_plugin(self):
        async with running(built=CUT, prefix="kgwe.example") as node:
            assert sorted(node.kubelet.devices) == ["kgwe.example/gpu", "kgwe.example/mig-3g.40gb"]

    async def test_a_kubelet_that_restarts_has_them_again(self, node):
        await node.kubelet.restart()
        assert node.kubelet.devices == {}
        await until(lambda: node.kubelet.healthy() == ids(*range(8)))
        assert node.kubelet.registrations == [GPU, GPU]

    async def test_a_kubelet_that_is_away_is_waited_for(self, node):
        await node.kubelet.stop()
        for path in node.kubelet.plugins.iterdir():
            path.unlink()
        await until(lambda: GPU in node.plugins.problems)
        assert "the kubelet is not running" in node.plugins.problems[GPU]
        await node.kubelet.start()
        await until(lambda: node.kubelet.healthy() == ids(*range(8)))
        assert node.plugins.problems == {}

    async def test_a_resource_that_comes_later_and_goes_again(self, node):
        node.built = CUT
        node.offer()
        await until(lambda: len(node.kubelet.healthy(SLICE)) == 4)
        await until(lambda: node.kubelet.healthy() == ids(*range(6)))
        node.built = machine()
        node.offer()
        await until(lambda: node.kubelet.devices[SLICE] == {})


class TestHealth:
    async def test_a_sick_card_is_told_at_once_and_comes_back(self, node):
        node.offer("GPU-3")
        await until(lambda: node.kubelet.healthy() == ids(0, 1, 2, 4, 5, 6, 7))
        assert node.kubelet.devices[GPU]["GPU-3"] == "Unhealthy"
        node.offer()
        await until(lambda: len(node.kubelet.healthy()) == 8)

    async def test_slices_go_with_their_card(self):
        async with running(built=CUT) as node:
            node.offer("GPU-6")
            await until(lambda: node.kubelet.healthy(SLICE) == {"MIG-7-0", "MIG-7-4"})
            node.offer("MIG-7-0")
            await until(lambda: node.kubelet.healthy(SLICE) == {"MIG-6-0", "MIG-6-4", "MIG-7-4"})

    async def test_a_card_about_to_be_cut_is_nobodys(self, node):
        cards = list(node.built.devices)
        cards[5] = replace(cards[5], mig=replace(cards[5].mig, is_pending=True))
        cards[6] = replace(cards[6], is_lost=True)
        node.built = replace(node.built, devices=tuple(cards))
        node.offer()
        await until(lambda: node.kubelet.healthy() == ids(0, 1, 2, 3, 4, 7))

    async def test_a_card_that_has_just_failed_is_not_given(self, node):
        node.desk.set_devices(advertised.list_advertised(node.built, out_of_service=("GPU-2",)), None)
        with pytest.raises(Refused, match=r"GPU-2: out of service"):
            await node.kubelet.allocate("GPU-2")
        assert node.outcomes == [Outcome.REFUSED]


class TestPlans:
    async def test_a_pod_gets_the_cards_its_plan_names(self, node):
        await node.admit(pod("a", 2, plan=DeviceSet(0b0110)), pod("b", 3, plan=DeviceSet(0b111_0000)))
        assert node.kubelet.held("team/a") == ids(1, 2)
        assert node.kubelet.held("team/b") == ids(4, 5, 6)
        assert node.outcomes == [Outcome.PLANNED, Outcome.PLANNED]

    async def test_of_equal_pods_each_gets_its_own_whoever_is_first(self, node):
        pods = [pod(name, 2, plan=DeviceSet(0b11 << 2 * i)) for i, name in enumerate("abcd")]
        node.pods.add(*pods)
        for each in reversed(pods):
            await node.kubelet.admit(each)
        assert [node.kubelet.held(f"team/{name}") for name in "abcd"] == [ids(0, 1), ids(2, 3), ids(4, 5), ids(6, 7)]

    async def test_a_pod_that_our_watch_has_not_shown_yet(self, node):
        mine, other = pod("mine", 2, plan=DeviceSet(0b11)), pod("other", 2, plan=DeviceSet(0b1100))
        node.pods.add(other)
        node.pods.late[mine.metadata.key] = mine
        await node.kubelet.admit(mine)
        assert node.kubelet.held("team/mine") == ids(0, 1)

    async def test_an_api_server_that_hangs_does_not_hold_up_the_kubelet(self, node):
        node.pods.hangs = True
        await node.kubelet.admit(pod("unknown", 2))
        assert len(node.kubelet.held("team/unknown")) == 2

    async def test_slices(self):
        async with running(built=CUT) as node:
            await node.admit(
                pod("a", 1, resource=SLICE, plan=DeviceSet(slices=((7, 4),))),
                pod("b", 2, resource=SLICE, plan=DeviceSet(slices=((6, 4), (7, 0)))),
            )
            assert node.kubelet.held("team/a", SLICE) == {"MIG-7-4"}
            assert node.kubelet.held("team/b", SLICE) == {"MIG-6-4", "MIG-7-0"}

    async def test_containers_sidecars_and_init_containers_share_the_plan(self, node):
        await node.admit(pod("a", 1, 2, init=(2,), sidecar=(1,), plan=DeviceSet(0b1111_0000)), pod("b", 1))
        assert node.kubelet.held("team/a") == ids(4, 5, 6, 7)
        assert len(node.kubelet.in_use()) == len(set(node.kubelet.in_use())) == 5

    async def test_pods_without_a_plan_keep_off_the_cards_of_those_to_come(self, node):
        node.pods.add(pod("later", 4, plan=DeviceSet(0b1111)))
        await node.admit(pod("plain", 2), pod("plain2", 2))
        assert set(node.kubelet.in_use()) == ids(4, 5, 6, 7)
        await node.kubelet.admit(node.pods.known["team/later"])
        assert node.kubelet.held("team/later") == ids(0, 1, 2, 3)

    async def test_a_plan_of_more_cards_than_the_pod_asks_for_is_not_believed(self, node):
        """Nobody but a forger writes one: it would keep the pods of others off all cards of the node."""
        await node.admit(pod("forger", 1, plan=DeviceSet(0xFF)), pod("a", 2, plan=DeviceSet(0b11 << 6)))
        assert node.outcomes == [Outcome.UNPLANNED, Outcome.PLANNED]
        assert node.kubelet.held("team/a") == ids(6, 7)

    async def test_a_kubelet_that_does_otherwise_is_obeyed(self, node):
        node.kubelet.stubborn = True
        await node.admit(pod("a", 2, plan=DeviceSet(0b11)))
        assert node.kubelet.held("team/a") == ids(6, 7)
        assert node.outcomes == [Outcome.UNPLANNED]

    async def test_without_pod_resources_the_oldest_that_waits_is_served(self, node):
        node.kubelet.is_mute = True
        await node.admit(
            pod("a", 2, plan=DeviceSet(0b11), created="2026-01-01T00:00:01Z"),
            pod("b", 2, plan=DeviceSet(0b1100), created="2026-01-01T00:00:02Z"),
        )
        assert node.kubelet.held("team/a") == ids(0, 1)
        assert node.kubelet.held("team/b") == ids(2, 3)

    async def test_a_hundred_pods_of_mixed_plans_get_exactly_their_cards(self):
        rng = random.Random(7)
        async with running(built=CUT) as node:
            alive: dict[str, tuple[set[str], str]] = {}
            for number in range(100):
                made, want, resource = self.planned(node, number, rng)
                while made is None:
                    gone = rng.choice(sorted(alive))
                    alive.pop(gone)
                    node.kubelet.end(node.pods.known.pop(gone))
                    made, want, resource = self.planned(node, number, rng)
                await node.admit(made)
                alive[made.metadata.key] = want, resource
                assert node.kubelet.held(made.metadata.key, resource) == want
            assert set(node.outcomes) == {Outcome.PLANNED}
            assert len(node.outcomes) == 100
            for key, (want, resource) in alive.items():
                assert node.kubelet.held(key, resource) == want

    @staticmethod
    def planned(node, number, rng):
        """A pod planned on something that is free."""
        resource = rng.choice([GPU, GPU, SLICE])
        free = sorted(node.kubelet.healthy(resource) - set(node.kubelet.in_use(resource)))
        count = rng.choice([1, 1, 2, 4])
        if len(free) < count:
            return None, set(), resource
        want = set(rng.sample(free, count))
        if resource == GPU:
            plan = DeviceSet(sum(1 << int(each[4:]) for each in want))
        else:
            plan = DeviceSet(slices=tuple((int(each.split("-")[1]), int(each.split("-")[2])) for each in want))
        return pod(f"p{number}", count, resource=resource, plan=plan), want, resource


class TestTwice:
    async def test_pods_admitted_at_once_never_share_a_card(self, node):
        """No kubelet does that; the advice holds all the same."""
        pods = [pod(name, 2, plan=DeviceSet(0b11 << 2 * i)) for i, name in enumerate("abcd")]
        node.pods.add(*pods)
        for each in pods:
            node.kubelet.pods[each.metadata.key] = each
        free = sorted(ids(*range(8)))
        advice = await asyncio.gather(*(node.kubelet.prefer(GPU, free, [], 2) for _ in pods))
        assert sorted(map(sorted, advice)) == [sorted(ids(i, i + 1)) for i in range(0, 8, 2)]

    async def test_what_another_pod_holds_is_refused(self, node):
        await node.admit(pod("a", 2, plan=DeviceSet(0b11)))
        with pytest.raises(Refused, match=r"FAILED_PRECONDITION: GPU-1: held by team/a"):
            await node.kubelet.allocate("GPU-1", "GPU-5")

    async def test_two_calls_for_one_card_at_once(self, node):
        node.kubelet.may_answer.clear()
        first = asyncio.create_task(node.kubelet.allocate("GPU-0", "GPU-1"))
        await until(lambda: bool(node.desk._in_allocation))
        with pytest.raises(Refused, match="GPU-1: being allocated to another container"):
            await node.kubelet.allocate("GPU-1")
        node.kubelet.may_answer.set()
        assert (await first).envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"
        await node.kubelet.allocate("GPU-1")

    async def test_a_card_is_free_again_when_its_pod_has_ended(self, node):
        first, second = pod("a", 2, plan=DeviceSet(0b11)), pod("b", 2, plan=DeviceSet(0b11))
        await node.admit(first)
        node.kubelet.end(first)
        await node.admit(second)
        assert node.kubelet.held("team/b") == ids(0, 1)

    async def test_a_card_nobody_has(self, node):
        with pytest.raises(Refused, match=r"NOT_FOUND: GPU-99"):
            await node.kubelet.allocate("GPU-99")

    async def test_a_new_plugin_knows_what_is_held(self):
        with bed.folder() as root:
            kubelet = Kubelet(root)
            async with running(kubelet=kubelet) as node:
                await node.admit(pod("a", 2, plan=DeviceSet(0b11)))
            async with running(kubelet=kubelet) as node:
                with pytest.raises(Refused, match="held by team/a"):
                    await node.kubelet.allocate("GPU-0")
                await node.admit(pod("b", 2, plan=DeviceSet(0b1010)))
                assert ids(3) < node.kubelet.held("team/b"), "what is left of its plan"
                assert not node.kubelet.held("team/b") & ids(0, 1), "and nothing of another's"


class TestWhatAContainerIsTold:
    async def granted(self, means, built=None):
        async with running(built=built) as node:
            node.desk._access = ContainerAccess(tuple(means))
            resource = SLICE if built else GPU
            made = pod(
                "a", 2, resource=resource, plan=DeviceSet(slices=((6, 4), (7, 0))) if built else DeviceSet(0b1010)
            )
            node.pods.add(made)
            return (await node.kubelet.admit(made))["c0"]

    async def test_the_runtimes_variable(self):
        answer = await self.granted([AccessMethod.ENV])
        assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-3"}
        assert not answer.cdi_devices
        assert not answer.devices

    async def test_cdi_names(self):
        answer = await self.granted([AccessMethod.CDI], built=CUT)
        assert [each.name for each in answer.cdi_devices] == ["nvidia.com/gpu=MIG-6-4", "nvidia.com/gpu=MIG-7-0"]
        assert not answer.envs

    async def test_device_nodes(self):
        answer = await self.granted([AccessMethod.NODES, AccessMethod.ENV])
        assert [each.host_path for each in answer.devices][:3] == ["/dev/nvidia1", "/dev/nvidia3", "/dev/nvidiactl"]
        assert {each.permissions for each in answer.devices} == {"rw"}
