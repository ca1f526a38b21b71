"""A gang of others that kube-scheduler cannot bind gives its seats back, and starts when it can."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
from tests.support.clusters.bed import kgwe
from tests.support.clusters.broken import foreign, members, racks
from tests.support.clusters.pods import gang
from tests.support.patience import PATIENCE_S

from kgwe.cluster.workload import placement_annotations
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed
    from tests.support.clusters.pods import Live

CLAIM = "chekpoints"
_VOLUMES = resources.Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False, type=dict[str, Any])
_CLAIMS = resources.Resource(
    "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", namespaced=True, type=dict[str, Any]
)


async def gang_with_claim(live: Live, name: str) -> None:
    """Two pods of eight GPUs that mount a claim which does not exist."""
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": CLAIM}}]
    for number in range(2):
        await live.pod(f"{name}-{number}", 8, annotations=gang(name, 2), volumes=volumes)


async def make_claim(bed: Bed) -> None:
    size = {"storage": "1Gi"}
    spec = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    reference = {"namespace": "default", "name": CLAIM}
    volume = spec | {"capacity": size, "hostPath": {"path": "/data"}, "claimRef": reference}
    await bed.client.create(_VOLUMES, {"metadata": {"name": CLAIM}, "spec": volume})
    claim = spec | {"resources": {"requests": size}, "volumeName": CLAIM}
    await bed.client.create(_CLAIMS, {"metadata": {"name": CLAIM}, "spec": claim}, "default")


async def remove_claim(bed: Bed) -> None:
    await bed.client.delete(_CLAIMS, CLAIM, "default")
    await bed.client.delete(_VOLUMES, CLAIM)


async def job_with_claim(bed: Bed, name: str) -> None:
    body = foreign(name, 2)
    spec = body["spec"]["template"]["spec"]
    spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": CLAIM}}]
    del body["spec"]["podFailurePolicy"]
    await bed.client.create(resources.JOB, body, "default")


def seats(bed: Bed, prefix: str) -> set[str]:
    """Nodes that pods of the gang are pinned to and have a seat on."""
    return {
        placement_annotations.pinned_node(pod.spec)
        for pod in bed.pods.store.values()
        if pod.metadata.name.startswith(prefix) and placement_annotations.SEAT_ANNOTATION in pod.metadata.annotations
    }


async def notes(bed: Bed, name: str, reason: str) -> list[str]:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            events = [msgspec.json.decode(each) for each in await bed.client.list(resources.EVENT, "default")]
            if said := [
                each["note"] for each in events if each["reason"] == reason and each["regarding"]["name"] == name
            ]:
                return said
            await asyncio.sleep(0.2)


async def test_a_gang_with_a_volume_that_does_not_exist_gives_its_seats_back_and_starts_with_the_volume(live: Live):
    bed = live.bed
    await live.nodes({"a": 2})
    replica = await live.scheduler(placement_timeout_seconds="2")
    await gang_with_claim(live, "typo")
    await bed.until(lambda: seats(bed, "typo") == {"a-0", "a-1"})

    others = [await bed.submit(kgwe(f"other-{number}", 8)) for number in range(2)]
    for other in others:
        await bed.until_phase(other, "Running")
    await bed.until(lambda: not seats(bed, "typo"))
    said = await notes(bed, "typo-0", "NotScheduled")
    assert f"PersistentVolumeClaim {CLAIM} does not exist" in said[0]
    assert "2 of 2 pods not bound" in said[0]

    replica.kill()
    await live.scheduler(placement_timeout_seconds="2")
    await make_claim(bed)
    try:
        assert [bed.phase(other) for other in others] == ["Running"] * 2
        for other in others:
            await bed.delete(other)
        assert set((await live.until_bound("typo", 2)).values()) == {"a-0", "a-1"}
        assert not live.overbooked()
    finally:
        for number in range(2):
            await bed.client.delete(resources.POD, f"typo-{number}", "default", grace_s=0)
        await remove_claim(bed)


async def test_a_gang_that_waits_after_its_seats_were_released_says_why(live: Live):
    bed = live.bed
    await live.nodes({"a": 2})
    await live.scheduler(placement_timeout_seconds="2")
    await gang_with_claim(live, "stuck")
    await bed.until(lambda: seats(bed, "stuck") == {"a-0", "a-1"})
    await bed.until(lambda: not seats(bed, "stuck"))

    problem = (await live.snapshot())["gangs"]
    assert any(CLAIM in each["problem"] and "released" in each["problem"] for each in problem.values())
    held = {name: node["free"] for name, node in (await live.snapshot())["nodes"].items()}
    assert held == {"a-0": 8, "a-1": 8}


async def test_a_job_whose_nodes_were_given_to_others_starts_elsewhere(live: Live):
    """Its pods are pinned: the Job makes new ones, and none of the old ones counts as failed."""
    bed = live.bed
    await racks(bed, {"a": 2})
    await live.scheduler(placement_timeout_seconds="2")
    await job_with_claim(bed, "pinned")
    await bed.until(lambda: seats(bed, "pinned") == {"a0", "a1"})
    others = [await bed.submit(kgwe(f"other-{number}", 8)) for number in range(2)]
    for other in others:
        await bed.until_phase(other, "Running")
    await make_claim(bed)
    try:
        await racks(bed, {"b": 2})
        await bed.until(lambda: len(members(bed, "pinned")) == 2)
        assert {pod.spec.nodeName for pod in members(bed, "pinned").values()} == {"b0", "b1"}
        assert [bed.phase(other) for other in others] == ["Running"] * 2
        assert not live.overbooked()
    finally:
        await bed.client.delete(resources.JOB, "pinned", "default")
        await remove_claim(bed)
