"""The local cluster, started for real: what it promises to the people and programs that use it."""

from __future__ import annotations

import json
import re
import ssl
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import yaml

from kgwe.errors import NotFound, Permanent
from kgwe.local.cluster import components
from kgwe.local.cluster.cluster import LocalCluster, service_account_kubeconfig
from kgwe.local.cluster.status import Health, examine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kgwe.local.cluster.admin_api import Api

TIMEOUT_S = 240


@pytest.fixture
def api(cluster: LocalCluster) -> Iterator[Api]:
    with cluster.api() as api:
        yield api


@pytest.fixture
def node(api: Api, namespace: str) -> Iterator[str]:
    """A simulated node with eight GPUs, ready; other tests' nodes may be there too."""
    name = f"node-{namespace}"
    create_node(api, name)
    yield name
    api.request("DELETE", f"/api/v1/nodes/{name}")


def create_node(api: Api, name: str) -> None:
    resources = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
    manifest = {
        "metadata": {"name": name, "labels": {"test-node": name}, "annotations": {"kwok.x-k8s.io/node": "fake"}},
        "status": {"capacity": resources, "allocatable": resources},
    }
    api.request("POST", "/api/v1/nodes", manifest)
    await_object(api, "/api/v1/nodes", name, lambda node: condition(node, "Ready") == "True")


def await_object(api: Api, path: str, name: str, done: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """Every version of an object that the API server showed until it was as wanted."""
    seen = []
    for _, version in api.watch(path, timeout_s=TIMEOUT_S, fieldSelector=f"metadata.name={name}"):
        seen.append(version)
        if done(version):
            return seen
    pytest.fail(f"{path}/{name} did not get there: {seen[-1:]}")


def condition(obj: dict[str, Any], kind: str) -> str | None:
    conditions = obj.get("status", {}).get("conditions", [])
    return next((each["status"] for each in conditions if each["type"] == kind), None)


def pod_template(node: str, **annotations: str) -> dict[str, Any]:
    return {
        "metadata": {"annotations": {f"kgwe.nvidia.io/simulated-{key}": value for key, value in annotations.items()}},
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": {"test-node": node},
            "containers": [{"name": "work", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
    }


def run_job(api: Api, namespace: str, name: str, template: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Run a Job to its end: the finished Job, and the phases that its pod went through."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    before = api.request("GET", pods)["metadata"]["resourceVersion"]
    api.request(
        "POST",
        f"/apis/batch/v1/namespaces/{namespace}/jobs",
        {"metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": template}},
    )
    phases = []
    for _, pod in api.watch(pods, timeout_s=TIMEOUT_S, resourceVersion=before):
        phases.append(pod["status"]["phase"])
        if phases[-1] in {"Succeeded", "Failed"}:
            break
    versions = await_object(
        api,
        f"/apis/batch/v1/namespaces/{namespace}/jobs",
        name,
        lambda job: "True" in {condition(job, "Complete"), condition(job, "Failed")},
    )
    return versions[-1], list(dict.fromkeys(phases))


def test_every_component_of_a_started_cluster_is_ready(cluster: LocalCluster):
    status = examine(cluster)

    assert status.running
    assert {each.name: each.health for each in status.components} == dict.fromkeys(components.NAMES, Health.READY)


def test_a_running_cluster_can_be_found_by_its_name_and_an_absent_one_cannot(cluster: LocalCluster):
    root = cluster.directory.parent.parent
    assert LocalCluster.attach(cluster.name, state_root=root).api_url == cluster.api_url

    with pytest.raises(NotFound, match="kgwe local up --name nobody"):
        LocalCluster.attach("nobody", state_root=root)


def test_nobody_gets_in_without_a_certificate_or_token(cluster: LocalCluster):
    context = ssl.create_default_context(cafile=str(cluster.layout.certificates.authority))
    with httpx2.Client(verify=context, trust_env=False, timeout=TIMEOUT_S) as stranger:
        answer = stranger.get(f"{cluster.api_url}/api/v1/namespaces")

    assert answer.status_code == 401


def test_a_service_account_is_itself_and_may_do_nothing_it_was_not_allowed_to(
    cluster: LocalCluster, api: Api, namespace: str, tmp_path: Path
):
    api.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "nobody"}})

    path = service_account_kubeconfig(cluster, namespace, "nobody", tmp_path / "nobody.yaml")

    config = yaml.safe_load(path.read_text())
    token = config["users"][0]["user"]["token"]
    context = ssl.create_default_context(cafile=str(cluster.layout.certificates.authority))
    with httpx2.Client(
        base_url=config["clusters"][0]["cluster"]["server"],
        verify=context,
        trust_env=False,
        timeout=TIMEOUT_S,
        headers={"authorization": f"Bearer {token}"},
    ) as client:
        answer = client.get(f"/api/v1/namespaces/{namespace}/pods")
    assert answer.status_code == 403
    assert f"system:serviceaccount:{namespace}:nobody" in answer.json()["message"]
    assert path.stat().st_mode & 0o077 == 0


def test_a_token_is_refused_for_a_service_account_that_does_not_exist(
    cluster: LocalCluster, namespace: str, tmp_path: Path
):
    with pytest.raises(NotFound, match="ghost"):
        service_account_kubeconfig(cluster, namespace, "ghost", tmp_path / "ghost.yaml")


