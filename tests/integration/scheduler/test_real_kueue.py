"""Kueue itself admits GPUWorkloads: until then they hold no seats. Its program is built once, which takes minutes."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from tests.support.clusters import go_modules
from tests.support.clusters.bed import condition, kgwe
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.certificates import authority
from kgwe.cluster.workload import metadata_keys
from kgwe.kube.api import resources
from kgwe.kube.api.resources import Resource
from kgwe.local.host import ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.clusters.bed import Bed

pytestmark = pytest.mark.soak

CRDS = "config/components/crd/bases"
VERSION = "v1beta1"
FLAVOR: Resource[Any] = Resource(
    "kueue.x-k8s.io", VERSION, "resourceflavors", "ResourceFlavor", namespaced=False, type=dict[str, Any]
)
CLUSTER_QUEUE: Resource[Any] = Resource(
    "kueue.x-k8s.io", VERSION, "clusterqueues", "ClusterQueue", namespaced=False, type=dict[str, Any]
)
QUEUE: Resource[Any] = Resource(
    "kueue.x-k8s.io", VERSION, "localqueues", "LocalQueue", namespaced=True, type=dict[str, Any]
)


@contextlib.asynccontextmanager
async def defined(bed: Bed) -> AsyncIterator[None]:
    """Kueue's kinds, without the conversions for which it would need its webhooks."""
    folder = go_modules.find_module(go_modules.KUEUE) / CRDS
    made = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.yaml"))]
    try:
        for kind in made:
            kind["spec"].pop("conversion", None)
            await bed.client.apply(resources.CRD, kind)
        for kind in made:
            await until_served(bed, kind["spec"])
        yield
    finally:
        for kind in made:
            with contextlib.suppress(errors.NotFound):
                await bed.client.delete(resources.CRD, kind["metadata"]["name"])


async def until_served(bed: Bed, spec: dict[str, Any]) -> None:
    path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await bed.client.request("GET", path)
            except (errors.NotFound, errors.Transient):
                await asyncio.sleep(0.2)
            else:
                return


@contextlib.contextmanager
def running_kueue(bed: Bed, folder: Path) -> Any:
    """The controller as a process, for Jobs only."""
    program = go_modules.build_binary(go_modules.KUEUE, "cmd/kueue")
    chosen = ports.allocate(("webhook", "health"))
    now, day = dt.datetime.now(dt.UTC), dt.timedelta(days=1)
    pair = authority.issue(authority.make_authority("kueue", now, day), "kueue", ("127.0.0.1",), now, day)
    for name, data in (("tls.crt", pair.certificate), ("tls.key", pair.key)):
        (folder / name).write_bytes(data)
    configuration = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{chosen['health']}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"port": chosen["webhook"], "host": "127.0.0.1", "certDir": str(folder)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": ["batch/job"]},
    }
    (folder / "kueue.yaml").write_text(yaml.safe_dump(configuration))
    command = [str(program), "--config", str(folder / "kueue.yaml"), "--feature-gates=VisibilityOnDemand=false"]
    env = os.environ | {"KUBECONFIG": str(bed.cluster.kubeconfig)}
    with (folder / "kueue.log").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def create(bed: Bed, kind: Resource[Any], name: str, spec: dict[str, Any], namespace: str | None = None) -> None:
    """A definition is announced a moment before its storage is ready."""
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec}
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await bed.client.create(kind, body, namespace)
            except (errors.NotFound, errors.Transient):
                await asyncio.sleep(0.2)
            else:
                return


def queued(name: str) -> dict[str, Any]:
    body = kgwe(name, 8)
    body["metadata"]["labels"] = {metadata_keys.QUEUE_LABEL: "team-queue"}
    return body


def is_waiting(bed: Bed, workload: Any) -> bool:
    found = bed.now(workload)
    return bool(found.status.conditions) and condition(found, "Scheduled").reason == "AwaitingAdmission"


async def test_kueue_admits_one_workload_and_the_other_holds_no_seats(bed: Bed, tmp_path: Path) -> None:
    await bed.node("a", 8)
    await bed.node("b", 8)
    await bed.client.apply(resources.NAMESPACE, {"metadata": {"name": "kueue-system"}})
    async with defined(bed):
        with running_kueue(bed, tmp_path):
            await create(bed, FLAVOR, "default", {})
            quota = {"name": "nvidia.com/gpu", "nominalQuota": "8"}
            groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "default", "resources": [quota]}]}]
            await create(bed, CLUSTER_QUEUE, "gpus", {"namespaceSelector": {}, "resourceGroups": groups})
            await create(bed, QUEUE, "team-queue", {"clusterQueue": "gpus"}, "default")
            await bed.controller()

            first = await bed.submit(queued("first"))
            await bed.until_phase(first, "Running")
            second = await bed.submit(queued("second"))
            await bed.until(lambda: bool(bed.jobs_of(second)))
            await bed.until(lambda: is_waiting(bed, second))
            other = await bed.submit(kgwe("other", 8))
            await bed.until_phase(other, "Running")

            await bed.delete(other)
            await bed.delete(first)
            await bed.until_phase(second, "Running")
            assert sum(bed.gpus_bound().values()) == 8
            await bed.delete(second)
            await bed.until(lambda: not bed.pods.store)
            for kind, name, namespace in ((QUEUE, "team-queue", "default"), (CLUSTER_QUEUE, "gpus", None)):
                await bed.client.delete(kind, name, namespace)
            await bed.client.delete(FLAVOR, "default", None)
