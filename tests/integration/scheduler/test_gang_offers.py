"""The webhook of deploy/gang-seats.yaml on a real API server: a tenant's gangs have their seats once they exist."""

from __future__ import annotations

import asyncio
import contextlib
from http import HTTPStatus
from typing import TYPE_CHECKING

import httpx2
import msgspec
from tests.support.clusters import tenants
from tests.support.clusters.pods import gang, pod
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.cluster.workload import placement_annotations
from kgwe.kube.api import core, resources
from kgwe.local.cluster import extender, seat_webhook
from kgwe.local.host import ports

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.clusters.bed import Bed
    from tests.support.clusters.pods import Live

    from kgwe.kube.client.client import KubeClient

OFFER = placement_annotations.OFFER_ANNOTATION
PATH = f"/api/v1/namespaces/{tenants.NAMESPACE}/pods"


@contextlib.asynccontextmanager
async def offering(bed: Bed, port: int) -> AsyncIterator[None]:
    """The API server asks this port about pods of the tenant's gangs."""
    labels = {"metadata": {"name": tenants.NAMESPACE, "labels": seat_webhook.LABEL}}
    await bed.client.apply(resources.NAMESPACE, labels)
    await seat_webhook.configure(bed.client, bed.cluster, port)
    try:
        yield
    finally:
        await seat_webhook.remove(bed.client)


async def create_pair(tenant: KubeClient, name: str) -> list[core.Pod]:
    """A gang of two pods with 8 GPUs each, created at the same time."""
    bodies = [pod(f"{name}-{number}", 8, annotations=gang(name, 2, required="leaf")) for number in range(2)]
    return list(await asyncio.gather(*(tenant.create(resources.POD, body, tenants.NAMESPACE) for body in bodies)))


async def create_seated(bed: Bed, tenant: KubeClient) -> list[core.Pod]:
    """A gang whose pods got their seats while they were created: a busy scheduler may answer too late."""
    async with asyncio.timeout(PATIENCE_S):
        for attempt in range(1000):
            with contextlib.suppress(errors.Transient):
                made = await create_pair(tenant, f"g{attempt}")
                if all(OFFER in each.metadata.annotations for each in made):
                    return made
            await bed.client.request("DELETE", PATH, body={"gracePeriodSeconds": 0})
            await bed.until(lambda: not bed.pods.store)
    raise AssertionError("no gang got its seats")


def bound(bed: Bed, pods: list[core.Pod]) -> dict[str, str]:
    found = {each.metadata.uid: each.spec.nodeName for each in bed.pods.store.values()}
    return {pod.metadata.name: found.get(pod.metadata.uid, "") for pod in pods}


async def ask_as(port: int, context: ssl.SSLContext) -> int:
    body = pod("x", 8, annotations=gang("x", 1))
    request = {"uid": "u", "namespace": "default", "operation": "CREATE", "object": body}
    url = f"https://127.0.0.1:{port}/seat-v1-pod"
    async with httpx2.AsyncClient(timeout=PATIENCE_S, verify=context) as client:
        reply = await client.post(url, json={"request": request})
    return reply.status_code


async def test_gangs_of_a_tenant_get_their_seats_while_they_are_created(live: Live, tmp_path: Path) -> None:
    bed, port = live.bed, ports.allocate(("admission",))["admission"]
    await live.nodes({"a": 2, "b": 2})
    settings = {"admission_bind_address": f"127.0.0.1:{port}"}
    replica = await live.scheduler(**settings)
    async with tenants.acting(bed, tmp_path) as tenant, offering(bed, port):
        made = await create_seated(bed, tenant)
        assert not any(each.spec.schedulingGates for each in made)
        nodes = {each.metadata.name: placement_annotations.pinned_node(each.spec) for each in made}
        assert len({node[0] for node in nodes.values()}) == 1, "one leaf, as the gang requires"
        await bed.until(lambda: bound(bed, made) == nodes)

        # Only the API server may ask: any other client has no certificate of its name.
        stranger = extender.client_context(bed.cluster.layout.certificates)
        assert await ask_as(port, stranger) == HTTPStatus.FORBIDDEN

        # A dry run reserves nothing, and the offer of another pod does not count.
        trial = await tenant.request(
            "POST", PATH, body=pod("t-0", 8, annotations=gang("t", 2)), params={"dryRun": "All"}
        )
        assert OFFER not in msgspec.json.decode(trial, type=core.Pod, strict=False).metadata.annotations
        copied = gang("thief", 2) | {OFFER: made[0].metadata.annotations[OFFER]}
        forged = await tenant.create(resources.POD, pod("thief-0", 8, annotations=copied), tenants.NAMESPACE)
        assert placement_annotations.is_gated(forged)
        await tenant.delete(resources.POD, "thief-0", tenants.NAMESPACE, grace_s=0)

        # Without a leader pods are created with their gates; the next leader places them.
        replica.kill()
        waiting = await create_pair(tenant, "later")
        assert all(placement_annotations.is_gated(each) for each in waiting)
        await live.scheduler(**settings)
        await bed.until(lambda: all(bound(bed, waiting).values()))
        assert bound(bed, made) == nodes
        assert not live.overbooked()
