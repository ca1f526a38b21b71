"""Cards that several pods share, on a real control plane: pods, gangs and workloads that ask for a part of one."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.support.clusters.bed import kgwe
from tests.support.clusters.pods import gang

from kgwe.kube.api import resources
from kgwe.model.devices import assignment
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed
    from tests.support.clusters.pods import Live

SHARE = "kgwe.nvidia.io/gpu-share"


async def divided(bed: Bed, name: str, cards: int = 8, pieces: int = 2) -> None:
    """A node as NVIDIA's device plugin and feature discovery leave it when cards are shared and renamed."""
    labels = {"nvidia.com/gpu.replicas": str(pieces), "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    await bed.node(name, 0, labels=labels, more={amounts.SHARED: str(cards * pieces)})


def half(name: str) -> dict[str, Any]:
    return kgwe(name, gpuRequirements={"share": 0.5})


async def shared_pod(live: Live, name: str, *, share: str = "0.5", annotations: dict[str, str] | None = None) -> None:
    wants = {"limits": {amounts.SHARED: "1"}}
    container = {"name": "main", "image": "example.com/work:1", "resources": wants}
    size = {SHARE: share} if share else {}
    await live.pod(name, 0, annotations=size | (annotations or {}), containers=[container])


def said(bed: Bed, workload: Any) -> str:
    found = bed.now(workload)
    return found.status.message if found else ""


def cards(bed: Bed, prefix: str = "") -> Counter[tuple[str, int]]:
    """(node, card) -> pods for which it is planned."""
    return Counter(
        (pod.spec.nodeName, card)
        for pod in bed.pods.store.values()
        if pod.metadata.name.startswith(prefix) and pod.spec.nodeName
        for card in assignment.parse_planned(pod.metadata.annotations).numbers
    )


async def test_sixteen_workloads_for_half_a_gpu_are_two_to_a_card(live: Live):
    """KAI#2153: 16 pods of half a GPU at once on 8 cards; there 3 or 4 came to one card and crashed."""
    bed = live.bed
    await bed.node("whole", 8)
    await divided(bed, "shared")
    await live.scheduler()
    made = await asyncio.gather(*(bed.submit(half(f"half-{number}")) for number in range(16)))
    for workload in made:
        await bed.until_phase(workload, "Running")

    assert cards(bed, "half-") == {("shared", card): 2 for card in range(8)}
    late = await bed.submit(half("late"))
    await bed.until(lambda: "available for 1/2 GPU" in said(bed, late))
    assert "insufficient GPU shares" in said(bed, late)

    await bed.delete(made[5])
    await bed.until_phase(late, "Running")
    assert cards(bed, "half-") + cards(bed, "late-") == {("shared", card): 2 for card in range(8)}


async def test_who_wants_a_whole_gpu_gets_none_that_is_shared_and_shares_are_found_after_a_restart(live: Live):
    bed = live.bed
    await divided(bed, "shared", cards=2)
    first = await live.scheduler()
    for name in ("a", "b", "c"):
        await bed.until_phase(await bed.submit(half(name)), "Running")
    whole = await bed.submit(kgwe("whole"))
    await bed.until(lambda: "available for 1 GPU" in said(bed, whole))
    first.kill()
    await live.scheduler()
    await bed.until_phase(await bed.submit(half("d")), "Running")

    assert cards(bed) == {("shared", 0): 2, ("shared", 1): 2}
    await bed.node("other", 1)
    await bed.until_phase(whole, "Running")


async def test_plain_pods_fill_a_node_that_shares_its_cards_and_the_next_waits(live: Live):
    await live.nodes({"a": 1})
    await divided(live.bed, "shared")
    await live.scheduler()
    await asyncio.gather(*(shared_pod(live, f"p-{number}") for number in range(17)))
    bound = await live.until_bound("p-", 16)
    assert set(bound.values()) == {"shared"}
    (late,) = {f"p-{number}" for number in range(17)} - bound.keys()
    await live.bed.until(lambda: "Unschedulable" in live.bed.pod_says(late))

    await live.bed.client.delete(resources.POD, "p-3" if late != "p-3" else "p-4", "default", grace_s=0)
    await live.bed.until(lambda: live.node_of(late) == "shared")


async def test_a_pod_goes_where_shares_are_as_large_as_it_says(live: Live):
    await divided(live.bed, "quarters", pieces=4)
    await divided(live.bed, "halves", pieces=2)
    await divided(live.bed, "quarters-too", pieces=4)
    await live.scheduler()
    await shared_pod(live, "half")
    await shared_pod(live, "any", share="")
    await shared_pod(live, "odd", share="0.4")
    await live.until_bound("half", 1)
    await live.until_bound("any", 1)

    assert live.node_of("half") == "halves"
    assert live.node_of("any").startswith("quarters"), "what most nodes offer"
    await live.bed.until(lambda: "Unschedulable" in live.bed.pod_says("odd"))
    conditions = live.bed.pods.store["default/odd"].status.conditions
    assert "such as 0.5" in next(each.message for each in conditions if each.type == "PodScheduled")


async def test_a_gang_of_shares_starts_as_a_whole_or_not_at_all(live: Live):
    await divided(live.bed, "shared", cards=4)
    await live.scheduler()
    for number in range(9):
        await shared_pod(live, f"big-{number}", annotations=gang("big", 9))
    for number in range(8):
        await shared_pod(live, f"fits-{number}", annotations=gang("fits", 8))
    await live.until_bound("fits-", 8)

    assert not live.bound("big-")
    told = await live.bed.client.list(resources.EVENT, "default")
    assert any(b"available for 9 pods of 1/2 GPU" in bytes(each) for each in told)
    assert cards(live.bed, "fits-") == {("shared", card): 2 for card in range(4)}
