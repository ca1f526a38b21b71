"""What a tenant with rights in one namespace can do to the work of others where deploy/decisions.yaml is not installed.

The unit tests try everything that KGWE reads, alone and in pairs; here are the worst of it on a real control plane.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clusters import tenants
from tests.support.clusters.bed import kgwe
from tests.support.clusters.pods import gang

from kgwe import errors
from kgwe.cluster.workload import placement_annotations
from kgwe.kube.api import resources
from kgwe.kube.client import manifests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.clusters.bed import Bed
    from tests.support.clusters.pods import Live

    from kgwe.kube.client.client import KubeClient

GROUP = "admissionregistration.k8s.io/v1"
BINDINGS = ("kgwe-decisions-on-pods", "kgwe-decisions-in-templates")


@pytest.fixture
async def tenant(bed: Bed, tmp_path: Path) -> AsyncIterator[KubeClient]:
    """A tenant that no policy keeps from writing decisions."""
    with contextlib.suppress(errors.NotFound):
        kind = await manifests.find_resource(bed.client, GROUP, "ValidatingAdmissionPolicyBinding")
        for name in BINDINGS:
            await bed.client.delete(kind, name)
    async with tenants.acting(bed, tmp_path) as client:
        await tenants.until_unguarded(client)
        yield client
        for path in ("/apis/batch/v1", "/api/v1"):
            plural = "jobs" if "batch" in path else "pods"
            query = {"propagationPolicy": "Background", "gracePeriodSeconds": "0"}
            await bed.client.request("DELETE", f"{path}/namespaces/{tenants.NAMESPACE}/{plural}", params=query)


async def seen(bed: Bed, *names: str) -> None:
    await bed.until(lambda: all(f"{tenants.NAMESPACE}/{name}" in bed.pods.store for name in names))


async def test_forged_seats_of_a_gang_that_is_not_complete_hold_nothing(bed: Bed, tenant: KubeClient):
    for name in ("n1", "n2"):
        await bed.node(name, 8)
    for number in range(4):
        forged = tenants.forged_pod(f"forged-{number}", f"n{number % 2 + 1}", number, 1000)
        await tenant.create(resources.POD, forged, tenants.NAMESPACE)
    await seen(bed, *(f"forged-{number}" for number in range(4)))

    await bed.controller()

    await bed.until_phase(await bed.submit(kgwe("w", 16)), "Running")


async def test_a_tenants_job_with_a_forged_template_holds_nothing(bed: Bed, tenant: KubeClient):
    for name in ("n1", "n2"):
        await bed.node(name, 8)
    pods = tenants.forged_pod("x", "n1", 0, 1000)
    del pods["metadata"]["name"]
    path, job = tenants.with_template("jobs", pods)
    job["spec"] |= {"completions": 2, "parallelism": 2}
    await tenant.request("POST", path, body=job)
    await bed.until(lambda: sum(pod.metadata.namespace == tenants.NAMESPACE for pod in bed.pods.store.values()) == 2)

    await bed.controller()

    await bed.until_phase(await bed.submit(kgwe("w", 16)), "Running")


async def test_a_pod_without_its_gate_does_not_take_the_seat_of_a_pod_that_restarts(
    bed: Bed, live: Live, tenant: KubeClient
):
    for name in ("n1", "n2"):
        await bed.node(name, 8)
    await live.scheduler()
    workload = await bed.submit(kgwe("w", 16))
    await bed.until_phase(workload, "Running")
    (job,) = bed.jobs_of(workload)
    mine = [pod for pod in bed.pods.store.values() if pod.metadata.namespace == "default"]
    before = {pod.metadata.annotations[placement_annotations.SEAT_ANNOTATION]: pod.spec.nodeName for pod in mine}
    victim = mine[0]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job.metadata.name, "uid": job.metadata.uid}
    for number, said in enumerate((victim.metadata.annotations, {**victim.metadata.annotations, **gang("g", 2)})):
        thief = tenants.template(8, **said)
        thief["metadata"] |= {"name": f"thief-{number}", "labels": dict(victim.metadata.labels)}
        thief["metadata"]["ownerReferences"] = [owner | {"controller": True}]
        thief["spec"]["schedulingGates"] = [{"name": placement_annotations.GATE}]
        placement_annotations.pin_to_node(thief["spec"], victim.spec.nodeName)
        await tenant.create(resources.POD, thief, tenants.NAMESPACE)
        with contextlib.suppress(errors.NotFound):  # Kubernetes may have seen already that its owner does not exist
            await tenant.patch(resources.POD, f"thief-{number}", {"spec": {"schedulingGates": []}}, tenants.NAMESPACE)

    await bed.client.delete(resources.POD, victim.metadata.name, "default", grace_s=0)

    def is_back() -> bool:
        pods = [pod for pod in bed.pods.store.values() if pod.metadata.namespace == "default"]
        found = {
            pod.metadata.annotations.get(placement_annotations.SEAT_ANNOTATION, ""): pod.spec.nodeName for pod in pods
        }
        return found == before and victim.metadata.uid not in {pod.metadata.uid for pod in pods}

    await bed.until(is_back)
    thieves = [pod for pod in bed.pods.store.values() if pod.metadata.namespace == tenants.NAMESPACE]
    assert [pod.spec.nodeName for pod in thieves if pod.spec.nodeName] == []
    await bed.until(lambda: bed.phase(workload) == "Running")
    assert [each.metadata.uid for each in bed.jobs_of(workload)] == [job.metadata.uid]


async def test_replicas_that_start_together_share_one_key(bed: Bed):
    from kgwe.apps.scheduler.signing_key import NAME, SigningKeys  # noqa: PLC0415 - the tests above need no key
    from kgwe.cluster.workload.signatures import Signer  # noqa: PLC0415

    await bed.client.delete(resources.SECRET, NAME, "kgwe-system")
    signers = [Signer() for _ in range(8)]
    await asyncio.gather(*(SigningKeys(bed.client, each, "kgwe-system").load() for each in signers))
    keys: list[Any] = [each._keys for each in signers]
    assert keys == [keys[0]] * 8
    assert len(keys[0]) == 1

    await SigningKeys(bed.client, signers[0], "kgwe-system").rotate()
    assert await SigningKeys(bed.client, signers[0], "kgwe-system").load()
    assert list(signers[0]._keys)[1:] == list(keys[1]), "the key before is still accepted"
    short = {"data": {"current": base64.b64encode(b"short").decode()}}
    await bed.client.patch(resources.SECRET, NAME, short, "kgwe-system")
    with pytest.raises(errors.Permanent, match="shorter than 16 bytes"):
        await SigningKeys(bed.client, Signer(), "kgwe-system").load()
    await bed.client.delete(resources.SECRET, NAME, "kgwe-system")
    await SigningKeys(bed.client, Signer(), "kgwe-system").load()  # the schedulers of other tests need one
    with pytest.raises(errors.Permanent, match="forbidden"):
        await bed.as_controller("/api/v1/namespaces/kgwe-system/secrets")
