"""Gangs of others that stay incomplete, on a real control plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.clusters.pods import gang as gang_notes
from tests.support.clusters.pods import pod
from tests.support.clusters.waits import events_on, until

from kgwe.kube.api import resources

if TYPE_CHECKING:
    from tests.support.clusters.pods import Live


async def test_an_incomplete_gang_says_how_many_of_its_pods_exist(live: Live):
    bed = live.bed
    await live.nodes({"a": 1})
    replica = await live.scheduler(gang_notice_seconds="1")
    template = pod("unused", 1, annotations=gang_notes("trainer", 8))
    job = {
        "metadata": {"name": "trainer"},
        "spec": {
            "parallelism": 2,
            "completions": 2,
            "template": {"metadata": {"annotations": template["metadata"]["annotations"]}, "spec": template["spec"]},
        },
    }
    await bed.client.create(resources.JOB, job, "default")
    (event, *_) = await until(lambda: events_on(bed, "trainer", "GangIncomplete"))
    assert "2 of 8 pods exist" in event["note"]
    assert (event["type"], event["regarding"]["kind"]) == ("Warning", "Job")
    names = [each.metadata.name for each in bed.pods.store.values() if each.metadata.name.startswith("trainer-")]

    async def all_told() -> bool:
        return all([await events_on(bed, name, "GangIncomplete") for name in names])

    await until(all_told)
    assert await replica.metric('kgwe_topology_score{node="a-0"}') == 50.0
    await bed.client.delete(resources.JOB, "trainer", "default")
