"""What a real API server says of an object in protobuf is what it says in JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.support.builders.many_pods import CLAIMS, MANY, STATUS

from kgwe.kube.api import resources
from kgwe.kube.client.client import STRATEGIC_MERGE_PATCH, KubeClient
from kgwe.kube.client.informer import Informer
from kgwe.kube.transport.encoding import PROTOBUF

pytestmark = pytest.mark.cluster

OF_STATUS: dict[str, Any] = {"subresource": "status", "kind": STRATEGIC_MERGE_PATCH}
JSON_POD = dataclasses.replace(resources.POD, message="")


async def create_all(client: KubeClient, namespace: str) -> None:
    for manifest in MANY:
        await client.create(resources.POD, manifest, namespace)


async def let_go(client: KubeClient, namespace: str) -> None:
    await client.patch(resources.POD, "noted", {"metadata": {"finalizers": []}}, namespace)


async def test_every_pod_is_the_same_in_both_encodings_in_lists_and_watches(client, namespace, watching, eventually):
    await create_all(client, namespace)
    watched = [Informer(client, kind, namespace=namespace, page_size=3) for kind in (resources.POD, JSON_POD)]
    async with watching(watched[0]) as ours, watching(watched[1]) as theirs:
        await ours.synced()
        await theirs.synced()
        assert len(watched[0].store) == len(MANY)
        assert watched[0].store == watched[1].store
        for manifest in MANY:
            await client.patch(resources.POD, manifest["metadata"]["name"], STATUS, namespace, **OF_STATUS)
        await client.patch(
            resources.POD, "claims", {"status": {"resourceClaimStatuses": CLAIMS}}, namespace, **OF_STATUS
        )
        await client.delete(resources.POD, "noted", namespace, grace_s=0)
        await client.delete(resources.POD, "plain", namespace, grace_s=0)
        await let_go(client, namespace)
        await client.create(resources.POD, MANY[0], namespace)
        for seen in (ours, theirs):
            await eventually(lambda seen=seen: seen.words[-1] == "new plain")
        assert ours.changes == theirs.changes
        assert ours.informer.lists == theirs.informer.lists == 1
        assert {change.new.status.startTime for change in ours.changes if change.new} >= {"2026-01-02T03:04:05Z"}


async def test_pods_and_nodes_do_come_in_protobuf(client, namespace):
    await client.create(resources.POD, MANY[0], namespace)
    for kind in (resources.POD, resources.NODE):
        body = await client.request("GET", kind.path(), accept=PROTOBUF)
        assert body.startswith(b"k8s\0")
        params = {"watch": "true", "timeoutSeconds": "1"}
        async with client.stream(kind.path(), params=params, read_timeout_s=10, accept=PROTOBUF) as answer:
            assert answer.headers["Content-Type"] == f"{PROTOBUF};stream=watch"
