"""The chart on a real API server with real Helm: install, upgrade, refusal, rollback, and what stays afterwards."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.cli.install.doctor import load_rights
from kgwe.install import helm
from kgwe.install.doctor import permissions
from kgwe.install.doctor.findings import Cluster, Level
from kgwe.install.doctor.permissions import Right
from kgwe.kube.client.client import KubeClient
from kgwe.local.host.assets import find_asset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kgwe.local.cluster.admin_api import Api
    from kgwe.local.cluster.cluster import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

CHART = find_asset("charts/kgwe")
SPACE = "kgwe-system"
#: kinds that the control plane writes on its own
_VOLATILE = frozenset({
    "events", "endpoints", "endpointslices", "componentstatuses", "apiservices", "ipaddresses", "servicecidrs", "nodes",
    "flowschemas", "prioritylevelconfigurations", "storageversions", "csinodes", "controllerrevisions",
})  # fmt: skip
_EVERYTHING = (
    "--set", "scheduler.enabled=true", "--set", "migController.enabled=true",
    "--set", "autoscaler.enabled=true", "--set", "webhook.enabled=true", "--set", "console.enabled=true",
    "--set", "secondScheduler.enabled=true", "--set", "networkPolicies.enabled=true",
    "--set", "dashboards.enabled=true",
    "--set", "scheduler.config.topologyWeight=50", "--set", "scheduler.config.resourceWeight=25",
)  # fmt: skip
_DEPLOYMENTS = (
    "kgwe-scheduler", "kgwe-mig", "kgwe-optimizer", "kgwe-cost-engine", "kgwe-autoscaler", "kgwe-webhook",
    "kgwe-console", "kgwe-kube-scheduler",
)  # fmt: skip


@pytest.fixture(params=[4, 3], ids=["helm4", "helm3"])
def tool(request: pytest.FixtureRequest, cluster: LocalCluster, tmp_path: Path) -> helm.Helm:
    """Helm, built if it is not on this machine."""
    homes = {f"HELM_{name}_HOME": str(tmp_path / name) for name in ("CACHE", "CONFIG", "DATA")}
    return helm.Helm(helm.ensure_helm(request.param).path, cluster.kubeconfig, homes)


def list_objects(api: Api) -> set[str]:
    """Paths of all objects that a release could leave behind; a server that is busy is asked again."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return _list_objects(api)
        except (errors.Transient, errors.NotFound):
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


