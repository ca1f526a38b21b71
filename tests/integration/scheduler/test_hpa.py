"""A HorizontalPodAutoscaler scales an inference workload: the real controller, by CPU usage of its pods."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clusters import usage_server
from tests.support.clusters.bed import kgwe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.clusters.bed import Bed

# The controller looks every 15 s.
pytestmark = pytest.mark.slow

SERVICE = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics", "namespace": "kube-system"}}
API_SERVICE = "/apis/apiregistration.k8s.io/v1/apiservices"


def autoscaler(name: str) -> dict[str, Any]:
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"apiVersion": "kgwe.nvidia.io/v1", "kind": "GPUWorkload", "name": name},
            "minReplicas": 1,
            "maxReplicas": 4,
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
            "metrics": [{"type": "Resource", "resource": cpu}],
        },
    }


async def post(bed: Bed, path: str, body: dict[str, Any]) -> None:
    await bed.client.request("POST", path, body=body)


@contextlib.asynccontextmanager
async def metrics_api(bed: Bed, port: int) -> AsyncIterator[None]:
    """The metrics API, served on this port of loopback."""
    spec = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
    await post(bed, "/api/v1/namespaces/kube-system/services", SERVICE | {"spec": spec})
    name = "v1beta1.metrics.k8s.io"
    body = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": name},
        "spec": {
            "group": "metrics.k8s.io",
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {"name": "metrics", "namespace": "kube-system", "port": port},
        },
    }
    await post(bed, API_SERVICE, body)
    try:
        yield
    finally:
        await bed.client.request("DELETE", f"{API_SERVICE}/{name}")
        await bed.client.request("DELETE", "/api/v1/namespaces/kube-system/services/metrics")


async def test_an_autoscaler_follows_the_load(bed: Bed, tmp_path: Path):
    await bed.node("n1", 8)
    await bed.controller()
    body = kgwe("api", 2, workloadType="Inference")
    container = {"name": "main", "image": "img", "resources": {"requests": {"cpu": "1"}}}
    body["spec"]["podTemplate"] = {"spec": {"containers": [container]}}
    workload = await bed.submit(body)
    await bed.until_phase(workload, "Running")
    await bed.until(lambda: bed.now(workload).status.readyReplicas == 1)
    load = usage_server.ServiceLoad(
        lambda: [pod for pod in bed.pods.store.values() if pod.metadata.labels.get("kgwe.nvidia.io/workload") == "api"]
    )
    async with contextlib.AsyncExitStack() as stack:
        port = await stack.enter_async_context(usage_server.serving(load, tmp_path))
        await stack.enter_async_context(metrics_api(bed, port))
        load.cores = 2.2
        await post(bed, "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", autoscaler("api"))
        await bed.until(lambda: bed.now(workload).status.readyReplicas == 3)
        assert bed.now(workload).spec.replicas == 3
        load.cores = 0.1
        await bed.until(lambda: bed.now(workload).status.replicas == 1)
        assert bed.now(workload).spec.replicas == 1
        await bed.client.request("DELETE", "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/api")
