"""Work of higher priority starts in place of work that lets itself be stopped: whom that hits, and whom never."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.clusters.bed import condition, kgwe
from tests.support.clusters.broken import break_nodes, gang, pods_of, racks, running, until_event, where

from kgwe.kube.api import resources

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed

LOW, HIGH = 10, 1000


async def low(bed: Bed, name: str, gpus: int, node: str = "", **spec: Any) -> Any:
    """A workload that may be stopped, running, on that node."""
    pod = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    pod |= spec.pop("pod", {})
    workload = await bed.submit(kgwe(name, gpus, pod=pod, **({"priority": LOW, "preemptible": True} | spec)))
    return await bed.until_phase(workload, "Running")


def jobs(bed: Bed, *workloads: Any) -> list[str]:
    return [job.metadata.uid for workload in workloads for job in bed.jobs_of(workload)]


async def test_the_cheapest_victim_makes_way_and_waits_in_its_old_order(bed: Bed):
    await racks(bed, {"a": 2})
    replica = await bed.controller()
    cheap = await low(bed, "cheap", 4, "a0")
    dear = await low(bed, "dear", 8, "a1")
    kept = jobs(bed, dear)

    high = await bed.submit(kgwe("high", 8, priority=HIGH))

    assert (await bed.until_phase(high, "Running")).status.scheduledNode == "a0"
    waiting = await bed.until_phase(cheap, "Pending")
    await bed.until(lambda: condition(bed.now(cheap), "Scheduled").reason == "Preempted")
    assert "Preempted by high" in bed.now(cheap).status.message
    assert waiting.status.retryCount == 0
    assert jobs(bed, dear) == kept, "nobody else was touched"
    assert await replica.metric("kgwe_preemptions_total") == 1

    await bed.delete(high)
    assert (await bed.until_phase(cheap, "Running")).status.scheduledNode == "a0"


async def test_work_that_does_not_let_itself_be_stopped_is_not(bed: Bed):
    await racks(bed, {"a": 1})
    await bed.controller()
    firm = await low(bed, "firm", 8, preemptible=False)
    equal = await bed.submit(kgwe("high", 8, priority=HIGH))

    await bed.until_phase(equal, "Pending")
    await bed.delete(firm)

    await bed.until_phase(equal, "Running")


async def test_equal_priority_stops_nobody(bed: Bed):
    await racks(bed, {"a": 1})
    replica = await bed.controller()
    first = await low(bed, "first", 8)
    second = await bed.submit(kgwe("second", 8, priority=LOW))

    await bed.until_phase(second, "Pending")
    higher = await bed.submit(kgwe("higher", 8, priority=LOW + 1))
    await bed.until_phase(higher, "Running")

    await bed.until_phase(first, "Pending")
    assert bed.phase(second) == "Pending"
    assert await replica.metric("kgwe_preemptions_total") == 1


async def test_nothing_is_stopped_that_does_not_help(bed: Bed):
    """kueue#5243: four nodes with six GPUs held for good and two by work that may be stopped; eight are wanted."""
    await racks(bed, {"a": 4})
    replica = await bed.controller()
    for number in range(4):
        await low(bed, f"firm{number}", 6, f"a{number}", preemptible=False)
    small = [await low(bed, f"small{number}", 2, f"a{number}") for number in range(4)]
    before = jobs(bed, *small)

    high = await bed.submit(kgwe("high", 8, priority=HIGH))
    await bed.until_phase(high, "Pending")
    # By the time something that can be helped has been, the other would have been too.
    helped = await bed.submit(kgwe("helped", 2, priority=HIGH - 1))
    await bed.until_phase(helped, "Running")

    assert bed.phase(high) == "Pending"
    assert await replica.metric("kgwe_preemptions_total") == 1
    assert len(set(before) & set(jobs(bed, *small))) == 3


async def test_a_gang_bound_to_a_domain_stops_work_inside_one_domain_only(bed: Bed):
    """volcano#4533: two nodes in each of two leaves, all taken; a gang of two nodes in one leaf."""
    await racks(bed, {"a": 2, "b": 2})
    await bed.controller()
    workloads = {
        node: await low(bed, f"w{node}", 8, node, preemptible=node != "a1") for node in ("a0", "a1", "b0", "b1")
    }
    body = gang("g", 2, level="leaf", priority=HIGH)

    high = await bed.submit(body)
    await bed.until_phase(high, "Running")

    assert {placement.node for placement in bed.now(high).status.placements} == {"b0", "b1"}
    assert bed.phase(workloads["a0"]) == "Running", "one node of leaf a would not have helped"
    assert bed.phase(workloads["a1"]) == "Running"
    await bed.until(lambda: {bed.phase(workloads[node]) for node in ("b0", "b1")} == {"Pending"})


