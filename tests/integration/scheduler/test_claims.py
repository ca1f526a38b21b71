"""Workloads that get the GPUs of their plan by ResourceClaims: what is planned is what kube-scheduler allocates."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clusters.api_writes import count
from tests.support.clusters.bed import kgwe
from tests.support.patience import PATIENCE_S, until

from kgwe import errors
from kgwe.cluster.workload.metadata_keys import UID_LABEL
from kgwe.kube.api import resources
from kgwe.kube.api.resource import DRIVER, GPU_CLASS
from kgwe.kube.client.informer import Informer
from kgwe.kube.translate.resource_slices import DeviceSlices
from kgwe.local.fleet import apply, faults, models, resource_slices
from kgwe.model.devices import assignment

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import AsyncIterator

    from tests.support.clusters.bed import Bed

    from kgwe.kube.api.resource import ResourceClaim, ResourceSlice
    from kgwe.kube.client.informer import Change

NODES = 4


class Claims:
    """What was claimed and given, as the API server says."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.claims: Informer[ResourceClaim] = Informer(bed.client, resources.RESOURCE_CLAIM)
        self.slices: Informer[ResourceSlice] = Informer(bed.client, resources.RESOURCE_SLICE)
        self.claims.on_change(lambda _: bed._changed.set())
        self._names = DeviceSlices()
        self.slices.on_change(self._see)
        #: devices that were found to have two holders
        self.twice: set[str] = set()
        self.claims.on_change(self._check)

    def _see(self, change: Change[ResourceSlice]) -> None:
        self._names.set_slice(change.key, change.new)

    def _check(self, _: Any) -> None:
        given = [uuid for claim in self.claims.store.values() for uuid in self.given(claim)]
        self.twice |= {uuid for uuid in given if given.count(uuid) > 1}

    def given(self, claim: ResourceClaim) -> list[str]:
        """UUIDs of what the claim was given."""
        found = (self._names.find_device(device.pool, device.device) for device in claim.gpus)
        return [named[1] if named else "?" for named in found]

    def of(self, workload: Any) -> list[ResourceClaim]:
        """The claims of a workload's pods, in the order of ranks."""
        pods = {
            pod.metadata.uid: pod.metadata.annotations.get("batch.kubernetes.io/job-completion-index", "0")
            for pod in pods_of(self.bed, workload)
        }
        mine = [
            (int(pods[owner.uid]), claim)
            for claim in self.claims.store.values()
            if claim.gpus and (owner := claim.metadata.controller) is not None and owner.uid in pods
        ]
        return [claim for _, claim in sorted(mine, key=lambda each: each[0])]

    async def running(self, workload: Any, timeout_s: float = PATIENCE_S) -> tuple[list[str], list[list[str]]]:
        """(planned UUIDs in the order of ranks, given UUIDs rank by rank) of a workload once it runs."""
        await self.bed.until_phase(workload, "Running", timeout_s=timeout_s)
        planned = list(self.bed.now(workload).status.allocatedGPUs)
        # Pods and claims are watched on their own, so they may be seen later than the phase.
        await until(lambda: sum(map(len, self.given_to(workload))) >= len(planned))
        return planned, self.given_to(workload)

    def given_to(self, workload: Any) -> list[list[str]]:
        return [self.given(claim) for claim in self.of(workload)]


@pytest.fixture
async def claims(bed: Bed) -> AsyncIterator[Claims]:
    await apply.apply_fleet(bed.client, models.load("dgx-h100"), NODES, dra=True)
    made = Claims(bed)
    tasks = [asyncio.create_task(made.slices.run()), asyncio.create_task(made.claims.run())]
    await made.slices.synced.wait()
    await made.claims.synced.wait()
    yield made
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await apply.apply_fleet(bed.client, models.load("dgx-h100"), 0)


def dra(name: str, gpus: int, **spec: Any) -> dict[str, Any]:
    return kgwe(name, gpus, deviceMode="DRA", **spec)


