"""Workloads in manifests, described for a prediction before they are submitted."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe import errors
from kgwe.apps.optimizer.history import gpu_pods
from kgwe.cluster import names
from kgwe.cluster.workload.description import describe_workload
from kgwe.cluster.workload.workload import from_kgwe, from_warp
from kgwe.kube.api.kgwe.gpuworkload import GPUWorkload
from kgwe.kube.api.kgwe.warp import WarpGPUWorkload
from kgwe.model.usage.description import WorkloadDescription

if TYPE_CHECKING:
    from collections.abc import Mapping

_KINDS: Final[Mapping[tuple[str, str], Any]] = {
    ("kgwe.nvidia.io", "GPUWorkload"): (GPUWorkload, from_kgwe),
    ("gpu.warp.dev", "GPUWorkload"): (WarpGPUWorkload, from_warp),
}
#: kind -> path of its pod template, and of its number of pods
_TEMPLATES: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "Pod": ((), ()),
    "Job": (("spec", "template"), ("spec", "completions")),
    "Deployment": (("spec", "template"), ("spec", "replicas")),
    "StatefulSet": (("spec", "template"), ("spec", "replicas")),
    "CronJob": (("spec", "jobTemplate", "spec", "template"), ("spec", "jobTemplate", "spec", "completions")),
}


def describe_manifest(document: Mapping[str, Any], namespace: str, now_s: float) -> WorkloadDescription:
    """Return the workload of a manifest; raise Permanent if it has no GPUs or is of another kind."""
    kind, name, group = _read_head(document)
    try:
        if (group, kind) in _KINDS:
            found = _describe_workload(document, _KINDS[group, kind], namespace)
        elif kind in _TEMPLATES:
            found = _describe_template(document, kind, namespace)
        else:
            known = ", ".join(["GPUWorkload", *_TEMPLATES])
            raise errors.Permanent(f"{kind} {name}: predictions are made for {known}")
    except (msgspec.ValidationError, TypeError, KeyError, AttributeError, ValueError, OverflowError) as exc:
        raise errors.Permanent(f"{kind} {name} is invalid: {exc}") from exc
    if found is None:
        raise errors.Permanent(f"{kind} {name} asks for no GPUs, or its pod template is invalid")
    return dataclasses.replace(found, submitted_s=now_s)


def _read_head(document: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return kind, name and API group; raise Permanent with what is missing."""
    meta = document.get("metadata")
    name = meta.get("name") if isinstance(meta, dict) else None
    said = {"apiVersion": document.get("apiVersion"), "kind": document.get("kind"), "metadata.name": name}
    for field, value in said.items():
        if not isinstance(value, str) or not value:
            raise errors.Permanent(f"the manifest has no {field}")
    return str(said["kind"]), str(name), str(said["apiVersion"]).rpartition("/")[0]


def _describe_workload(document: Mapping[str, Any], types: Any, namespace: str) -> WorkloadDescription | None:
    kind, read = types
    meta = {"namespace": namespace, **document["metadata"]}
    return describe_workload(
        read(msgspec.convert({**document, "metadata": meta}, kind, strict=False)), names.DEFAULT_IMAGE
    )


def _describe_template(document: Mapping[str, Any], kind: str, namespace: str) -> WorkloadDescription | None:
    path, count = _TEMPLATES[kind]
    template = _walk(document, path)
    meta = {**(template.get("metadata") or {}), "namespace": document["metadata"].get("namespace") or namespace}
    pod = msgspec.convert({"metadata": meta, "spec": template["spec"]}, gpu_pods.GpuPod, strict=False)
    shape = gpu_pods.read_shape(pod)
    if shape is None:
        return None
    container = gpu_pods.find_gpu_container(pod)
    owner = "Job" if kind == "CronJob" else kind
    return WorkloadDescription(
        namespace=pod.metadata.namespace,
        name=document["metadata"]["name"],
        owner_kind=owner,
        owner_name=document["metadata"]["name"],
        image=container.image,
        command=(*container.command, *container.args),
        labels=pod.metadata.labels,
        environment={each.name: each.value for each in container.env},
        pods=_count_pods(document, count),
        milli_gpus=shape.milli_gpus,
        mig_profile=shape.mig_profile,
        user=pod.metadata.labels.get(gpu_pods.USER_LABEL, "") or pod.metadata.namespace,
    )


def _count_pods(document: Mapping[str, Any], path: tuple[str, ...]) -> int:
    pods = int(_walk(document, path) or 1) if path else 1
    if pods < 1:
        raise ValueError(f"{'.'.join(path)} is {pods}")
    return pods


def _walk(document: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        document = document.get(part) if isinstance(document, dict) else None
    return document
