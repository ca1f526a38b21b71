"""What pods hold, as the agent reports it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.support.fakes import kubelet as bed
from tests.support.fakes.kubelet import GPU, Kubelet, Pods, machine, pod, until

from kgwe.apps.agent.devices.holdings import PodHoldings
from kgwe.hardware.kubelet.podresources import PodResources
from kgwe.kube.api.kgwe.gpunode import GPUNodeStatus, HeldDevices
from kgwe.model.devices.assignment import DeviceSet
from kgwe.model.units import amounts


class Bed:
    def __init__(self, kubelet: Kubelet) -> None:
        self.kubelet = kubelet
        self.pods = Pods()
        self.truth = PodResources(kubelet.socket, deadline_s=2)
        self.holdings = PodHoldings(
            self.truth,
            self.pods,
            interval_s=0.05,
            on_news=self.on_news,
            on_difference=lambda about, each: self.told.append((about.metadata.name, each.reason)),
        )
        self.holdings.set_machine(machine(cut={7: (("3g.40gb", 4, 4),)}))
        self.news = 0
        self.told: list[tuple[str, str]] = []

    def on_news(self) -> None:
        self.news += 1

    def hold(self, name: str, *ids: str, plan: DeviceSet | None = None, resource: str = GPU) -> None:
        made = pod(name, len(ids), plan=plan or DeviceSet(), resource=resource)
        self.pods.add(made)
        self.kubelet.pods[made.metadata.key] = made
        self.kubelet.given[made.metadata.key, "c0"] = {resource: ids}

    def status(self) -> tuple[str, str]:
        condition = self.holdings.condition()
        return condition.status, condition.reason


@pytest.fixture
async def made():
    with bed.folder() as root:
        kubelet = Kubelet(root)
        await kubelet.start()
        bench = Bed(kubelet)
        yield bench
        await bench.truth.close()
        await kubelet.stop()


async def test_who_holds_what_is_reported(made):
    made.hold("a", "GPU-0", "GPU-1", plan=DeviceSet(0b11))
    made.hold("b", "MIG-7-4", plan=DeviceSet(slices=((7, 4),)), resource="nvidia.com/mig-3g.40gb")
    made.hold("other", "hca-0", resource="rdma/hca")
    await made.holdings.refresh()
    assert made.holdings.amend_status(GPUNodeStatus()).held == (
        HeldDevices(pod="team/a", uid="uid-a", cards="3"),
        HeldDevices(pod="team/b", uid="uid-b", slices=("7@4",)),
    )
    assert made.status() == ("True", "AsPlanned")


async def test_a_pod_on_other_cards_is_told_once(made):
    made.hold("a", "GPU-5", "GPU-6", plan=DeviceSet(0b11))
    await made.holdings.refresh()
    assert made.status() == ("False", "OtherDevices")
    assert "team/a planned GPU 0, GPU 1, holds GPU 5, GPU 6" in made.holdings.condition().message
    assert made.told == [("a", "OtherDevices")]
    before = made.news
    await made.holdings.refresh()
    assert (made.told, made.news) == ([("a", "OtherDevices")], before)
    made.kubelet.end(made.pods.known["team/a"])
    await made.holdings.refresh()
    assert made.status() == ("True", "AsPlanned")
    assert made.news == before + 1


async def test_a_plan_that_came_true_is_no_news_and_one_that_did_not_is(made):
    await made.holdings.refresh()
    before = made.news
    made.hold("a", "GPU-0", plan=DeviceSet(0b1))
    await made.holdings.refresh()
    made.kubelet.end(made.pods.known["team/a"])
    await made.holdings.refresh()
    assert made.news == before
    made.hold("plain", "GPU-3")
    await made.holdings.refresh()
    assert made.news == before + 1, "nobody could know that"
    assert made.status() == ("True", "AsPlanned")


async def test_a_kubelet_that_is_away_leaves_what_was_known(made):
    made.hold("a", "GPU-0")
    await made.holdings.refresh()
    await made.kubelet.stop()
    await made.holdings.refresh()
    assert made.status() == ("Unknown", "PodResourcesNotRead")
    assert len(made.holdings.held) == 1
    await made.kubelet.start()
    await made.holdings.refresh()
    assert made.status() == ("True", "AsPlanned")


async def test_before_it_was_read_the_last_report_stands(made):
    known = GPUNodeStatus(held=(HeldDevices(pod="team/a", cards="1"),))
    assert made.holdings.amend_status(known) == known
    await made.holdings.refresh()
    assert made.holdings.amend_status(known).held == ()


async def test_a_pod_the_watch_has_not_shown_is_known_by_name(made):
    made.hold("a", "GPU-0")
    made.pods.known.clear()
    await made.holdings.refresh()
    assert made.holdings.held == (HeldDevices(pod="team/a", cards="1"),)


async def test_shares_are_marked(made):
    made.hold("a", "GPU-2::0", plan=DeviceSet(0b100))
    made.hold("b", "GPU-2::1", plan=DeviceSet(0b100))
    await made.holdings.refresh()
    assert made.holdings.held[0] == HeldDevices(pod="team/a", uid="uid-a", cards="4", replicas=1)
    assert made.status() == ("True", "AsPlanned")


async def test_a_share_of_another_card_than_planned_is_told(made):
    made.hold("a", "GPU-2::0", plan=DeviceSet(0b1), resource=amounts.SHARED)
    await made.holdings.refresh()
    assert made.status() == ("False", "OtherDevices")
    assert made.told == [("a", "OtherDevices")]
    assert "team/a planned GPU 0, holds GPU 2" in made.holdings.condition().message


async def test_replicas_that_go_by_the_name_of_whole_cards_have_other_numbers_than_the_plan(made):
    """The scheduler then knows as many cards as are offered."""
    made.hold("a", "GPU-2::0", plan=DeviceSet(1 << 20))
    await made.holdings.refresh()
    assert made.status() == ("True", "AsPlanned")


async def test_it_reads_by_itself(made):
    running = asyncio.create_task(made.holdings.run())
    made.hold("a", "GPU-0")
    await until(lambda: len(made.holdings.held) == 1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_full_node_is_small(made):
    for card in range(8):
        made.hold(f"trainer-of-a-team-{card}", f"GPU-{card}")
    await made.holdings.refresh()
    text = msgspec.json.encode(made.holdings.amend_status(GPUNodeStatus()).held)
    assert len(text) < 8 * 110
