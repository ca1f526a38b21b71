"""Checks of KGWE's processes: pods, the leader, kube-scheduler's calls, stores and prices."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.install.doctor.findings import Finding, Level
from kgwe.kube.api import timestamp
from kgwe.store.ledger import price_files

if TYPE_CHECKING:
    import datetime as dt

    from kgwe.install.doctor.findings import Cluster

_PART: Final = "app.kubernetes.io/part-of=kgwe"
_REQUESTS: Final = re.compile(r"^kgwe_extender_requests_total\{[^}]*\} (\S+)$", re.MULTILINE)
_METRICS_PORT: Final = 8080
_STORES: Final = {"kgwe-optimizer": "optimizer", "kgwe-cost-engine": "costEngine"}
_TROUBLE: Final = frozenset({
    "CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "ErrImagePull", "ImagePullBackOff",
    "InvalidImageName", "RunContainerError",
})  # fmt: skip


async def check_processes(cluster: Cluster) -> list[Finding]:
    """Whether every process of the chart has the pods that it should have."""
    deployments = await cluster.list(cluster.deployment_path(), labelSelector=_PART)
    if not deployments:
        message = f"no Deployment of KGWE in namespace {cluster.namespace}"
        return [Finding("processes", Level.WARNING, message, "install KGWE: kgwe install")]
    pods = await cluster.list(f"/api/v1/namespaces/{cluster.namespace}/pods", labelSelector=_PART)
    found, good = [], 0
    for each in deployments:
        name, wanted = each["metadata"]["name"], each["spec"].get("replicas", 1)
        available = each.get("status", {}).get("availableReplicas", 0)
        if available >= wanted:
            good += 1
            continue
        own = [pod for pod in pods if pod["metadata"]["labels"].get("app.kubernetes.io/name") == name]
        why = _find_trouble(own) or f"kubectl describe deployment {name} -n {cluster.namespace}"
        message = f"{name}: {available} of {wanted} replicas are ready"
        found.append(Finding("processes", Level.ERROR if not available else Level.WARNING, message, why))
    return found or [Finding("processes", Level.OK, f"{good} processes have all their replicas")]


def _find_trouble(pods: list[dict[str, Any]]) -> str:
    """Return what the kubelet says about a container that does not run, with what to do."""
    for pod in pods:
        for status in pod.get("status", {}).get("containerStatuses") or ():
            waiting = status.get("state", {}).get("waiting") or {}
            if waiting.get("reason") not in _TROUBLE:
                continue
            ended = status.get("lastState", {}).get("terminated") or {}
            text = ended.get("message") or waiting.get("message") or ""
            name, space = pod["metadata"]["name"], pod["metadata"]["namespace"]
            return f"{waiting['reason']}: {text.strip()[:200]}; kubectl logs --previous {name} -n {space}"
        for condition in pod.get("status", {}).get("conditions") or ():
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                return f"{pod['metadata']['name']} has no node: {condition.get('message', '')}"
    return ""


async def check_leader(cluster: Cluster, now: dt.datetime, lease_namespace: str) -> list[Finding]:
    """Whether a scheduler leads."""
    lease = await cluster.get(f"/apis/coordination.k8s.io/v1/namespaces/{lease_namespace}/leases/kgwe-scheduler")
    spec = (lease or {}).get("spec") or {}
    fix = f"start it, or read its log: kubectl logs -l app.kubernetes.io/name=kgwe-scheduler -n {cluster.namespace}"
    holder = spec.get("holderIdentity")
    if not holder:
        return [Finding("leader", Level.ERROR, "no scheduler of KGWE leads: GPU workloads wait", fix)]
    age = (now - timestamp.parse(spec["renewTime"])).total_seconds()
    if age > 2 * spec.get("leaseDurationSeconds", 15):
        return [Finding("leader", Level.ERROR, f"the leader {holder} was last seen {age:.0f} s ago", fix)]
    return [Finding("leader", Level.OK, f"{holder} leads")]


async def check_calls(cluster: Cluster) -> list[Finding]:
    """Whether kube-scheduler asks KGWE about GPU pods."""
    second = await cluster.get(cluster.deployment_path("kgwe-kube-scheduler"))
    if second is not None:
        ready = second.get("status", {}).get("availableReplicas", 0)
        if not ready:
            fix = f"kubectl logs -l app.kubernetes.io/name=kgwe-kube-scheduler -n {cluster.namespace}"
            return [Finding("kube-scheduler", Level.ERROR, "the second kube-scheduler is not ready", fix)]
        return [Finding("kube-scheduler", Level.OK, "the second kube-scheduler of the chart asks KGWE")]
    if await cluster.get(cluster.deployment_path("kgwe-controller")) is not None:
        return [Finding("kube-scheduler", Level.SKIPPED, "only GPUWorkloads are placed (scheduler.enabled is false)")]
    calls = await _count_calls(cluster)
    if calls:
        return [Finding("kube-scheduler", Level.OK, f"kube-scheduler has asked {calls:.0f} times")]
    fix = (
        "start kube-scheduler with --config (kgwe scheduler config), or set secondScheduler.enabled=true where the"
        " control plane is closed"
    )
    own = await cluster.list("/api/v1/namespaces/kube-system/pods", labelSelector="component=kube-scheduler")
    for pod in own:
        command = " ".join(part for each in pod["spec"]["containers"] for part in each.get("command") or ())
        if "--config" not in command:
            message = f"{pod['metadata']['name']} has no --config: it does not know KGWE"
            return [Finding("kube-scheduler", Level.ERROR, message, fix)]
    if calls is None:
        message = "not known: no metrics of the scheduler can be read, and kube-scheduler's pods are not visible"
        return [Finding("kube-scheduler", Level.UNKNOWN, message, fix)]
    message = "kube-scheduler has not asked KGWE since its scheduler started"
    return [Finding("kube-scheduler", Level.WARNING, message, f"create a GPU pod and look again; if it stays: {fix}")]


async def _count_calls(cluster: Cluster) -> float | None:
    """Return the calls that the leader has counted; None if it cannot be asked."""
    pods = await cluster.list(
        f"/api/v1/namespaces/{cluster.namespace}/pods", labelSelector="app.kubernetes.io/name=kgwe-scheduler"
    )
    total: float | None = None
    for pod in pods:
        name = pod["metadata"]["name"]
        path = f"/api/v1/namespaces/{cluster.namespace}/pods/{name}:{_METRICS_PORT}/proxy/metrics"
        try:
            text = (await cluster.client.request("GET", path)).decode("utf-8", "replace")
        except errors.KgweError:
            continue
        total = (total or 0.0) + sum(float(each) for each in _REQUESTS.findall(text))
    return total


async def check_stores(cluster: Cluster) -> list[Finding]:
    """Whether history and ledger survive a restart of their pod, and the Secret of the database exists."""
    found: list[Finding] = []
    for name, component in _STORES.items():
        deployment = await cluster.get(cluster.deployment_path(name))
        if deployment is None:
            continue
        spec = deployment["spec"]["template"]["spec"]
        secret = _find_secret(spec)
        if secret:
            stored = await cluster.get(f"/api/v1/namespaces/{cluster.namespace}/secrets/{secret}")
            if stored is None or "url" not in (stored.get("data") or {}):
                fix = f"kubectl create secret generic {secret} -n {cluster.namespace} --from-literal=url=postgresql://…"
                found.append(Finding("store", Level.ERROR, f"{name}: Secret {secret} has no key url", fix))
            else:
                found.append(Finding("store", Level.OK, f"{name} uses PostgreSQL (Secret {secret})"))
            continue
        volume: dict[str, Any] = next((each for each in spec.get("volumes") or () if each["name"] == "store"), {})
        if "emptyDir" in volume:
            message = f"{name} loses its data with its pod"
            fix = (
                f"give it a volume: --set {component}.store.size=20Gi, or PostgreSQL: {component}.store.existingSecret"
            )
            found.append(Finding("store", Level.WARNING, message, fix))
        else:
            found.append(await _check_claim(cluster, name, volume))
    return found or [Finding("store", Level.SKIPPED, "no process with a store is installed")]


async def _check_claim(cluster: Cluster, name: str, volume: dict[str, Any]) -> Finding:
    claim = volume.get("persistentVolumeClaim", {}).get("claimName", "")
    stored = await cluster.get(f"/api/v1/namespaces/{cluster.namespace}/persistentvolumeclaims/{claim}")
    phase = (stored or {}).get("status", {}).get("phase", "missing")
    if phase != "Bound":
        fix = f"kubectl describe pvc {claim} -n {cluster.namespace}"
        return Finding("store", Level.ERROR, f"{name}: volume claim {claim} is {phase}", fix)
    return Finding("store", Level.OK, f"{name} keeps its data on volume claim {claim}")


def _find_secret(spec: dict[str, Any]) -> str:
    for container in spec["containers"]:
        for each in container.get("env") or ():
            reference = (each.get("valueFrom") or {}).get("secretKeyRef")
            if each["name"].endswith("_STORE") and reference:
                return str(reference["name"])
    return ""


async def check_prices(cluster: Cluster) -> list[Finding]:
    """Whether the price files can be read."""
    deployment = await cluster.get(cluster.deployment_path("kgwe-cost-engine"))
    volumes = deployment["spec"]["template"]["spec"].get("volumes") or () if deployment else ()
    names = [each["configMap"]["name"] for each in volumes if each["name"] == "prices"]
    if not names:
        return [Finding("prices", Level.SKIPPED, "built-in prices are used (costEngine.priceConfigMap)")]
    config = await cluster.get(f"/api/v1/namespaces/{cluster.namespace}/configmaps/{names[0]}")
    if config is None:
        fix = f"kubectl create configmap {names[0]} -n {cluster.namespace} --from-file=prices.yaml"
        return [Finding("prices", Level.ERROR, f"ConfigMap {names[0]} does not exist", fix)]
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for key, text in (config.get("data") or {}).items():
            path = Path(folder) / Path(key).name
            path.write_text(text, encoding="utf-8")
            paths.append(path)
        try:
            price_files.load_book(paths, with_defaults=False)
        except errors.Permanent as exc:
            message = str(exc).replace(f"{folder}/", "")
            fix = f"kubectl edit configmap {names[0]} -n {cluster.namespace}"
            return [Finding("prices", Level.ERROR, f"ConfigMap {names[0]}: {message}", fix)]
    return [Finding("prices", Level.OK, f"the {len(paths)} price files of ConfigMap {names[0]} are readable")]
