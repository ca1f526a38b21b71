"""What a workload costs the API server: counted by the API server itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from tests.support.clusters.api_writes import count, count_settled
from tests.support.clusters.bed import kgwe

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed

WORKLOADS = 8


def transitions(bed: Bed, workloads: list[Any]) -> int:
    uids = {workload.metadata.uid for workload in workloads}
    return sum(uid in uids for uid, _ in bed.phases)


async def test_a_workload_that_finds_room_at_once_costs_ten_writes(bed: Bed):
    """Ours are the Job and one status; the others are the user's, the Job controller's and kube-scheduler's."""
    await bed.node("n1", 16)
    await bed.controller(status_settle_seconds="1")
    before = await count_settled(bed, "gpuworkloads", "jobs", "gpuworkloads/status")

    made = [await bed.submit(kgwe(f"w{number}", 1)) for number in range(WORKLOADS)]
    for workload in made:
        await bed.until_phase(workload, "Running")

    writes = await count(bed) - before
    assert (writes["gpuworkloads"], writes["jobs"]) == (WORKLOADS, WORKLOADS)
    # On a busy machine a pod may take so long to run that Scheduled is worth telling.
    told = transitions(bed, made)
    assert writes["gpuworkloads/status"] == told
    assert sum(writes.values()) - (told - WORKLOADS) <= 10 * WORKLOADS, writes


async def test_each_transition_is_one_write_and_the_end_no_event(bed: Bed):
    await bed.node("n1", 16)
    await bed.controller(status_settle_seconds="1")
    before = await count_settled(bed, "gpuworkloads", "jobs", "gpuworkloads/status")
    made = [await bed.submit(kgwe(f"w{number}", 1, duration="2s")) for number in range(WORKLOADS)]
    for workload in made:
        await bed.until_phase(workload, "Succeeded")
    writes = await count(bed) - before
    assert writes["gpuworkloads/status"] == transitions(bed, made)
    path = "/apis/events.k8s.io/v1/namespaces/default/events"
    events = await bed.client.request("GET", path, params={"fieldSelector": "reportingController=kgwe-scheduler"})
    uids = {workload.metadata.uid for workload in made}
    assert [each for each in msgspec.json.decode(events)["items"] if each["regarding"].get("uid") in uids] == []
