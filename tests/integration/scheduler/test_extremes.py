"""Whatever a tenant writes, the work of others is placed: objects at the limits of what the API server accepts."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import random
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest
from tests.support.builders.extremes import NODES, Extremes
from tests.support.clusters.bed import condition, kgwe
from tests.support.clusters.pods import gang, pod
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed, Replica
    from tests.support.clusters.pods import Live

MOST: Final = str(2**63 - 1)
TAINT: Final = "example.com/canary"
SEED: Final = int(os.environ.get("KGWE_EXTREMES_SEED", "11"))
# How long the canaries of the soak test may wait for their places. Other tests assert no times.
PLACED_WITHIN_S: Final = float(os.environ.get("KGWE_CANARY_SECONDS", "5"))
UNTIMED_S: Final = 60.0
# Canaries under way at the same time; each follows a manifest of its own.
STREAMS: Final = 2


def two_of(resource: str) -> list[dict[str, Any]]:
    """Two containers that together ask for more than 64 bits hold."""
    wants = {"limits": {resource: MOST}, "requests": {resource: MOST}}
    return [{"name": name, "image": "x", "resources": wants} for name in ("a", "b")]


@pytest.mark.parametrize("resource", ["memory", "cpu", amounts.GPU])
async def test_amounts_beyond_64_bits_stop_nobody_even_after_a_restart(bed: Bed, resource: str):
    await bed.node("n1")
    replica = await bed.controller()
    huge = {"containers": two_of(resource)}
    bad = await bed.submit(kgwe("bad", 1, pod=huge, priority=1000))
    for number in range(2):
        body = pod(f"bad-{number}", 1, annotations=gang("bad", 2))
        body["spec"] |= huge
        await bed.client.create(resources.POD, body, "default")
    await bed.until_phase(bad, "Pending", "Failed")
    await bed.until_phase(await bed.submit(kgwe("before", 2)), "Running")
    assert (await replica.get("/readyz")).is_success
    replica.kill()

    replica = await bed.controller()

    await bed.until_phase(await bed.submit(kgwe("after", 2)), "Running")
    assert (await replica.get("/readyz")).is_success
    assert await replica.metric("kgwe_planning_passes_failed_total") == 0
    expected = {"InvalidPodTemplate"} if resource == amounts.GPU else {"TooLarge"}
    assert condition(bed.now(bad), "Scheduled").reason in expected


async def test_objects_nested_deep_stop_nobody_even_after_a_restart(bed: Bed):
    """A free-form field holds up to 10,000 levels; the decoder goes less than 1,000 deep."""
    await bed.node("n1")
    replica = await bed.controller()
    deep = [await submit_deep(bed, f"deep-{levels}", levels) for levels in (150, 900, 970, 3000, 9000)]
    await bed.client.request("POST", resources.RESOURCE_CLAIM.path(namespace="default"), body=deep_claim(4000))
    await bed.until_phase(await bed.submit(kgwe("before", 2)), "Running")
    for each in deep:
        await bed.until_phase(each, "Failed", "Pending")
        assert condition(bed.now(each), "Scheduled").reason == "InvalidPodTemplate", each.metadata.name
        assert "nested deeper than 100 levels" in bed.now(each).status.message
    assert replica.process.poll() is None
    replica.kill()

    replica = await bed.controller()

    await bed.until_phase(await bed.submit(kgwe("after", 2)), "Running")
    await bed.edit(deep[-1], {"podTemplate": None})
    await bed.until_phase(deep[-1], "Running")
    assert (await replica.get("/readyz")).is_success
    assert await replica.metric("kgwe_planning_passes_failed_total") == 0
    await bed.client.delete(resources.RESOURCE_CLAIM, "deep", "default")


async def submit_deep(bed: Bed, name: str, levels: int) -> Any:
    # msgspec encodes no such depth either, so the bytes are put together by hand.
    body = msgspec.json.encode(kgwe(name, 1, pod={"containers": [{"name": "a", "image": "x"}], "zz": "DEEP"}))
    raw = body.replace(b'"DEEP"', b'{"a":' * levels + b"1" + b"}" * levels)
    await bed.client.request("POST", resources.GPU_WORKLOAD.path(namespace="default"), body=raw)
    return await bed.client.get(resources.GPU_WORKLOAD, name, "default")


def deep_claim(levels: int) -> bytes:
    asked = {"name": "g", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    config = {"opaque": {"driver": "gpu.nvidia.com", "parameters": {"a": "DEEP"}}}
    body = {
        "apiVersion": resources.RESOURCE_CLAIM.api_version,
        "kind": "ResourceClaim",
        "metadata": {"name": "deep"},
        "spec": {"devices": {"requests": [asked], "config": [config]}},
    }
    return msgspec.json.encode(body).replace(b'"DEEP"', b"[" * levels + b"]" * levels)


async def test_no_node_offers_gpus_while_one_workload_runs_and_another_waits(bed: Bed):
    await bed.node("n1", 2)
    replica = await bed.controller()
    runs = await bed.submit(kgwe("runs", 2, expectedDurationSeconds=60))
    await bed.until_phase(runs, "Running")
    offers = {"status": {"capacity": {amounts.GPU: "0"}, "allocatable": {amounts.GPU: "0"}}}
    await bed.client.patch(resources.NODE, "n1", offers, subresource="status")
    waits = await bed.submit(kgwe("waits", 2))
    await bed.until_phase(waits, "Pending")
    assert condition(bed.now(waits), "Scheduled").reason == "NoGPUNodes"

    await bed.node("n2", 2)

    await bed.until_phase(waits, "Running")
    assert (await replica.get("/readyz")).is_success
    assert await replica.metric("kgwe_planning_passes_failed_total") == 0


async def test_nobody_is_evicted_from_an_overcommitted_node_in_vain(bed: Bed):
    """Eight GPUs, held by work that may be stopped and by a pod bound by name: stopping the work frees none."""
    await bed.node("n1")
    replica = await bed.controller()
    low = await bed.submit(kgwe("low", 8, priority=10, preemptible=True))
    await bed.until_phase(low, "Running")
    (job,) = bed.jobs_of(low)
    await bed.client.create(resources.POD, pod("direct", 8, nodeName="n1"), "default")
    await bed.until(lambda: "Running" in bed.pod_says("direct"))

    high = await bed.submit(kgwe("high", 8, priority=1000))
    await bed.until_phase(high, "Pending")
    # It is looked at for victims again when a node comes.
    await bed.node("n2", 4)
    other = await bed.submit(kgwe("other", 4, priority=1000))
    await bed.until_phase(other, "Running")
    assert await replica.metric("kgwe_preemptions_total") == 0
    assert [each.metadata.uid for each in bed.jobs_of(low)] == [job.metadata.uid]

    await bed.client.delete(resources.POD, "direct", "default", grace_s=0)

    await bed.until_phase(high, "Running")
    await bed.until(lambda: bed.gpus_bound() == {"n1": 8, "n2": 4})


# --- many manifests -------------------------------------------------------------------------------------


class Attack:
    """Manifests, each followed by a canary workload and a canary gang."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.bed = live.bed
        self._extremes = Extremes(random.Random(SEED), "default")
        self.accepted: collections.Counter[str] = collections.Counter()
        self.refused = 0
        self.objects = 0
        self.waits: list[float] = []
        self._made: list[str] = []
        self._turn = asyncio.Lock()
        self._rounds = 0

    async def follow(self, manifests: int) -> None:
        """Until so many were accepted: one more, and its canaries."""
        while sum(self.accepted.values()) < manifests:
            async with self._turn:
                parts = self._extremes.next()
            if await self._create(parts):
                await self.canaries()

    async def _create(self, parts: list[tuple[str, dict[str, Any]]]) -> bool:
        found = 0
        for path, body in parts:
            try:
                made = await self.bed.client.request("POST", path, body=body)
            except errors.Permanent:
                continue
            meta = msgspec.json.decode(made)["metadata"]
            self._made.append(f"{path}/{meta['name']}")
            found += 1
        self.objects += found
        if found:
            self.accepted[parts[0][0].rsplit("/", 1)[1]] += 1
        else:
            self.refused += 1
        return bool(found)

    async def canaries(self) -> None:
        """A workload and a gang, both bound in time; then they go."""
        self._rounds += 1
        name = f"canary-{self._rounds}"
        limits = {"nodeSelector": {TAINT: "yes"}, "tolerations": [{"key": TAINT, "operator": "Exists"}]}
        began = time.monotonic()
        workload = await self.bed.submit(kgwe(name, 1, pod=limits))
        for number in range(2):
            body = pod(f"{name}-{number}", 1, annotations=gang(name, 2))
            body["spec"] |= limits
            await self.bed.client.create(resources.POD, body, "default")
        await self.bed.until(lambda: self._bound(f"{name}-job") and self._bound(f"{name}-0", f"{name}-1"))
        self.waits.append(time.monotonic() - began)
        await self.bed.delete(workload)
        for number in range(2):
            await self.bed.client.delete(resources.POD, f"{name}-{number}", "default", grace_s=0)

    def _bound(self, *prefixes: str) -> bool:
        pods = [each for each in self.bed.pods.store.values() if each.spec.nodeName]
        return all(any(each.metadata.name.startswith(prefix) for each in pods) for prefix in prefixes)

    async def clean_up(self) -> None:
        for path in self._made:
            with contextlib.suppress(errors.KgweError):
                body = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
                await self.bed.client.request("DELETE", path, body=body)

    def report(self, title: str) -> None:
        waits = sorted(self.waits)
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.accepted.items()))
        print(  # noqa: T201 - the numbers of the run
            f"{title}: {sum(self.accepted.values())} manifests accepted ({kinds}; {self.objects} objects), "
            f"{self.refused} refused by the API server; {len(waits)} canary workloads and gangs placed, "
            f"median {waits[len(waits) // 2]:.2f} s, p99 {waits[int(len(waits) * 0.99)]:.2f} s, last {waits[-1]:.2f} s"
        )


