"""What the roles of deploy/roles.yaml allow, and `kgwe explain` for a user who may read one namespace."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.support.clusters import commands
from tests.support.clusters.bed import kgwe, warp
from tests.support.clusters.pods import gang, pod
from tests.support.patience import PATIENCE_S

from kgwe.kube.api import resources
from kgwe.kube.client import manifests
from kgwe.kube.crd import definitions
from kgwe.local.cluster.cluster import service_account_kubeconfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.clusters.bed import Bed

TEAM = "team"
READ, WRITE = ("get", "list", "watch"), ("create", "update", "patch", "delete")
ROLES = ("view", "edit", "admin")


def binding(role: str) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": role, "namespace": TEAM},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": role, "namespace": TEAM}],
    }


def cluster_binding() -> dict[str, Any]:
    body = binding("kgwe-cluster-viewer") | {"kind": "ClusterRoleBinding"}
    body["metadata"] = {"name": "test-cluster-viewer"}
    return body


def account(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": TEAM}}


@pytest.fixture
async def team(bed: Bed) -> AsyncIterator[Bed]:
    """A namespace with one user for each role, who may do nothing elsewhere."""
    names = (*ROLES, "kgwe-cluster-viewer")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}}
    users = [*(account(name) for name in names), *(binding(role) for role in ROLES), cluster_binding()]
    await manifests.apply_manifest(bed.client, [namespace, *users])
    async with asyncio.timeout(PATIENCE_S):
        # Aggregated by a controller, a moment after the roles were stored.
        while not await may(bed, "admin", "create", resources.GPU_WORKLOAD):  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.1)
    yield bed
    for workload in [each for informer in bed.workloads.values() for each in informer.store.values()]:
        await bed.delete(workload)


async def may(bed: Bed, user: str, verb: str, kind: Any, namespace: str = TEAM, sub: str = "") -> bool:
    where = {"namespace": namespace} if kind.namespaced else {}
    attributes = {"verb": verb, "group": kind.group, "resource": kind.plural, "subresource": sub, **where}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": f"system:serviceaccount:{TEAM}:{user}", "resourceAttributes": attributes},
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    answer = await bed.client.request("POST", path, body=review)
    return bool(msgspec.json.decode(answer)["status"]["allowed"])


async def test_each_role_may_do_what_it_is_for_and_no_more(team: Bed):
    kinds = [
        next(each for each in vars(resources).values() if getattr(each, "type", None) is kind)
        for kind in definitions.KINDS
    ]
    for user, kind, verb in itertools.product((*ROLES, "kgwe-cluster-viewer"), kinds, (*READ, *WRITE)):
        if user == "kgwe-cluster-viewer":
            expected = not kind.namespaced and verb in READ
        elif kind.kind == "GPUWorkload":
            expected = verb in READ or user != "view"
        else:
            expected = kind.namespaced and verb in READ
        assert await may(team, user, verb, kind) is expected, (user, verb, kind.full_name)
    for user, kind in itertools.product(ROLES, (resources.GPU_WORKLOAD, resources.WARP_GPU_WORKLOAD)):
        assert not await may(team, user, "patch", kind, sub="status"), "only the scheduler writes a status"
        assert not await may(team, user, "get", kind, namespace="default")


def least_rights() -> list[dict[str, Any]]:
    """A user who may get and list workloads and pods of the namespace, and nothing else."""
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
        {"apiGroups": ["kgwe.nvidia.io", "gpu.warp.dev"], "resources": ["gpuworkloads"], "verbs": ["get", "list"]},
    ]
    api = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    role = api | {"kind": "Role", "metadata": {"name": "least", "namespace": TEAM}, "rules": rules}
    bound = binding("least")
    bound["roleRef"]["kind"] = "Role"
    return [account("least"), role, bound]


async def explained(team: Bed, tmp_path: Path, user: str, *arguments: str, fails: bool = False) -> str:
    kubeconfig = service_account_kubeconfig(team.cluster, TEAM, user, tmp_path / user)
    code, out, err = await commands.kgwe("explain", *arguments, "--kubeconfig", str(kubeconfig))
    assert (code != 0) is fails, err
    return err if fails else out


async def test_explain_works_for_a_user_who_may_read_one_namespace(team: Bed, tmp_path: Path):
    await team.node("n1")
    await team.controller()
    runs = await team.submit(kgwe("runs", 6), TEAM)
    await team.until_phase(runs, "Running")
    waits, small = await team.submit(kgwe("waits", 8), TEAM), await team.submit(warp("small", 8), TEAM)
    await team.until_phase(waits, "Pending")
    await team.until_phase(small, "Pending")
    for number in range(2):
        body = pod(f"trainer-{number}", 1, annotations=gang("trainer", 8))
        await team.client.create(resources.POD, body, TEAM)

        body = pod(f"pair-{number}", 1, annotations=gang("pair", 2))
        await team.client.create(resources.POD, body, TEAM)

    text = await explained(team, tmp_path, "view", "runs")
    assert "1 of 1 pods running on n1" in text
    assert "you may not list them" in text
    assert "kgwe-advisor" in text
    assert "kgwe-cluster-viewer" in text
    assert "you may not list schedulerconfigs.kgwe.nvidia.io" in text
    for name in ("waits", "small"):
        text = await explained(team, tmp_path, "view", name)
        assert f"team/{name}: waiting. " in text
        assert "Scheduled=False InsufficientGPU" in text
        assert "Normal InsufficientGPU" in text, "Events are shown"
    text = await explained(team, tmp_path, "view", "pod/trainer-0")
    assert "2 pods created, 0 placed, 6 missing" in text
    assert "pair (" in await explained(team, tmp_path, "view", "pod/pair-1")
    await manifests.apply_manifest(team.client, least_rights())
    text = await explained(team, tmp_path, "least", "waits")
    assert "Scheduled=False InsufficientGPU" in text
    assert "Events: " in text
    assert "you may not list jobs.batch" in text
    told = await explained(team, tmp_path, "least", "gw/waits", "-n", "default", fails=True)
    assert "You may not read GPUWorkloads in namespace default." in told
    assert told.count("gpuworkloads.kgwe.nvidia.io") == 1
    machine = msgspec.json.decode(await explained(team, tmp_path, "view", "waits", "-o", "json"))
    assert machine["said"][0]["reason"] == "InsufficientGPU"
    assert machine["warnings"]
    # The administrator of the cluster sees all of it.
    kubeconfig = team.cluster.kubeconfig
    _, out, _ = await commands.kgwe("explain", "waits", "-n", TEAM, "--kubeconfig", str(kubeconfig))
    assert "Nearest      node n1: " in out or "1 GPUsTaken (n1)" in out, out
