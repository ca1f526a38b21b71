"""Right-sizing on a real API server: shadow, canary, enforce, out of memory, revert; for pods and for GPUWorkloads."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest
from tests.support.clusters import clients
from tests.support.clusters.optimizer import PODS

from kgwe import errors
from kgwe.apps.optimizer.history import gpu_pods
from kgwe.kube.api import resources
from kgwe.local.cluster.cluster import service_account_kubeconfig
from kgwe.local.fleet import apply, models
from kgwe.model.usage.history import UsagePeak
from kgwe.store.history import HistoryStore

if TYPE_CHECKING:
    from tests.support.clusters.optimizer import OptimizerBed

    from kgwe.kube.api.kgwe.rightsizingdecision import RightsizingDecisionSpec

pytestmark = pytest.mark.cluster

IMAGE: Final = "example.com/chat:1"
KEY: Final = f"Deployment/chat {IMAGE} 1"
SLICE: Final = "nvidia.com/mig-1g.10gb"
HOURS: Final = 48
QUICK: Final = {"KGWE_OPTIMIZER_RIGHTSIZING_INTERVAL_SECONDS": "0.5"}


def request_of(pod: dict[str, Any]) -> dict[str, str]:
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    return {name: text for name, text in limits.items() if name.startswith("nvidia.com/")}


def note(pod: dict[str, Any], name: str) -> str:
    return str(pod["metadata"].get("annotations", {}).get(f"kgwe.nvidia.io/{name}", ""))


async def set_mode(bed: OptimizerBed, **values: str) -> None:
    notes = {f"kgwe.nvidia.io/{name.replace('_', '-')}": text for name, text in values.items()}
    await bed.client.request(
        "PATCH",
        f"/api/v1/namespaces/{bed.namespace}",
        body={"metadata": {"annotations": notes}},
        content_type="application/merge-patch+json",
    )


async def deploy(bed: OptimizerBed, replicas: int) -> None:
    container = {"name": "main", "image": IMAGE, "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    labels = {"app": "chat"}
    body = {
        "metadata": {"name": "chat"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
    await bed.client.apply(resources.DEPLOYMENT, body, bed.namespace)


async def renew(bed: OptimizerBed) -> list[dict[str, Any]]:
    """Delete all pods; return those that the Deployment created instead, once they run."""
    old = {pod["metadata"]["uid"] for pod in await bed.client.list(PODS, bed.namespace)}
    for pod in await bed.client.list(PODS, bed.namespace):
        await bed.client.delete(resources.POD, pod["metadata"]["name"], bed.namespace, grace_s=0)

    async def has_new() -> list[dict[str, Any]]:
        found = await bed.list_pods()
        return found if len(found) == len(old) and not old & {pod["metadata"]["uid"] for pod in found} else []

    return list(await bed.until(has_new, "new pods"))


async def read_spec(bed: OptimizerBed) -> RightsizingDecisionSpec:
    return (await bed.client.get(resources.RIGHTSIZING_DECISION, "default", bed.namespace)).spec


def remember(bed: OptimizerBed, pod: dict[str, Any]) -> None:
    """Store two days of small use of this pod's work."""
    facts = gpu_pods.read_facts(msgspec.convert(pod, gpu_pods.GpuPod, strict=False))
    assert facts is not None
    key, hour = facts.fingerprint.key, int(time.time() // 3600 * 3600)
    peaks = [
        UsagePeak(key, hour - 3600 * number, 60, 0, 3000.0, 81920.0, 0.03, 0.05, 100.0) for number in range(1, HOURS)
    ]
    with HistoryStore.open(str(bed.folder / "optimizer.db")) as store:
        store.put_fingerprints([facts.fingerprint], time.time())
        store.put_peaks(peaks)


async def run_out_of_memory(bed: OptimizerBed, pod: dict[str, Any]) -> None:
    """Write what a kubelet writes when a container ran out of GPU memory."""
    end = {"exitCode": 1, "reason": "Error", "message": "CUDA out of memory", "finishedAt": "2026-01-01T00:00:00Z"}
    status = {
        "name": "main",
        "restartCount": 1,
        "ready": False,
        "image": IMAGE,
        "imageID": "",
        "lastState": {"terminated": end},
    }
    body = {"status": {"containerStatuses": [status]}}
    await bed.client.patch(PODS, pod["metadata"]["name"], body, bed.namespace, subresource="status")


async def test_a_deployment_is_shadowed_tried_enforced_and_reverted_after_it_ran_out_of_memory(bed: OptimizerBed):
    await apply.apply_fleet(bed.client, models.load("hgx-a100"), 8)
    await deploy(bed, 3)

    async def runs() -> list[dict[str, Any]]:
        found = await bed.list_pods()
        return found if len(found) == 3 else []

    pods = await bed.until(runs, "three pods")
    remember(bed, pods[0])
    bed.optimizer(env=QUICK)

    await set_mode(bed, rightsizing="shadow")

    async def is_decided() -> bool:
        return KEY in (await read_spec(bed)).decisions

    await bed.until(is_decided, "a decision")
    spec = await read_spec(bed)
    assert (spec.mode, spec.decisions[KEY].resource) == ("shadow", SLICE)
    for pod in await renew(bed):
        assert request_of(pod) == {"nvidia.com/gpu": "1"}
        assert note(pod, "would-be-gpu-request") == "1×1g.10gb"

    await set_mode(bed, rightsizing="canary", rightsizing_canary="50")

    async def has_mode(mode: str) -> bool:
        return (await read_spec(bed)).mode == mode

    await bed.until(lambda: has_mode("canary"), "the mode canary")
    letters = (await read_spec(bed)).canaryLetters
    for pod in await renew(bed):
        token = next(each["name"] for each in pod["spec"]["volumes"] if each["name"].startswith("kube-api-access-"))
        is_tried = token[-1] in letters
        assert request_of(pod) == {SLICE if is_tried else "nvidia.com/gpu": "1"}
        assert note(pod, "original-gpu-request" if is_tried else "would-be-gpu-request")

    await set_mode(bed, rightsizing="enforce")
    await bed.until(lambda: has_mode("enforce"), "the mode enforce")
    pods = await renew(bed)
    assert [request_of(pod) for pod in pods] == [{SLICE: "1"}] * 3
    assert {note(pod, "original-gpu-request") for pod in pods} == {"1"}

    assert "1×1g.10gb   needs 3" in await ask(bed, "status")

    await run_out_of_memory(bed, pods[0])

    async def is_reverted() -> bool:
        return KEY in (await read_spec(bed)).reverted

    await bed.until(is_reverted, "the revert")
    spec = await read_spec(bed)
    assert (spec.reverted[KEY].reason, spec.errors, spec.decisions) == ("OutOfMemory", 1, {})
    assert [request_of(pod) for pod in await renew(bed)] == [{"nvidia.com/gpu": "1"}] * 3
    assert [each.what for each in spec.history] == ["Decided", "Mode", "Mode", "Mode", "Reverted"]
    assert "reverted   as asked   OutOfMemory: pod chat-" in await ask(bed, "explain", "chat")
    assert "Reverted   Deployment/chat" in await ask(bed, "history")
    await check_tenant(bed)


async def ask(bed: OptimizerBed, *arguments: str) -> str:
    """Return what `kgwe rightsize` prints."""
    command = [sys.executable, "-m", "kgwe.cli", "rightsize", *arguments, "-n", bed.namespace]
    command += ["--kubeconfig", str(bed.cluster.kubeconfig)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    told, _ = await process.communicate()
    (bed.folder / f"{arguments[0]}.txt").write_bytes(told)
    return told.decode()


async def check_tenant(bed: OptimizerBed) -> None:
    """A user with all rights within the namespace cannot write decisions."""
    accounts = f"/api/v1/namespaces/{bed.namespace}/serviceaccounts"
    await bed.client.request("POST", accounts, body={"metadata": {"name": "tenant"}})
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{bed.namespace}"
    rule = {"apiGroups": ["kgwe.nvidia.io"], "resources": ["*"], "verbs": ["*"]}
    await bed.client.request("POST", f"{rbac}/roles", body={"metadata": {"name": "all"}, "rules": [rule]})
    account = {"kind": "ServiceAccount", "name": "tenant", "namespace": bed.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "all"}
    body = {"metadata": {"name": "all"}, "roleRef": role, "subjects": [account]}
    await bed.client.request("POST", f"{rbac}/rolebindings", body=body)
    path = service_account_kubeconfig(bed.cluster, bed.namespace, "tenant", bed.folder / "tenant")
    async with clients.connect(path) as tenant:
        patch = {"spec": {"mode": "enforce", "reverted": None}}
        with pytest.raises(errors.KgweError, match="only KGWE writes RightsizingDecisions"):
            await tenant.patch(resources.RIGHTSIZING_DECISION, "default", patch, bed.namespace)


# --- the policy alone -------------------------------------------------------------------------------------


async def try_pod(bed: OptimizerBed, containers: int = 1, **annotations: str) -> dict[str, Any]:
    """The pod as it would be stored."""
    container = {"image": IMAGE, "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    notes = {f"kgwe.nvidia.io/{name.replace('_', '-')}": text for name, text in annotations.items()}
    body = {
        "metadata": {"name": "probe", "annotations": notes},
        "spec": {"containers": [container | {"name": f"c{number}"} for number in range(containers)]},
    }
    path = f"/api/v1/namespaces/{bed.namespace}/pods"
    reply = await bed.client.request("POST", path, body=body, params={"dryRun": "All"})
    found: dict[str, Any] = msgspec.json.decode(reply)
    return found


async def test_the_policy_changes_only_what_was_decided_and_nothing_twice(bed: OptimizerBed):
    smaller = {"resource": SLICE, "profile": "1g.10gb", "reason": "small"}
    spec = {"mode": "enforce", "offered": [SLICE], "decisions": {f"Pod/probe {IMAGE} 1": smaller}}
    kind = resources.RIGHTSIZING_DECISION
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "default"}, "spec": spec}
    await bed.client.create(kind, body, bed.namespace)

    async def asks_for(resource: str) -> bool:
        return request_of(await try_pod(bed)) == {resource: "1"}

    await bed.until(lambda: asks_for(SLICE), "a slice")
    for kept in (
        await try_pod(bed, optimize="false"),
        await try_pod(bed, sharing_mode="exclusive"),
        await try_pod(bed, mig_profile="2g.20gb"),
        await try_pod(bed, original_gpu_request="1"),
        await try_pod(bed, containers=2),
        await try_pod(bed, gang="g"),
    ):
        assert request_of(kept) == {"nvidia.com/gpu": "1"}
    assert request_of(await try_pod(bed, mig_profile="1g.10gb")) == {SLICE: "1"}
    changes: list[dict[str, Any]] = [{"offered": []}, {"problem": "stopped"}, {"mode": "off"}, {"decisions": None}]
    for change in changes:
        await bed.client.patch(kind, "default", {"spec": change}, bed.namespace)
        await bed.until(lambda: asks_for("nvidia.com/gpu"), f"no change with {change}")
        await bed.client.patch(kind, "default", {"spec": spec | {"problem": None}}, bed.namespace)
        await bed.until(lambda: asks_for(SLICE), "a slice again")
    malformed = {"spec": {"decisions": {f"Pod/probe {IMAGE} 1": {"profile": 7}}}}
    with pytest.raises(errors.KgweError, match="must be of type string"):
        await bed.client.patch(kind, "default", malformed, bed.namespace)
    assert not await bed.list_pods()
