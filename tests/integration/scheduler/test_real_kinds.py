"""Objects that the real definitions of JobSet and LeaderWorkerSet accept: their pods are gangs, and wait for all."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from tests.support.clusters import go_modules
from tests.support.clusters.pods import pod
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.kube import dialects
from kgwe.kube.api import resources
from kgwe.kube.dialects import kinds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.clusters.bed import Bed
    from tests.support.clusters.pods import Live

    from kgwe.kube.api.resources import Resource

pytestmark = pytest.mark.slow

FILES = (
    (go_modules.JOB_SET, "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"),
    (go_modules.LWS, "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml"),
    (go_modules.KUEUE, "config/components/crd/bases/kueue.x-k8s.io_localqueues.yaml"),
    (go_modules.KUEUE, "config/components/crd/bases/kueue.x-k8s.io_workloads.yaml"),
)
CONTAINER = {"name": "main", "image": "example.com/train:1", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
TEMPLATE = {"spec": {"restartPolicy": "Never", "containers": [CONTAINER]}}


@contextlib.asynccontextmanager
async def defined(bed: Bed) -> AsyncIterator[None]:
    """The kinds as their projects publish them, until the end of the block."""
    made = [yaml.safe_load(go_modules.read_file(*each)) for each in FILES]
    try:
        for kind in made:
            # Without the webhook of its project, which is not there, a kind has no conversion.
            kind["spec"].pop("conversion", None)
            await bed.client.apply(resources.CRD, kind)
        async with asyncio.timeout(PATIENCE_S):
            wanted = {kinds.JOB_SET, kinds.LEADER_WORKER_SET}
            while not wanted <= {*(await dialects.find_readable(bed.client))[0]}:  # noqa: ASYNC110 - no watch shows it
                await asyncio.sleep(0.2)
        yield
    finally:
        for kind in made:
            with contextlib.suppress(errors.NotFound):
                await bed.client.delete(resources.CRD, kind["metadata"]["name"])


async def create(bed: Bed, kind: Resource[Any], name: str, spec: dict[str, Any]) -> Any:
    """A definition is announced a moment before its storage is ready."""
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec}
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await bed.client.create(kind, body, "default")
            except (errors.NotFound, errors.Transient):
                await asyncio.sleep(0.1)


async def create_pods(live: Live, made: dict[str, dict[str, str]]) -> None:
    for name, labels in made.items():
        notes = {key: labels.pop(key) for key in list(labels) if key.endswith("/size")}
        body = pod(name, 8, annotations=notes)
        body["metadata"]["labels"] = labels
        await live.bed.client.create(resources.POD, body, "default")


def job_set_spec(**first: Any) -> dict[str, Any]:
    job = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": TEMPLATE}
    return {"replicatedJobs": [{"name": "workers", "replicas": 2, "template": {"spec": job}, **first}]}


def job_set_pod(job: int, index: int) -> dict[str, str]:
    return {
        "jobset.sigs.k8s.io/jobset-name": "train",
        "jobset.sigs.k8s.io/replicatedjob-name": "workers",
        "jobset.sigs.k8s.io/job-index": str(job),
        "batch.kubernetes.io/job-completion-index": str(index),
    }


def lws_pod(index: int) -> dict[str, str]:
    prefix = "leaderworkerset.sigs.k8s.io/"
    said = {"name": "serve", "group-index": "0", "worker-index": str(index), "size": "3"}
    return {prefix + key: value for key, value in said.items()}


async def test_pods_of_real_job_sets_and_leader_worker_sets_are_gangs(live: Live) -> None:
    bed = live.bed
    async with defined(bed):
        await live.nodes({"a": 4, "b": 3})
        await live.scheduler(group_kinds_seconds="0.5")

        # Each definition is the real one: it refuses what its project refuses.
        for kind, spec in (
            (kinds.JOB_SET, job_set_spec(replicas="two")),
            (kinds.LEADER_WORKER_SET, {"replicas": 1, "leaderWorkerTemplate": {"size": 3}}),
        ):
            with pytest.raises(errors.Permanent, match="spec"):
                await create(bed, kind, "bad", spec)

        await create(bed, kinds.JOB_SET, "train", job_set_spec())
        names = {f"train-{job}-{index}": job_set_pod(job, index) for job in range(2) for index in range(2)}
        last = names.popitem()
        await create_pods(live, names)
        group = {"size": 3, "workerTemplate": TEMPLATE}
        await create(bed, kinds.LEADER_WORKER_SET, "serve", {"replicas": 1, "leaderWorkerTemplate": group})
        await create_pods(live, {f"serve-0-{index}": lws_pod(index) for index in range(3)})
        await live.until_bound("serve", 3)
        assert not live.bound("train"), "a pod is missing"

        await create_pods(live, dict([last]))
        await live.until_bound("train", 4)
        assert not live.overbooked()