async def come_and_go(bed: Bed, lane: int, stop: asyncio.Event) -> None:
    """Other workloads, now by claim and now by the device plugin, one after another."""
    for turn in range(1000):
        if stop.is_set():
            return
        body = (dra if (turn + lane) % 2 else kgwe)(f"other-{lane}-{turn}", 1 + turn % 3, duration="300ms")
        workload = await bed.submit(body)
        for _ in range(100):
            if bed.phase(workload) in ("Succeeded", "Failed") or stop.is_set():
                break
            await asyncio.sleep(0.1)
        with contextlib.suppress(errors.NotFound):
            await bed.delete(workload)


async def claim_and_let_go(bed: Bed, stop: asyncio.Event) -> None:
    """Pods of others that claim any card there is, without asking us: now and then one that is planned already."""
    request = {"name": "any", "exactly": {"deviceClassName": GPU_CLASS, "allocationMode": "ExactCount", "count": 1}}
    template = {"metadata": {"name": "any"}, "spec": {"spec": {"devices": {"requests": [request]}}}}
    await bed.client.create(resources.RESOURCE_CLAIM_TEMPLATE, template, "default")
    container = {"name": "c", "image": "example.com/app:1", "resources": {"claims": [{"name": "x"}]}}
    spec = {"containers": [container], "resourceClaims": [{"name": "x", "resourceClaimTemplateName": "any"}]}
    for turn in range(1000):
        if stop.is_set():
            break
        name = f"theirs-{turn}"
        await bed.client.create(resources.POD, {"metadata": {"name": name}, "spec": spec}, "default")
        for _ in range(20):
            if "Running" in bed.pod_says(name):
                break
            await asyncio.sleep(0.1)
        await bed.client.delete(resources.POD, name, "default", grace_s=0)
    await bed.client.delete(resources.RESOURCE_CLAIM_TEMPLATE, "any", "default")


async def exactly_as_planned(bed: Bed, claims: Claims, times: int) -> None:
    await bed.controller()
    stop = asyncio.Event()
    others = [asyncio.create_task(come_and_go(bed, lane, stop)) for lane in range(4)]
    others.append(asyncio.create_task(claim_and_let_go(bed, stop)))
    exact = 0
    try:
        for number in range(times):
            workload = await bed.submit(dra(f"four-{number}", 4))
            planned, (given,) = await claims.running(workload)
            assert len(planned) == 4
            exact += sorted(planned) == sorted(given)
            await bed.delete(workload)
    finally:
        stop.set()
        await asyncio.gather(*others)
    assert exact == times
    assert not claims.twice


async def test_every_claim_is_given_exactly_the_planned_cards_under_load(bed: Bed, claims: Claims):
    await exactly_as_planned(bed, claims, 10)


@pytest.mark.soak
async def test_fifty_of_fifty_are_given_the_planned_cards_under_load(bed: Bed, claims: Claims):
    await exactly_as_planned(bed, claims, 50)


async def test_each_rank_of_a_gang_has_its_own_cards_also_where_ranks_share_a_node(bed: Bed, claims: Claims):
    await bed.controller()
    workload = await bed.submit(dra("gang", 24, gpusPerPod=2))
    planned, given = await claims.running(workload)
    assert len(given) == 12
    assert as_planned(planned, given)
    names = [claim.metadata.name for claim in claims.of(workload)]
    await bed.delete(workload)
    await bed.until(lambda: not any(claim.metadata.name in names for claim in claims.claims.store.values()))


async def test_cards_that_others_claim_are_not_planned(bed: Bed, claims: Claims):
    await bed.controller()
    await apply.apply_fleet(bed.client, models.load("dgx-h100"), 1, dra=True)
    request = {"name": "any", "exactly": {"deviceClassName": GPU_CLASS, "allocationMode": "ExactCount", "count": 3}}
    body = {"metadata": {"name": "theirs"}, "spec": {"devices": {"requests": [request]}}}
    await bed.client.create(resources.RESOURCE_CLAIM, body, "default")
    container = {"name": "c", "image": "example.com/app:1", "resources": {"claims": [{"name": "x"}]}}
    spec = {"containers": [container], "resourceClaims": [{"name": "x", "resourceClaimName": "theirs"}]}
    await bed.client.create(resources.POD, {"metadata": {"name": "theirs"}, "spec": spec}, "default")
    await bed.until(lambda: claims.claims.store["default/theirs"].gpus)
    theirs = set(claims.given(claims.claims.store["default/theirs"]))

    mine = await bed.submit(kgwe("plugin", 3))  # by the device plugin
    await bed.until_phase(mine, "Running")
    ours = await bed.submit(dra("claims", 2))
    planned, (given,) = await claims.running(ours)
    held = set(bed.now(mine).status.allocatedGPUs)
    assert sorted(planned) == sorted(given)
    assert len(theirs | held | set(given)) == 8, "nobody's cards are planned for anybody else"
    too_many = await bed.submit(kgwe("late", 1))
    await bed.until_phase(too_many, "Pending")
    await bed.client.delete(resources.POD, "theirs", "default", grace_s=0)
    await bed.until_phase(too_many, "Running")
    await bed.client.delete(resources.RESOURCE_CLAIM, "theirs", "default")