def test_a_job_runs_for_as_long_as_it_says_and_completes_and_its_binding_is_in_the_audit_log(
    cluster: LocalCluster, api: Api, node: str, namespace: str
):
    job, phases = run_job(api, namespace, "works", pod_template(node, duration="2s"))

    assert condition(job, "Complete") == "True"
    assert phases == ["Pending", "Running", "Succeeded"]
    pod = api.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"][0]
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert ended["exitCode"] == 0
    assert ended["finishedAt"] > ended["startedAt"]
    binding = find_binding(cluster, namespace, pod["metadata"]["name"])
    assert binding["requestObject"]["target"]["name"] == node
    assert binding["user"]["username"] == "system:kube-scheduler"
    assert re.fullmatch(r"[-\d]+T[:\d]+\.\d{6}Z", binding["stageTimestamp"])


def find_binding(cluster: LocalCluster, namespace: str, pod: str) -> dict[str, Any]:
    for line in cluster.audit_log.read_text().splitlines():
        event: dict[str, Any] = json.loads(line)
        reference = event["objectRef"]
        if (reference.get("subresource"), reference.get("namespace"), reference.get("name")) == (
            "binding",
            namespace,
            pod,
        ):
            return event
    pytest.fail(f"no binding of {namespace}/{pod} in {cluster.audit_log}")


def test_a_job_that_is_told_to_fail_fails_with_exit_code_one(api: Api, node: str, namespace: str):
    job, phases = run_job(api, namespace, "breaks", pod_template(node, duration="100ms", outcome="Failed"))

    assert condition(job, "Failed") == "True"
    assert phases == ["Pending", "Running", "Failed"]
    pod = api.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"][0]
    assert pod["spec"]["nodeName"] == node
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 1


def test_a_pod_of_nobody_runs_until_it_is_deleted(api: Api, node: str, namespace: str):
    pods = f"/api/v1/namespaces/{namespace}/pods"
    api.request("POST", pods, {"metadata": {"name": "server"}, "spec": pod_template(node)["spec"]})
    versions = await_object(api, pods, "server", lambda pod: pod["status"]["phase"] == "Running")
    assert versions[-1]["spec"]["nodeName"] == node

    api.request("DELETE", f"{pods}/server")

    deleted = next(
        kind
        for kind, _ in api.watch(pods, timeout_s=TIMEOUT_S, resourceVersion=versions[-1]["metadata"]["resourceVersion"])
        if kind == "DELETED"
    )
    assert deleted == "DELETED"


def test_a_deleted_job_takes_its_running_pods_with_it(api: Api, node: str, namespace: str):
    jobs, pods = f"/apis/batch/v1/namespaces/{namespace}/jobs", f"/api/v1/namespaces/{namespace}/pods"
    # Waiting for pods to fail before replacing them is the policy that needs a kubelet to report their end.
    spec = {"podReplacementPolicy": "Failed", "template": pod_template(node, duration="1h")}
    api.request("POST", jobs, {"metadata": {"name": "long"}, "spec": spec})
    running = next(
        pod for _, pod in api.watch(pods, timeout_s=TIMEOUT_S) if pod.get("status", {}).get("phase") == "Running"
    )

    api.request("DELETE", f"{jobs}/long", {"propagationPolicy": "Foreground"})

    version = running["metadata"]["resourceVersion"]
    kinds = [kind for kind, _ in take_until_deleted(api, pods, version)]
    assert kinds[-1] == "DELETED"


def take_until_deleted(api: Api, path: str, version: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for kind, obj in api.watch(path, timeout_s=TIMEOUT_S, resourceVersion=version):
        yield kind, obj
        if kind == "DELETED":
            return


def test_a_node_goes_down_and_comes_back_on_command_and_its_pods_freeze(api: Api, node: str, namespace: str):
    pods = f"/api/v1/namespaces/{namespace}/pods"
    api.request("POST", pods, {"metadata": {"name": "stuck"}, "spec": pod_template(node)["spec"]})
    await_object(api, pods, "stuck", lambda pod: pod["status"]["phase"] == "Running")
    down = {"metadata": {"annotations": {"kgwe.nvidia.io/simulated-fault": "NodeDown"}}}
    up = {"metadata": {"annotations": {"kgwe.nvidia.io/simulated-fault": None}}}

    api.merge(f"/api/v1/nodes/{node}", down)
    api.merge(f"{pods}/stuck", down)

    versions = await_object(
        api,
        "/api/v1/nodes",
        node,
        lambda each: any(taint["key"] == "node.kubernetes.io/unreachable" for taint in each["spec"].get("taints", [])),
    )
    assert condition(versions[-1], "Ready") == "Unknown"
    api.request("DELETE", f"{pods}/stuck")
    api.merge(f"/api/v1/nodes/{node}", up)
    await_object(api, "/api/v1/nodes", node, lambda each: condition(each, "Ready") == "True")
    stuck = api.request("GET", f"{pods}/stuck")
    assert stuck["metadata"]["deletionTimestamp"]
    api.merge(f"{pods}/stuck", up)
    *_, last = take_until_deleted(api, pods, stuck["metadata"]["resourceVersion"])
    assert last[0] == "DELETED"


def test_a_bad_scheduler_configuration_is_refused_before_anything_is_restarted(cluster: LocalCluster):
    before = cluster.state().processes[components.SCHEDULER]

    with pytest.raises(Permanent, match="expected KubeSchedulerConfiguration"):
        cluster.configure_scheduler("kind: ConfigMap")

    assert cluster.state().processes[components.SCHEDULER] == before
