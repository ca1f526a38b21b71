"""A workload has the same fingerprint before its pods exist and in its pods."""

import msgspec

from kgwe.apps.optimizer.history import gpu_pods
from kgwe.cluster.workload.description import describe_workload
from kgwe.cluster.workload.manifests.pod_template import build_pod_template
from kgwe.cluster.workload.workload import from_kgwe
from kgwe.kube.api.kgwe.gpuworkload import GPUWorkload

IMAGE = "registry:5000/default:1"


def _workload(requirements, template=None, **spec):
    meta = {"name": "train-29384750", "namespace": "ml", "uid": "u1", "creationTimestamp": "2026-11-01T10:00:00Z"}
    spec = {"gpuRequirements": requirements, "podTemplate": template or {}, **spec}
    return from_kgwe(msgspec.convert({"metadata": meta, "spec": spec}, GPUWorkload, strict=False))


def _pod_of(workload):
    template = build_pod_template(workload, IMAGE)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train-job", "uid": "j1", "controller": True}
    template["metadata"] |= {"name": "train-job-0", "namespace": "ml", "uid": "p1", "ownerReferences": [owner]}
    return msgspec.convert({**template, "status": {"phase": "Running"}}, gpu_pods.GpuPod, strict=False)


def test_a_workload_and_its_pods_have_the_same_fingerprint():
    container = {"name": "main", "image": "ghcr.io/org/app:2", "command": ["torchrun", "train.py", "--lr=0.1"]}
    template = {"metadata": {"labels": {"app.kubernetes.io/name": "llm"}}, "spec": {"containers": [container]}}
    for workload in (
        _workload({"count": 8}, template, gpusPerPod=2, workloadType="FineTuning"),
        _workload({"mig": {"profile": "1g.10gb", "count": 1}}, template),
        _workload({"share": 0.5}),
        _workload({"count": 1}),
    ):
        described = describe_workload(workload, IMAGE)
        facts = gpu_pods.read_facts(_pod_of(workload))
        assert described is not None
        assert facts is not None
        assert described.make_fingerprint() == facts.fingerprint


def test_an_invalid_template_has_no_description():
    assert describe_workload(_workload({"count": 1}, {"spec": {"containers": []}}), IMAGE) is None
    assert describe_workload(_workload({"count": 1}, {"spec": {"containers": ["x"]}}), IMAGE) is None