async def test_a_node_with_slices_and_nothing_else_runs_what_claims_and_nothing_else(bed: Bed, claims: Claims):
    await apply.apply_fleet(bed.client, models.load("dgx-h100"), 0)
    await bed.node("bare", gpus=0)
    await resource_slices.apply_device_classes(bed.client)
    described = [
        {
            "name": f"gpu-{number}",
            "attributes": {"type": {"string": "gpu"}, "uuid": {"string": f"GPU-bare-{number}"}},
            "capacity": {"memory": {"value": "80Gi"}},
        }
        for number in range(4)
    ]
    pool = {"name": "bare", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": "bare", "pool": pool, "devices": described}
    await bed.client.create(resources.RESOURCE_SLICE, {"metadata": {"name": "bare-gpu"}, "spec": spec})
    try:
        await bed.controller()
        plain = await bed.submit(kgwe("plain", 1))
        claiming = await bed.submit(dra("claiming", 3))
        planned, (given,) = await claims.running(claiming)
        assert sorted(planned) == sorted(given)
        assert set(planned) < {f"GPU-bare-{number}" for number in range(4)}
        await bed.until_phase(plain, "Pending")
        assert not bed.jobs_of(plain), "without a device plugin nobody can be given a card as a resource"
    finally:
        await bed.client.delete(resources.RESOURCE_SLICE, "bare-gpu")


async def test_a_card_that_fails_is_claimed_no_more_and_its_work_claims_others(bed: Bed, claims: Claims):
    await bed.controller()
    single, gang = await bed.submit(dra("single", 4)), await bed.submit(dra("gang", 12, gpusPerPod=4))
    before, _ = await claims.running(single)
    ranks, _ = await claims.running(gang)
    for uuid in (before[0], ranks[5]):
        node, card = await located(bed, uuid)
        await faults.gpu_xid(bed.client, node, card, 79)
    broken = {before[0], ranks[5]}
    for workload in (single, gang):
        await bed.until(functools.partial(is_elsewhere, bed, claims, workload, broken))
    assert not claims.twice


def is_elsewhere(bed: Bed, claims: Claims, workload: Any, broken: set[str]) -> bool:
    """Whether all of it runs, on the planned cards and on none of the broken ones."""
    now = bed.now(workload)
    if now.status.phase != "Running" or any(each.status.phase != "Running" for each in pods_of(bed, workload)):
        return False
    planned, given = list(now.status.allocatedGPUs), [claims.given(each) for each in claims.of(workload)]
    return not broken & set(planned) and as_planned(planned, given)


def as_planned(planned: list[str], given: list[list[str]]) -> bool:
    each = len(planned) // max(len(given), 1)
    return [sorted(uuids) for uuids in given] == [
        sorted(planned[at : at + each]) for at in range(0, len(planned), each or 1)
    ]


async def located(bed: Bed, uuid: str) -> tuple[str, int]:
    """(node, number) of a card."""
    for obj in await bed.client.list(resources.GPU_NODE):
        for device in obj.status.gpus:
            if device.uuid == uuid:
                return obj.metadata.name, device.index
    raise AssertionError(uuid)


async def test_slices_are_claimed_by_their_uuids_too(bed: Bed, claims: Claims):
    await apply.apply_fleet(bed.client, models.load("hgx-a100"), 4, dra=True)
    await bed.controller()
    body = dra("slices", 1)
    body["spec"]["gpuRequirements"] = {"mig": {"profile": "2g.20gb", "count": 3}}
    workload = await bed.submit(body)
    await bed.until_phase(workload, "Running")
    await bed.until(lambda: bed.now(workload).status.migInstances and claims.of(workload))
    (claim,) = claims.of(workload)
    planned = [each.instanceUUID for each in bed.now(workload).status.migInstances]
    assert len(planned) == 3
    assert sorted(claims.given(claim)) == sorted(planned)


async def test_a_scheduler_that_is_killed_amid_claims_leaves_every_rank_its_own_cards(bed: Bed, claims: Claims):
    replica = await bed.controller(lease_duration_seconds="3", renew_deadline_seconds="2", retry_period_seconds="0.5")
    gang = await bed.submit(dra("gang", 16, gpusPerPod=2))
    # Some ranks have their claims, others do not.
    await bed.until(lambda: any(claim.metadata.labels.get(UID_LABEL) for claim in claims.claims.store.values()))
    replica.kill()
    await bed.controller()
    planned, given = await claims.running(gang)
    assert as_planned(planned, given)
    assert not claims.twice


async def test_what_a_claim_costs_the_api_server(bed: Bed, claims: Claims):
    """A template for each workload, a claim for each pod; allocating writes a claim twice. Nobody warns of anything."""
    await bed.controller()
    # What tests before this one left is still being collected, and deleting is writing.
    async with asyncio.timeout(PATIENCE_S):
        while await bed.client.list(resources.RESOURCE_CLAIM_TEMPLATE, "default") or claims.claims.store:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.2)
    before = await count(bed)
    for number in range(4):
        await claims.running(await bed.submit(dra(f"cost-single-{number}", 1)))
    middle = await count(bed)
    # 8 ranks on two nodes: each shares its own.
    await claims.running(await bed.submit(dra("cost-gang", 16, gpusPerPod=2)))
    after = await count(bed)
    singles, ranks = middle - before, after - middle
    assert (singles["resourceclaimtemplates"], ranks["resourceclaimtemplates"]) == (4, 1)
    assert claim_writes(singles) <= 4 * 3, singles
    assert claim_writes(ranks) <= 8 * 4, ranks
    events = [bytes(each).decode() for each in await bed.client.list(resources.EVENT, "default")]
    # Events of other tests of this cluster stay for an hour.
    assert not [each for each in events if "FailedResourceClaimCreation" in each and '"name":"cost-' in each]