async def test_a_gang_is_stopped_as_a_whole(bed: Bed):
    await racks(bed, {"a": 2})
    await bed.controller()
    victim = await bed.submit(gang("victim", 2, priority=LOW, preemptible=True))
    await bed.until_phase(victim, "Running")

    high = await bed.submit(kgwe("high", 4, priority=HIGH))

    await bed.until_phase(high, "Running")
    await bed.until_phase(victim, "Pending")
    await bed.until(lambda: sum(bed.gpus_bound().values()) == 4)
    await bed.delete(high)
    await bed.until_phase(victim, "Running")
    await bed.until(lambda: sum(bed.gpus_bound().values()) == 16)


async def budget(bed: Bed, app: str, least: int) -> None:
    spec = {"minAvailable": least, "selector": {"matchLabels": {"budget": app}}}
    body = {"metadata": {"name": app}, "spec": spec}
    await bed.client.create(resources.POD_DISRUPTION_BUDGET, body, "default")


async def labelled(bed: Bed, name: str, gpus: int, app: str) -> Any:
    body = kgwe(name, gpus, priority=LOW, preemptible=True)
    body["spec"]["podTemplate"]["metadata"]["labels"] = {"budget": app}
    workload = await bed.submit(body)
    return await bed.until_phase(workload, "Running")


async def test_disruption_budgets_are_respected(bed: Bed):
    await racks(bed, {"a": 1})
    replica = await bed.controller()
    guarded = await labelled(bed, "guarded", 8, "guarded")
    await budget(bed, "guarded", 1)
    try:
        high = await bed.submit(kgwe("high", 8, priority=HIGH))
        await bed.until_phase(high, "Pending")
        assert await replica.metric("kgwe_preemptions_total") == 0
        assert bed.phase(guarded) == "Running"
    finally:
        await bed.client.delete(resources.POD_DISRUPTION_BUDGET, "guarded", "default")

    # Without the budget nothing is in the way.
    await bed.until_phase(high, "Running")
    await bed.until_phase(guarded, "Pending")


async def test_freed_gpus_go_to_the_workload_that_preempted_and_not_to_older_waiting_ones(bed: Bed):
    """A workload that fits into the room of one victim, and has waited for longer, does not get it."""
    await racks(bed, {"a": 1})
    await bed.controller()
    victims = [await low(bed, f"v{number}", 2) for number in range(4)]
    greedy = [await bed.submit(kgwe(f"greedy{number}", 2, priority=LOW)) for number in range(4)]
    for each in greedy:
        await bed.until_phase(each, "Pending")

    high = await bed.submit(kgwe("high", 8, priority=HIGH))

    await bed.until_phase(high, "Running")
    assert {bed.phase(each) for each in greedy} == {"Pending"}
    for each in victims:
        await bed.until_phase(each, "Pending")


async def test_when_preemption_is_switched_off_nobody_is_stopped(bed: Bed):
    await racks(bed, {"a": 1})
    config = {"metadata": {"name": "default"}, "spec": {"enablePreemption": False}}
    await bed.client.apply(resources.SCHEDULER_CONFIG, config)
    try:
        await bed.controller()
        victim = await low(bed, "victim", 8)
        high = await bed.submit(kgwe("high", 8, priority=HIGH))
        await bed.until_phase(high, "Pending")
        before = jobs(bed, victim)
    finally:
        await bed.client.delete(resources.SCHEDULER_CONFIG, "default")

    await bed.until_phase(high, "Running")
    assert jobs(bed, victim) != before, "switched on again, it is done"


async def test_events_tell_both_sides(bed: Bed):
    await racks(bed, {"a": 1})
    await bed.controller()
    victim = await low(bed, "victim", 8)
    high = await bed.submit(kgwe("high", 8, priority=HIGH))
    await bed.until_phase(high, "Running")

    assert "preempting default/victim (cost " in await until_event(bed, high, "Preempting")
    assert "preempted by high (priority 1000)" in await until_event(bed, victim, "Preempted")


async def test_others_make_way_for_a_gang_that_lost_a_node(bed: Bed):
    await racks(bed, {"a": 3})
    await bed.controller()
    hit, before = await running(bed, gang("hit", 2, priority=HIGH), 2)
    victim = await low(bed, "victim", 8)
    room = victim.status.scheduledNode
    lost = before[1].spec.nodeName

    await break_nodes(bed, lost)

    await bed.until(lambda: where(bed, hit) == {0: before[0].spec.nodeName, 1: room})
    assert pods_of(bed, hit)[0].metadata.uid == before[0].metadata.uid
    await bed.until_phase(victim, "Pending")


async def test_a_priority_that_nobody_allowed_stops_no_other_work(bed: Bed):
    await racks(bed, {"a": 1})
    replica = await bed.controller()
    first = await low(bed, "first", 8, priority=10_000)
    kept = jobs(bed, first)

    greedy = await bed.submit(kgwe("greedy", 8, priority=1_000_000))
    await bed.until_phase(greedy, "Pending")

    assert "spec.priority 1000000 counts as 10000" in await until_event(bed, greedy, "PriorityLimited")
    assert jobs(bed, first) == kept
    assert await replica.metric("kgwe_preemptions_total") == 0
