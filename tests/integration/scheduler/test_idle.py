"""Owners are suspended with the optimizer's rights where it may act, and `kgwe idle` shows and undoes that."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clusters import clients
from tests.support.clusters.bed import ROOT, kgwe

from kgwe.cluster.suspension import owner_kinds
from kgwe.cluster.suspension.suspender import Result, Suspender
from kgwe.kube.api import resources
from kgwe.kube.client import manifests
from kgwe.kube.client.client import Forbidden, KubeClient
from kgwe.kube.translate import podspec
from kgwe.local.cluster.cluster import service_account_kubeconfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.clusters.bed import Bed

BINDING = resources.Resource(
    "rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", namespaced=True, type=dict[str, Any]
)
KINDS = {each.resource.full_name: each for each in owner_kinds.KINDS}
STATEFUL_SET = KINDS["statefulsets.apps"].resource
OWN = {"labels": {"app": "serving"}}
CONTAINER = {"name": "c", "image": "example.com/i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
SERVING = {
    "metadata": {"name": "serving"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": OWN["labels"]},
        "template": {"metadata": OWN, "spec": {"containers": [CONTAINER]}},
    },
}


@pytest.fixture
async def optimizer(bed: Bed, tmp_path: Path) -> AsyncIterator[KubeClient]:
    """A client with the rights of the optimizer, which may act in no namespace yet."""
    await manifests.apply_manifest(bed.client, manifests.load_manifests(ROOT / "deploy" / "optimizer.yaml"))
    path = service_account_kubeconfig(bed.cluster, "kgwe-system", "kgwe-optimizer", tmp_path / "optimizer")
    async with clients.connect(path) as client:
        yield client


async def opt_in(bed: Bed) -> None:
    """The namespace lets the optimizer act."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "kgwe-optimizer-act"}
    account = {"kind": "ServiceAccount", "name": "kgwe-optimizer", "namespace": "kgwe-system"}
    body = {"metadata": {"name": "kgwe-optimizer-act"}, "roleRef": role, "subjects": [account]}
    await bed.client.apply(BINDING, body, "default")


async def run_idle(bed: Bed, *arguments: str) -> tuple[int, str]:
    """(exit code, output) of the command, as the administrator runs it."""
    command = [sys.executable, "-m", "kgwe.cli", "idle", *arguments, "--kubeconfig", str(bed.cluster.kubeconfig)]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


def running(bed: Bed, app: str) -> list[Any]:
    return [
        pod
        for pod in bed.pods.store.values()
        if pod.metadata.name.startswith(app) and pod.status.phase == "Running" and not podspec.is_terminal(pod)
    ]


async def test_a_stateful_set_is_stopped_where_the_optimizer_may_act_and_restored_by_one_command(
    bed: Bed, optimizer: KubeClient
):
    await bed.node("n1", 8)
    await bed.client.create(STATEFUL_SET, SERVING, "default")
    await bed.until(lambda: len(running(bed, "serving")) == 2)
    (pod, *_) = running(bed, "serving")
    suspender = Suspender(optimizer, "kgwe-optimizer")
    with pytest.raises(Forbidden):
        await suspender.suspend_pod(pod, "IdleGPU: idle for 2 h", time.time())

    await opt_in(bed)
    async with asyncio.timeout(60):
        while True:  # a right takes effect a moment after it is stored
            try:
                outcome = await suspender.suspend_pod(pod, "IdleGPU: idle for 2 h", time.time())
                break
            except Forbidden:
                await asyncio.sleep(0.1)
    assert (outcome.result, outcome.kind, outcome.replicas) == (Result.SUSPENDED, "StatefulSet", 2)
    await bed.until(lambda: not bed.gpus_bound())
    code, text = await run_idle(bed, "list", "-n", "default", "-o", "json")
    (row,) = json.loads(text)
    assert (code, row["name"], row["state"], row["gpus"]) == (0, "serving", "Suspended", "2")

    assert await run_idle(bed, "restore", "serving", "-n", "default") == (
        0,
        "restored StatefulSet default/serving with replicas 2\n",
    )
    await bed.until(lambda: len(running(bed, "serving")) == 2)
    code, text = await run_idle(bed, "restore", "serving", "-n", "default")
    assert (code, text) == (1, "kgwe: KGWE has not suspended StatefulSet default/serving\n")
    await bed.client.delete(STATEFUL_SET, "serving", "default")
    await bed.until(lambda: not running(bed, "serving"))


async def test_an_idle_workload_is_kept_then_suspended_and_restored(bed: Bed, optimizer: KubeClient):
    await bed.node("n1", 8)
    await bed.controller()
    await opt_in(bed)
    workload = await bed.submit(kgwe("train", 8))
    await bed.until_phase(workload, "Running")
    (pod,) = running(bed, "train")
    code, text = await run_idle(bed, "keep", "train", "-n", "default", "--for", "8h")
    assert (code, text.startswith("GPUWorkload default/train is kept until ")) == (0, True)
    suspender = Suspender(optimizer, "kgwe-optimizer")
    assert (await suspender.suspend_pod(pod, "IdleGPU", time.time())).reason == "Kept"

    outcome = await suspender.suspend_pod(pod, "IdleGPU", time.time() + 9 * 3600)
    assert (outcome.result, outcome.kind) == (Result.SUSPENDED, "GPUWorkload")
    await bed.until(lambda: not bed.gpus_bound())
    await bed.until(lambda: bed.now(workload).status.message.endswith("resume with kgwe idle restore train -n default"))
    code, text = await run_idle(bed, "restore", "train", "-n", "default")
    assert (code, text) == (0, "restored GPUWorkload default/train\n")
    await bed.until_phase(workload, "Running")
