"""A workload as forecasts see it: read from its pod template, so that it equals what its pods will show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.cluster.workload.manifests.pod_template import build_pod_template
from kgwe.kube.api import timestamp
from kgwe.model.units import amounts
from kgwe.model.usage.description import WorkloadDescription

if TYPE_CHECKING:
    from kgwe.cluster.workload.workload import Workload

_KIND: Final = "GPUWorkload"
_USER_LABEL: Final = "kgwe.nvidia.io/user"
_MILLI: Final = 1000


def describe_workload(workload: Workload, default_image: str) -> WorkloadDescription | None:
    """Return the description of a workload; None if its template is invalid."""
    try:
        template = build_pod_template(workload, default_image)
        container = _find_gpu_container(template["spec"]["containers"])
        labels = {str(name): str(value) for name, value in template["metadata"].get("labels", {}).items()}
        return _describe(workload, container, labels)
    except (errors.Permanent, KeyError, TypeError, AttributeError, ValueError, IndexError, RecursionError):
        return None


def _describe(workload: Workload, container: dict[str, Any], labels: dict[str, str]) -> WorkloadDescription:
    meta, resource = workload.meta, workload.resource
    is_slice = resource.startswith(amounts.MIG_PREFIX)
    milli = round(workload.share * _MILLI) if workload.share else workload.per_pod * _MILLI
    return WorkloadDescription(
        namespace=meta.namespace,
        name=meta.name,
        owner_kind=_KIND,
        owner_name=meta.name,
        image=str(container.get("image", "")),
        command=tuple(str(word) for part in ("command", "args") for word in container.get(part) or ()),
        labels=labels,
        environment={str(each["name"]): str(each.get("value", "")) for each in container.get("env") or ()},
        workload_type=workload.workload_type,
        framework=workload.framework,
        pods=workload.pods,
        milli_gpus=milli,
        mig_profile=resource.removeprefix(amounts.MIG_PREFIX) if is_slice else "",
        gpu_model=workload.needs.gpu_model,
        user=labels.get(_USER_LABEL, "") or meta.namespace,
        declared_s=workload.expected_s,
        submitted_s=timestamp.epoch_seconds(meta.creationTimestamp or ""),
        uid=meta.uid,
    )


def _find_gpu_container(containers: list[dict[str, Any]]) -> dict[str, Any]:
    for container in containers:
        wants = container.get("resources") or {}
        if any(amounts.is_gpu(name) for part in ("requests", "limits") for name in wants.get(part) or ()):
            return container
    return containers[0]
