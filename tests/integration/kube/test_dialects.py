"""Groups of other systems on a real API server: found when they are served, watched, and read with pods as stored."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from tests.support.clusters import clients
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.client.informer import Informer
from kgwe.kube.dialects import (
    Gang,
    Groups,
    Levels,
    count_missing,
    find_membership,
    find_readable,
    find_served,
    gang_request,
    kinds,
)
from kgwe.local.cluster.cluster import service_account_kubeconfig
from kgwe.model.network.domain_labels import TOPOGRAPH
from kgwe.placement.fleet.node import Gpus, Request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kgwe.kube.client.client import KubeClient
    from kgwe.local.cluster.cluster import LocalCluster

pytestmark = pytest.mark.cluster

POD_GROUP = kinds.COSCHEDULING
CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": f"{POD_GROUP.plural}.{POD_GROUP.group}",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"},
    },
    "spec": {
        "group": POD_GROUP.group,
        "scope": "Namespaced",
        "names": {"plural": POD_GROUP.plural, "singular": "podgroup", "kind": POD_GROUP.kind},
        "versions": [
            {
                "name": POD_GROUP.version,
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


async def _until_created(client: KubeClient, body: dict[str, Any], namespace: str) -> None:
    """A definition is announced a moment before its storage is ready."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await client.create(POD_GROUP, body, namespace)
            except (errors.NotFound, errors.Transient):
                await asyncio.sleep(0.1)
            else:
                return


async def _until_gone(client: KubeClient) -> None:
    """Its objects go first; whoever applied it before that would see it go with them."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await client.get(resources.CRD, CRD["metadata"]["name"])
            except errors.NotFound:
                return
            await asyncio.sleep(0.1)


@pytest_asyncio.fixture
async def pod_groups(client: KubeClient) -> AsyncIterator[None]:
    await client.apply(resources.CRD, CRD)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while POD_GROUP not in await find_served(client):  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.1)
        yield
    finally:
        await client.delete(resources.CRD, CRD["metadata"]["name"])
        await _until_gone(client)


async def test_only_kinds_that_exist_are_found(client: KubeClient) -> None:
    found = await find_served(client)

    assert resources.JOB in found
    assert kinds.VOLCANO not in found
    assert kinds.JOB_SET not in found


@pytest.mark.usefixtures("pod_groups")
async def test_who_may_not_read_a_kind_is_told_so_and_does_without(
    cluster: LocalCluster, namespace: str, tmp_path: Path
) -> None:
    path = service_account_kubeconfig(cluster, namespace, "default", tmp_path / "nobody")
    async with clients.connect(path) as nobody:
        found, forbidden = await find_readable(nobody)

    assert found == ()
    assert set(forbidden) == {resources.JOB, POD_GROUP}
    assert "cannot list resource" in forbidden[POD_GROUP]


@pytest.mark.usefixtures("pod_groups")
async def test_a_group_and_its_pods_as_the_server_stores_them(
    client: KubeClient, namespace: str, watching, eventually
) -> None:
    groups_seen: Informer[Any] = Informer(client, POD_GROUP, namespace=namespace)
    pods_seen = Informer(client, resources.POD, namespace=namespace)
    groups = Groups(Levels(TOPOGRAPH), {POD_GROUP: groups_seen.store})
    async with watching(groups_seen), watching(pods_seen):
        for number in range(3):
            await client.create(resources.POD, pod(f"p-{number}"), namespace)
        await eventually(lambda: len(pods_seen.store) == 3)
        waiting = find_membership(pods_seen.store[f"{namespace}/p-0"], groups)
        assert waiting is not None
        assert waiting.problem is not None
        assert waiting.problem.waits

        named = {"apiVersion": POD_GROUP.api_version, "kind": POD_GROUP.kind, "metadata": {"name": "llama"}}
        await _until_created(client, {**named, "spec": {"minMember": 3}}, namespace)
        await eventually(lambda: bool(groups_seen.store))
        members = [(each, member) for each in pods_seen.store.values() if (member := find_membership(each, groups))]

        assert count_missing(members) == 0
        gang = gang_request(members, lambda _: Request(Gpus(count=1)))
        assert isinstance(gang, Gang)
        assert [each.metadata.name for each in gang.order if each] == ["p-0", "p-1", "p-2"]
        assert gang.request.required == "leaf"


def pod(name: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "labels": {"scheduling.x-k8s.io/pod-group": "llama"},
            "annotations": {"kueue.x-k8s.io/podset-required-topology": "fabric.topograph.run/tier-0"},
        },
        "spec": {
            "schedulingGates": [{"name": "kgwe.nvidia.io/plan"}],
            "containers": [{"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
    }
