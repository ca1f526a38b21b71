"""Preemption by kube-scheduler itself, for plain pods: it asks the extender, which knows what would help and whom it
would break."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clusters.bed import kgwe
from tests.support.clusters.broken import gang, racks, running, uids
from tests.support.clusters.broken import pods_of as pods_of_workload
from tests.support.clusters.pods import pod

from kgwe.kube.api import resources
from kgwe.kube.api.resources import Resource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.clusters.pods import Live

PRIORITY_CLASS: Resource[Any] = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False, type=dict[str, Any]
)


@pytest.fixture
async def classes(live: Live) -> AsyncIterator[None]:
    for name, value in (("low", 10), ("high", 1000)):
        await live.bed.client.create(PRIORITY_CLASS, {"metadata": {"name": name}, "value": value})
    yield
    for name in ("low", "high"):
        await live.bed.client.delete(PRIORITY_CLASS, name)


def is_gone(live: Live, name: str) -> bool:
    return f"default/{name}" not in live.bed.pods.store


async def set_finalizers(live: Live, name: str, finalizers: list[str] | None) -> None:
    await live.bed.client.patch(resources.POD, name, {"metadata": {"finalizers": finalizers}}, "default")


async def test_a_plain_pod_of_higher_priority_takes_the_place_of_a_lower_one(live: Live, classes: None):  # noqa: ARG001 - they exist
    await racks(live.bed, {"a": 1})
    await live.scheduler()
    await live.pod("low", 8, priorityClassName="low")
    await live.until_bound("low", 1)

    await live.pod("high", 8, priorityClassName="high")

    await live.until_bound("high", 1)
    await live.bed.until(lambda: is_gone(live, "low"))


async def test_pods_of_gangs_and_workloads_are_not_offered_as_victims(live: Live, classes: None):  # noqa: ARG001 - they exist
    """Three nodes: a workload, and a gang of others; only the plain pod on the third may go."""
    await racks(live.bed, {"a": 4})
    await live.scheduler()
    workload, before = await running(live.bed, gang("g", 2), 2)
    members = await live.gang("theirs", 1, 8)
    await live.until_bound("theirs", 1)
    await live.pod("low", 8, priorityClassName="low")
    place = (await live.until_bound("low", 1))["low"]

    await live.bed.client.create(resources.POD, pod("high", 8, priorityClassName="high"), "default")

    assert (await live.until_bound("high", 1))["high"] == place
    assert uids(pods_of_workload(live.bed, workload)) == uids(before)
    assert live.node_of(members[0].metadata.name)


async def test_nothing_is_stopped_when_the_cards_would_still_not_do(live: Live, classes: None):  # noqa: ARG001 - they exist
    """Six of eight GPUs belong to a workload that stays; the two of the plain pod do not make eight."""
    await racks(live.bed, {"a": 1})
    await live.scheduler()
    await running(live.bed, kgwe("firm", 6), 1)
    await live.pod("low", 2, priorityClassName="low")
    await live.until_bound("low", 1)

    await live.pod("high", 8, priorityClassName="high")
    await live.bed.until(lambda: "Unschedulable" in live.bed.pod_says("high"))
    # What fits without any of that shows that kube-scheduler has gone on.
    await racks(live.bed, {"b": 1})
    await live.until_bound("high", 1)

    assert not is_gone(live, "low")
    assert live.node_of("high") == "b0"


async def test_the_room_kube_scheduler_makes_goes_to_its_pod_and_not_to_a_workload_that_waits(
    live: Live,
    classes: None,  # noqa: ARG001 - they exist
):
    await racks(live.bed, {"a": 1})
    await live.scheduler()
    await live.pod("low", 8, priorityClassName="low")
    await live.until_bound("low", 1)
    # As a real pod, it takes a while to end: until then kube-scheduler has written where its pod will go.
    await set_finalizers(live, "low", ["example.com/ends-slowly"])
    waiting = await live.bed.submit(kgwe("waiting", 8))
    await live.bed.until_phase(waiting, "Pending")

    await live.pod("high", 8, priorityClassName="high")
    await live.bed.until(
        lambda: (
            any(each.status.nominatedNodeName for each in live.bed.pods.store.values())
            and live.bed.pods.store["default/low"].metadata.deletionTimestamp
        )
    )
    await set_finalizers(live, "low", None)

    await live.until_bound("high", 1)
    assert not live.bed.jobs_of(waiting)