async def check(attack: Attack, replica: Replica, within_s: float) -> None:
    text = (await replica.get("/metrics")).text
    names = ("kgwe_planning_errors_total", "kgwe_planning_passes_failed_total")
    counted = [line for line in text.splitlines() if line.startswith(names)]
    assert replica.process.poll() is None
    assert (await replica.get("/readyz")).is_success
    assert all(line.endswith(" 0.0") for line in counted), f"errors, though they were isolated: {counted}"
    late = [wait for wait in attack.waits if wait > within_s]
    assert not late, f"canaries that waited for longer than {within_s} s: {late}"


async def _until_leading(replica: Replica) -> None:
    """The Lease of a leader that was killed has to run out first."""
    async with asyncio.timeout(PATIENCE_S):
        while not (await replica.get("/readyz")).is_success:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.1)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("manifests", "within_s"),
    [
        pytest.param(40, UNTIMED_S, marks=pytest.mark.slow),
        pytest.param(500, PLACED_WITHIN_S, marks=pytest.mark.soak),
    ],
)
async def test_canaries_are_placed_whatever_else_there_is(live: Live, manifests: int, within_s: float):
    bed = live.bed
    for name in NODES:
        await bed.node(name)
    for number in range(4):
        await bed.node(f"canary{number}", labels={TAINT: "yes"})
        taint = {"spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]}}
        await bed.client.patch(resources.NODE, f"canary{number}", taint)
    replica = await live.scheduler()
    attack = Attack(live)
    try:
        await asyncio.gather(*(attack.follow(manifests) for _ in range(STREAMS)))
        attack.report("before the restart")
        await check(attack, replica, within_s)
        replica.kill()
        replica = await live.scheduler()
        await _until_leading(replica)
        attack.waits.clear()
        for _ in range(10):
            await attack.canaries()
        attack.report("after the restart")
        await check(attack, replica, within_s)
    finally:
        await attack.clean_up()