def claim_writes(writes: Counter[str]) -> int:
    return writes["resourceclaims"] + writes["resourceclaims/status"]


async def test_pods_of_a_deployment_claim_the_cards_of_their_seats_and_so_do_their_successors(bed: Bed, claims: Claims):
    await bed.controller()
    await apply.apply_fleet(bed.client, models.load("dgx-h100"), 1, dra=True)
    workload = await bed.submit(dra("serve", 6, gpusPerPod=2, workloadType="Inference"))
    await bed.until(lambda: is_served(bed, claims, workload))
    gone = next(iter(pods_of(bed, workload)))
    await bed.client.delete(resources.POD, gone.metadata.name, "default", grace_s=0)
    await bed.until(lambda: gone.metadata.key not in bed.pods.store and is_served(bed, claims, workload))
    assert not claims.twice


def pods_of(bed: Bed, workload: Any) -> list[Any]:
    uid = workload.metadata.uid
    return [each for each in bed.pods.store.values() if each.metadata.labels.get(UID_LABEL) == uid]


def is_served(bed: Bed, claims: Claims, workload: Any) -> bool:
    """Whether three pods run, each on the cards it was told, and all of these are different."""
    pods = pods_of(bed, workload)
    told = {each.metadata.uid: assignment.parse_planned(each.metadata.annotations).numbers for each in pods}
    had = {
        claim.metadata.controller.uid: tuple(sorted(int(each.device.removeprefix("gpu-")) for each in claim.gpus))
        for claim in claims.of(workload)
        if claim.metadata.controller is not None
    }
    different = len({card for cards in had.values() for card in cards})
    return all(each.status.phase == "Running" for each in pods) and len(pods) == 3 and told == had and different == 6
