"""A tenant: a service account with the rights of `edit` in one namespace, and the forgeries it tries."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from tests.support.clusters import clients
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.cluster.workload import placement_annotations
from kgwe.kube.api import resources
from kgwe.kube.client import manifests
from kgwe.local.cluster.cluster import service_account_kubeconfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.clusters.bed import Bed

    from kgwe.kube.client.client import KubeClient

NAMESPACE = "tenant"
SEAT = {
    placement_annotations.SEAT_ANNOTATION: "gang:tenant/kgwe.nvidia.io/forged/0",
    placement_annotations.SEATS_ANNOTATION: "00000000.00000000000000000000000000000000.n1 ff ",
    placement_annotations.CARDS_ANNOTATION: "ff",
    placement_annotations.SIGNATURE_ANNOTATION: "00000000.00000000000000000000000000000000.n1",
}


@contextlib.asynccontextmanager
async def acting(bed: Bed, directory: Path) -> AsyncIterator[KubeClient]:
    """A client with the tenant's rights."""
    meta = {"name": NAMESPACE, "namespace": NAMESPACE}
    await bed.client.apply(resources.NAMESPACE, {"metadata": {"name": NAMESPACE}})
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": meta,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "ServiceAccount", "name": NAMESPACE, "namespace": NAMESPACE}],
    }
    await manifests.apply_manifest(bed.client, [account, binding])
    path = service_account_kubeconfig(bed.cluster, NAMESPACE, NAMESPACE, directory / "tenant.kubeconfig")
    async with clients.connect(path) as client:
        yield client


async def until_guarded(client: KubeClient) -> None:
    """A policy takes effect a moment after it is stored."""
    path, forged = with_template("jobs", template(1, **SEAT))
    pod = {"metadata": {"name": "forged", "annotations": SEAT}, "spec": template()["spec"]}
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    async with asyncio.timeout(PATIENCE_S):
        while await _is_accepted(client, path, forged) or await _is_accepted(client, pods, pod):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def until_unguarded(client: KubeClient) -> None:
    """And lasts a moment longer than it is stored."""
    path, forged = with_template("jobs", template(1, **SEAT))
    pod = {"metadata": {"name": "forged", "annotations": SEAT}, "spec": template()["spec"]}
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    async with asyncio.timeout(PATIENCE_S):
        while not (await _is_accepted(client, path, forged) and await _is_accepted(client, pods, pod)):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def _is_accepted(client: KubeClient, path: str, body: dict[str, Any]) -> bool:
    try:
        await client.request("POST", path, body=body, params={"dryRun": "All"})
    except errors.Permanent:
        return False
    return True


def template(gpus: int = 8, **annotations: str) -> dict[str, Any]:
    container = {"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    meta = {"labels": {"app": "forged"}, "annotations": annotations}
    return {"metadata": meta, "spec": {"restartPolicy": "Never", "containers": [container]}}


def forged_pod(name: str, node: str, number: int, size: int) -> dict[str, Any]:
    """A gated member of a gang that claims a seat on `node`."""
    notes = {
        "kgwe.nvidia.io/gang": "forged",
        "kgwe.nvidia.io/gang-size": str(size),
        **SEAT,
        placement_annotations.SEAT_ANNOTATION: f"gang:{NAMESPACE}/kgwe.nvidia.io/forged/{number}",
    }
    body = template(8, **notes)
    placement_annotations.pin_to_node(body["spec"], node)
    body["spec"]["schedulingGates"] = [{"name": placement_annotations.GATE}]
    body["metadata"]["name"] = name
    return body


def with_template(kind: str, pods: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """(path, object) of each kind that creates pods from a template."""
    meta, selector = {"name": f"forged-{kind}"}, {"matchLabels": {"app": "forged"}}
    always = {**pods, "spec": {**pods["spec"], "restartPolicy": "Always"}}
    job = {"template": pods}
    bodies = {
        "jobs": ("batch", job),
        "cronjobs": ("batch", {"schedule": "* * * * *", "jobTemplate": {"spec": job}}),
        "deployments": ("apps", {"selector": selector, "template": always}),
        "replicasets": ("apps", {"selector": selector, "template": always}),
        "statefulsets": ("apps", {"serviceName": "s", "selector": selector, "template": always}),
        "daemonsets": ("apps", {"selector": selector, "template": always}),
        "replicationcontrollers": ("", {"selector": {"app": "forged"}, "template": always}),
    }
    group, spec = bodies[kind]
    root = f"/apis/{group}/v1" if group else "/api/v1"
    return f"{root}/namespaces/{NAMESPACE}/{kind}", {"metadata": meta, "spec": spec}


KINDS = ("jobs", "cronjobs", "deployments", "replicasets", "statefulsets", "daemonsets", "replicationcontrollers")
