"""The policies of deploy/decisions.yaml on a real API server: who may write decisions, and what all others may do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clusters import tenants
from tests.support.clusters.bed import kgwe

from kgwe import errors
from kgwe.cluster.workload import placement_annotations
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.clusters.bed import Bed

    from kgwe.kube.client.client import KubeClient

DENIED = "only KGWE writes"


@pytest.fixture
async def tenant(bed: Bed, tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with tenants.acting(bed, tmp_path) as client:
        await tenants.until_guarded(client)
        yield client


async def create(client: KubeClient, path: str, body: dict[str, Any]) -> None:
    """Only asks whether it would be accepted."""
    await client.request("POST", path, body=body, params={"dryRun": "All"})


@pytest.mark.parametrize("name", sorted(tenants.SEAT))
async def test_a_tenants_pod_carries_no_decision(tenant: KubeClient, name: str):
    body = tenants.template(1, **{name: tenants.SEAT[name]})
    body["metadata"]["name"] = "forged"
    with pytest.raises(errors.Permanent, match=DENIED):
        await tenant.create(resources.POD, body, tenants.NAMESPACE)


@pytest.mark.parametrize("kind", tenants.KINDS)
async def test_a_tenants_template_carries_no_decision(tenant: KubeClient, kind: str):
    path, forged = tenants.with_template(kind, tenants.template(1, **tenants.SEAT))
    _, honest = tenants.with_template(kind, tenants.template(1, **{"example.com/note": "mine"}))
    await create(tenant, path, honest)
    with pytest.raises(errors.Permanent, match=DENIED):
        await create(tenant, path, forged)
    with pytest.raises(errors.Permanent, match=DENIED):
        await create(
            tenant,
            path,
            {**honest, "metadata": {"name": "w", "annotations": {placement_annotations.PLAN_ANNOTATION: "n1=ff"}}},
        )


async def test_decisions_are_not_added_to_what_is_there_already(tenant: KubeClient):
    path, body = tenants.with_template("jobs", tenants.template(1))
    body["spec"]["suspend"] = True
    await tenant.request("POST", path, body=body)
    name = body["metadata"]["name"]
    for forged in (
        {"metadata": {"annotations": {placement_annotations.PLAN_ANNOTATION: "n1=ff"}}},
        {"spec": {"template": {"metadata": {"annotations": tenants.SEAT}}}},
    ):
        with pytest.raises(errors.Permanent, match=DENIED):
            await tenant.patch(resources.JOB, name, forged, tenants.NAMESPACE)
    mine = {"metadata": {"annotations": {"example.com/note": "mine"}, "labels": {"team": "a"}}}
    await tenant.patch(resources.JOB, name, mine, tenants.NAMESPACE)
    await tenant.delete(resources.JOB, name, tenants.NAMESPACE)


async def test_only_kgwe_removes_the_gate(bed: Bed, tenant: KubeClient):
    body = tenants.template(1)
    body["metadata"]["name"] = "gated"
    body["spec"]["schedulingGates"] = [{"name": placement_annotations.GATE}, {"name": "example.com/mine"}]
    made = await tenant.create(resources.POD, body, tenants.NAMESPACE)
    await bed.until(lambda: made.metadata.key in bed.pods.store)
    with pytest.raises(errors.Permanent, match=DENIED):
        await tenant.patch(resources.POD, "gated", {"spec": {"schedulingGates": []}}, tenants.NAMESPACE)
    ours_stays = {"spec": {"schedulingGates": [{"name": placement_annotations.GATE}]}}
    changed = await tenant.patch(resources.POD, "gated", ours_stays, tenants.NAMESPACE)
    assert [gate.name for gate in changed.spec.schedulingGates] == [placement_annotations.GATE]


async def test_users_work_with_what_kgwe_made(bed: Bed, tenant: KubeClient):
    """KGWE's Job and pods carry decisions: labels, deletion and everything else about them stay the users' own."""
    for name in ("a0", "a1"):
        await bed.node(name, 8)
    await bed.controller()
    workload = await bed.submit(kgwe("w", 16), tenants.NAMESPACE)
    await bed.until_phase(workload, "Running")
    (job,) = bed.jobs_of(workload)
    pods = [pod for pod in bed.pods.store.values() if pod.metadata.namespace == tenants.NAMESPACE]
    assert all(placement_annotations.SIGNATURE_ANNOTATION in pod.metadata.annotations for pod in pods)

    label: dict[str, Any] = {"metadata": {"labels": {"team": "a"}, "annotations": {"example.com/note": "mine"}}}
    await tenant.patch(resources.JOB, job.metadata.name, label, tenants.NAMESPACE)
    await tenant.patch(resources.POD, pods[0].metadata.name, label, tenants.NAMESPACE)
    for forged in ("gang:tenant/x/0", None):
        change = {"metadata": {"annotations": {placement_annotations.SEAT_ANNOTATION: forged}}}
        with pytest.raises(errors.Permanent, match=DENIED):
            await tenant.patch(resources.POD, pods[0].metadata.name, change, tenants.NAMESPACE)
    await tenant.delete(resources.JOB, job.metadata.name, tenants.NAMESPACE)
    await bed.until(lambda: [j.metadata.uid for j in bed.jobs_of(workload)] not in ([], [job.metadata.uid]))
    await bed.until(lambda: bed.phase(workload) == "Running" and sum(bed.gpus_bound().values()) == 16)