def _list_objects(api: Api) -> set[str]:
    found = set()
    groups = api.request("GET", "/apis")["groups"]
    for prefix in ("/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)):
        for resource in api.request("GET", prefix)["resources"]:
            name = resource["name"]
            if "/" in name or name in _VOLATILE or "list" not in resource["verbs"]:
                continue
            for each in api.request("GET", f"{prefix}/{name}").get("items") or ():
                meta = each["metadata"]
                found.add(f"{name}/{meta.get('namespace', '')}/{meta['name']}")
    return found - {f"configmaps/{SPACE}/kube-root-ca.crt", f"serviceaccounts/{SPACE}/default"}


def wait_for(what: str, true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            if true():
                return
        except errors.Transient:
            pass
        time.sleep(0.2)
    pytest.fail(f"not within {PATIENCE_S} s: {what}")


@pytest.fixture
def space(cluster: LocalCluster) -> Iterator[str]:
    """The namespace of the release, which enforces the restricted Pod Security level."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    path = f"/api/v1/namespaces/{SPACE}"
    with cluster.api() as api:
        if not api.exists(path):
            api.request("POST", "/api/v1/namespaces", {"metadata": {"name": SPACE, "labels": labels}})
        else:
            api.merge(path, {"metadata": {"labels": labels}})
        yield SPACE
        api.request("DELETE", path)
        wait_for("the namespace is gone", lambda: not api.exists(path))


def test_a_release_lives_and_leaves_nothing_but_its_kinds(tool: helm.Helm, cluster: LocalCluster, space: str):
    with cluster.api() as api:
        before = list_objects(api)
        tool.run("install", "kgwe", str(CHART), "--namespace", space, *_EVERYTHING)
        _check_installed(api)
        asyncio.run(_check_rights(cluster))
        workload = _create_workload(api)
        before |= {path for path in list_objects(api) if path.split("/")[1] == "default"}

        with pytest.raises(errors.Permanent, match=r"scheduler.*replicas"):
            tool.run("upgrade", "kgwe", str(CHART), "--namespace", space, *_EVERYTHING, "--set", "scheduler.replicas=9")
        tool.run("upgrade", "kgwe", str(CHART), "--namespace", space, *_EVERYTHING, "--set", "scheduler.replicaCount=3")
        assert _read(api, "deployments", "kgwe-scheduler")["spec"]["replicas"] == 3
        tool.run("rollback", "kgwe", "1", "--namespace", space)
        assert _read(api, "deployments", "kgwe-scheduler")["spec"]["replicas"] == 2
        assert api.exists(workload)
        config = api.request("GET", "/apis/kgwe.nvidia.io/v1/schedulerconfigs/default")
        assert config["spec"]["nodeWeights"] == {"topology": 50, "resource": 25, "balance": 25}

        tool.run("uninstall", "kgwe", "--namespace", space)
        wait_for("nothing is left", lambda: _find_left(api, before) == set())
        assert api.exists(workload)
        api.request("DELETE", workload)


def _find_left(api: Api, before: set[str]) -> set[str]:
    """What was not there before, but for the kinds, and pods that are being deleted."""
    left = list_objects(api) - before
    return {path for path in left if not path.startswith(("customresourcedefinitions/", "pods/kgwe-"))}


def _read(api: Api, kind: str, name: str, namespace: str = SPACE) -> dict[str, Any]:
    found: dict[str, Any] = api.request("GET", f"/apis/apps/v1/namespaces/{namespace}/{kind}/{name}")
    return found


def _check_installed(api: Api) -> None:
    """Pods exist: the API server refuses none of them for the Pod Security level of the namespace."""

    def list_missing() -> set[str]:
        pods = api.request("GET", f"/api/v1/namespaces/{SPACE}/pods")["items"]
        return set(_DEPLOYMENTS) - {pod["metadata"]["labels"]["app.kubernetes.io/name"] for pod in pods}

    wait_for("every process has a pod", lambda: not list_missing())
    agents = _read(api, "daemonsets", "kgwe-agent", "kgwe-node")
    assert agents["spec"]["template"]["spec"]["containers"][0]["securityContext"]["privileged"]


#: what no process of KGWE may do
_FORBIDDEN = (
    ("get", "", "secrets", "default"),
    ("list", "", "secrets", ""),
    ("create", "", "pods", "default"),
    ("create", "", "pods/exec", "default"),
    ("get", "", "nodes/proxy", ""),
    ("create", "", "serviceaccounts/token", SPACE),
    ("create", "rbac.authorization.k8s.io", "clusterrolebindings", ""),
    ("patch", "rbac.authorization.k8s.io", "clusterroles", ""),
    ("impersonate", "", "users", ""),
    ("patch", "admissionregistration.k8s.io", "validatingadmissionpolicies", ""),
    ("patch", "apps", "daemonsets", "kgwe-node"),
    ("delete", "kgwe.nvidia.io", "gpubudgets", "default"),
)


async def _check_rights(cluster: LocalCluster) -> None:
    """Every account has the rights of deploy/, and none of those that would let it become another."""
    documents = load_rights(SPACE, "kgwe-node")
    async with KubeClient.connect(cluster.kubeconfig) as client:
        found = Cluster(client, SPACE, "kgwe-node")
        checked = await permissions.check_permissions(found, documents)
        assert [each.message for each in checked if each.level is Level.ERROR] == []
        accounts = {(each.account, each.account_namespace) for each in permissions.list_rights(documents)}
        forbidden = [
            Right(account, home, verb, group, *_split(resource), namespace=namespace)
            for account, home in sorted(accounts | {("kgwe-console", SPACE)})
            for verb, group, resource, namespace in _FORBIDDEN
        ]
        denied = await permissions.find_missing(found, forbidden)
        assert set(forbidden) - set(denied) == set()


def _split(resource: str) -> tuple[str, str]:
    plural, _, subresource = resource.partition("/")
    return plural, subresource


def _create_workload(api: Api) -> str:
    """A workload, as a user has it while KGWE is upgraded and removed."""
    body: dict[str, Any] = {
        "apiVersion": "kgwe.nvidia.io/v1",
        "kind": "GPUWorkload",
        "metadata": {"name": "stays"},
        "spec": {"gpuRequirements": {"count": 1}},
    }
    api.request("POST", "/apis/kgwe.nvidia.io/v1/namespaces/default/gpuworkloads", body)
    return "/apis/kgwe.nvidia.io/v1/namespaces/default/gpuworkloads/stays"
