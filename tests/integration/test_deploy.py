"""What deploy/ adds to a cluster, on a real API server: warnings, and who may have a high priority."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import pytest_asyncio
import yaml
from tests.support.clusters import clients
from tests.support.clusters.bed import kgwe, warp
from tests.support.clusters.waiting import eventually
from tests.support.patience import PATIENCE_S

from kgwe.local.cluster import certificates
from kgwe.local.demo import install

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgwe.local.cluster.admin_api import Api
    from kgwe.local.cluster.cluster import LocalCluster

pytestmark = pytest.mark.cluster

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIGS = "/apis/kgwe.nvidia.io/v1/schedulerconfigs"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def installed(cluster: LocalCluster) -> LocalCluster:
    async with clients.connect(cluster.kubeconfig) as client:
        await install.install(client)
    return cluster


@pytest.fixture
def http(installed: LocalCluster) -> Iterator[httpx2.Client]:
    """The administrator, with the headers of every reply."""
    files = installed.layout.certificates
    context = ssl.create_default_context(cafile=str(files.authority))
    admin = files.pair(certificates.ADMIN)
    context.load_cert_chain(admin.certificate, admin.key)
    with httpx2.Client(base_url=installed.api_url, verify=context, timeout=PATIENCE_S, trust_env=False) as client:
        yield client


def example(name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(iter(yaml.safe_load_all((EXAMPLES / name).read_text(encoding="utf-8"))))
    return found


# --- priority -------------------------------------------------------------------------------------------


@pytest.fixture
def tenants(installed: LocalCluster, namespace: str, tmp_path: Path) -> Iterator[Tenants]:
    """Two users of one namespace; one may use the PriorityClass kgwe-test-urgent. Others may have up to 500."""
    tenants = Tenants(installed, namespace, tmp_path)
    with installed.api() as api:
        tenants.create(api)
        try:
            yield tenants
        finally:
            tenants.remove(api)


class Tenants:
    CLASS = "kgwe-test-urgent"

    def __init__(self, cluster: LocalCluster, namespace: str, folder: Path) -> None:
        self._cluster, self._namespace, self._folder = cluster, namespace, folder
        self._clients: dict[str, httpx2.Client] = {}

    def create(self, api: Api) -> None:
        where = self._namespace
        api.request("POST", f"/api/v1/namespaces/{where}/serviceaccounts", {"metadata": {"name": "plain"}})
        api.request("POST", f"/api/v1/namespaces/{where}/serviceaccounts", {"metadata": {"name": "urgent"}})
        both = [{"kind": "ServiceAccount", "name": name, "namespace": where} for name in ("plain", "urgent")]
        kinds = ["kgwe.nvidia.io", "gpu.warp.dev"]
        self._grant(api, "write", {"apiGroups": kinds, "resources": ["gpuworkloads"], "verbs": ["*"]}, both)
        use = {"apiGroups": ["scheduling.k8s.io"], "resources": ["priorityclasses"], "verbs": ["use"]}
        self._grant(api, "use", use | {"resourceNames": [self.CLASS]}, both[1:])
        api.request(
            "POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": self.CLASS}, "value": 5000}
        )
        config = {"apiVersion": "kgwe.nvidia.io/v1", "kind": "SchedulerConfig", "metadata": {"name": "default"}}
        api.request("POST", CONFIGS, config | {"spec": {"maxUnprivilegedPriority": 500}})

    def _grant(self, api: Api, name: str, rule: dict[str, Any], subjects: list[dict[str, Any]]) -> None:
        name = f"{self._namespace}-{name}"
        roles = "/apis/rbac.authorization.k8s.io/v1"
        api.request("POST", f"{roles}/clusterroles", {"metadata": {"name": name}, "rules": [rule]})
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
        body = {"metadata": {"name": name}, "roleRef": ref, "subjects": subjects}
        api.request("POST", f"{roles}/clusterrolebindings", body)

    def remove(self, api: Api) -> None:
        for client in self._clients.values():
            client.close()
        api.request("DELETE", f"{CONFIGS}/default")
        api.request("DELETE", f"/apis/scheduling.k8s.io/v1/priorityclasses/{self.CLASS}")
        for name in ("write", "use"):
            for kind in ("clusterrolebindings", "clusterroles"):
                api.request("DELETE", f"/apis/rbac.authorization.k8s.io/v1/{kind}/{self._namespace}-{name}")

    def client(self, user: str) -> httpx2.Client:
        if user not in self._clients:
            with self._cluster.api() as api:
                token = api.request_token(self._namespace, user, expires_s=3600)
            context = ssl.create_default_context(cafile=str(self._cluster.layout.certificates.authority))
            headers = {"authorization": f"Bearer {token}"}
            self._clients[user] = httpx2.Client(
                base_url=self._cluster.api_url, verify=context, timeout=PATIENCE_S, trust_env=False, headers=headers
            )
        return self._clients[user]

    def submit(self, user: str, body: dict[str, Any], *, dry: bool = True) -> httpx2.Response:
        where = f"/apis/{body['apiVersion']}/namespaces/{self._namespace}/gpuworkloads"
        return self.client(user).post(where, json=body, params={"dryRun": "All"} if dry else {})

    def patch(self, user: str, name: str, body: dict[str, Any]) -> httpx2.Response:
        return self.client(user).patch(
            f"/apis/kgwe.nvidia.io/v1/namespaces/{self._namespace}/gpuworkloads/{name}",
            json=body,
            headers={"content-type": "application/merge-patch+json"},
        )

    async def enforced(self) -> None:
        """A policy and its parameter take effect a moment after they are stored."""
        reply = await eventually(lambda: self.submit("plain", kgwe("probe", priority=501)).status_code == 403)
        assert reply, "not enforced"


def named(priority: int, priority_class: str) -> dict[str, Any]:
    return kgwe("w", priority=priority, pod={"priorityClassName": priority_class})


async def test_a_priority_above_the_limit_needs_a_class_that_the_user_may_use(tenants: Tenants) -> None:
    await tenants.enforced()
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("plain", kgwe("w", priority=500), ""),
        ("plain", kgwe("w", priority=501), "priority 501 is above maxUnprivilegedPriority 500"),
        ("urgent", kgwe("w", priority=501), "name a PriorityClass in podTemplate.spec.priorityClassName"),
        ("plain", named(501, Tenants.CLASS), f"you may not use PriorityClass {Tenants.CLASS}"),
        ("urgent", named(501, Tenants.CLASS), ""),
        ("urgent", named(501, "system-cluster-critical"), "you may not use PriorityClass system-cluster-critical"),
        ("urgent", named(1_000_000, "absent"), "you may not use PriorityClass absent"),
        ("plain", named(500, Tenants.CLASS), ""),
        ("plain", warp("w", priority="low"), ""),
        ("plain", warp("w", priority="normal"), "priority 1000 is above maxUnprivilegedPriority 500"),
        ("urgent", warp("w", priority="high"), "priority 10000 is above maxUnprivilegedPriority 500"),
        ("urgent", warp("w", priority="high"), "use a GPUWorkload of kgwe.nvidia.io, which can name a PriorityClass"),
    ]
    for user, body, problem in cases:
        reply = tenants.submit(user, body)
        assert reply.status_code == (403 if problem else 201), (user, body, reply.text)
        assert problem in reply.text


async def test_a_workload_above_the_limit_is_changed_only_by_users_of_its_class(tenants: Tenants) -> None:
    await tenants.enforced()
    assert tenants.submit("urgent", named(501, Tenants.CLASS), dry=False).status_code == 201
    assert tenants.submit("plain", kgwe("small", priority=1), dry=False).status_code == 201

    assert tenants.patch("plain", "small", {"spec": {"priority": 501}}).status_code == 403
    assert tenants.patch("plain", "w", {"spec": {"priority": 600}}).status_code == 403
    image = {"spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "example.com/mine:1"}]}}}}
    assert tenants.patch("plain", "w", image).status_code == 403
    assert tenants.patch("plain", "w", {"metadata": {"labels": {"team": "a"}}}).status_code == 200
    assert tenants.patch("urgent", "w", {"spec": {"priority": 600}}).status_code == 200
    assert tenants.patch("plain", "w", {"spec": {"priority": 500}}).status_code == 200


async def test_without_a_scheduler_config_a_class_still_needs_the_right(tenants: Tenants) -> None:
    await tenants.enforced()
    with tenants._cluster.api() as api:
        api.request("DELETE", f"{CONFIGS}/default")
        try:
            # KGWE counts it as 10,000, see tests/unit/scheduler/test_priority.py.
            assert await eventually(lambda: tenants.submit("plain", kgwe("w", priority=20_000)).status_code == 201)
            reply = tenants.submit("plain", named(20_000, Tenants.CLASS))
            assert (reply.status_code, "you may not use" in reply.text) == (403, True)
            assert tenants.submit("urgent", named(20_000, Tenants.CLASS)).status_code == 201
        finally:
            config = {"apiVersion": "kgwe.nvidia.io/v1", "kind": "SchedulerConfig", "metadata": {"name": "default"}}
            api.request("POST", CONFIGS, config)
