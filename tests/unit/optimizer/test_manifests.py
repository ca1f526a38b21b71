"""Manifests become descriptions with the fingerprint that their pods will have."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.builders.optimizer_pods import read

from kgwe import errors
from kgwe.apps.optimizer.manifests import describe_manifest

NOW_S = 1_795_003_200.0


def pod_spec(gpus: Any = "1") -> dict[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": gpus}}
    container = {
        "name": "main",
        "image": "ghcr.io/org/app:1",
        "command": ["python", "train.py"],
        "resources": resources,
    }
    return {"containers": [{"name": "sidecar", "image": "proxy:2"}, container]}


def manifest(kind: str, **spec: Any) -> dict[str, Any]:
    version = "apps/v1" if kind in {"Deployment", "StatefulSet"} else "v1" if kind == "Pod" else "batch/v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "train"}, "spec": spec}


def job(**spec: Any) -> dict[str, Any]:
    return manifest("Job", **{"template": {"spec": pod_spec()}, **spec})


def test_the_fingerprint_of_a_job_is_that_of_its_pods():
    described = describe_manifest(job(), "ml", NOW_S)
    assert described.make_fingerprint().key == read("train-0").fingerprint.key
    assert (described.submitted_s, described.namespace, described.milli_gpus) == (NOW_S, "ml", 1000)


@pytest.mark.parametrize(
    ("document", "kind", "pods"),
    [
        (job(completions=4), "Job", 4),
        (manifest("Pod", **pod_spec()), "Pod", 1),
        (manifest("Deployment", replicas=3, template={"spec": pod_spec()}), "Deployment", 3),
        (manifest("StatefulSet", template={"spec": pod_spec()}), "StatefulSet", 1),
        (manifest("CronJob", jobTemplate={"spec": {"completions": 2, "template": {"spec": pod_spec()}}}), "Job", 2),
    ],
)
def test_kinds_and_their_pods(document, kind, pods):
    described = describe_manifest(document, "ml", NOW_S)
    assert (described.owner_kind, described.pods, described.image) == (kind, pods, "ghcr.io/org/app:1")


def test_the_namespace_of_the_manifest_counts_first():
    document = job()
    document["metadata"]["namespace"] = "own"
    assert describe_manifest(document, "ml", NOW_S).namespace == "own"


@pytest.mark.parametrize(
    ("api_version", "more"),
    [("kgwe.nvidia.io/v1", {}), ("gpu.warp.dev/v1alpha1", {"modelName": "llama", "gpuCount": 4})],
)
def test_a_gpuworkload_is_described(api_version, more):
    template = {"spec": {"containers": [{"name": "main", "image": "ghcr.io/org/app:1"}]}}
    spec = {"gpuRequirements": {"count": 4}, "podTemplate": template, **more}
    document = {"apiVersion": api_version, "kind": "GPUWorkload", "metadata": {"name": "train"}, "spec": spec}
    described = describe_manifest(document, "ml", NOW_S)
    assert (described.owner_kind, described.namespace, described.gpus) == ("GPUWorkload", "ml", 4)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (manifest("Service"), "Service train: predictions are made for GPUWorkload, Pod, Job"),
        (manifest("Job", template={"spec": {"containers": [{"name": "a"}]}}), "asks for no GPUs"),
        (manifest("Job"), "Job train is invalid"),
        (manifest("Job", template="text"), "Job train is invalid"),
        (manifest("Job", template={"spec": {"containers": "none"}}), "Job train is invalid"),
        (job(completions="many"), "Job train is invalid"),
        (job(completions=-3), "Job train is invalid"),
        (job(completions=float("nan")), "Job train is invalid"),
        (job(completions=float("inf")), "Job train is invalid"),
        (
            {"apiVersion": "kgwe.nvidia.io/v1", "kind": "GPUWorkload", "metadata": {"name": "w"}, "spec": 5},
            "w is invalid",
        ),
        ({"apiVersion": "v1", "kind": "Pod"}, "metadata"),
        ({"kind": "Pod", "metadata": {"name": "p"}}, "apiVersion"),
        ({"apiVersion": "v1", "kind": "Pod", "metadata": None}, "metadata"),
    ],
)
def test_a_bad_manifest_is_one_clear_line(document, message):
    with pytest.raises(errors.Permanent, match=message):
        describe_manifest(document, "ml", NOW_S)
