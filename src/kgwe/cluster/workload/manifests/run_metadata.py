"""Names, labels and owner references of the objects that run a workload."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kgwe.cluster.workload import metadata_keys
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from kgwe.cluster.workload.workload import Workload
    from kgwe.kube.api.resources import Resource

# Pod names add "-" and 5 characters (and an index) to the Job's; the Job's name is also a label value: 63 at most.
_NAME_MAX = 52
_UID_CHARS = 8


def job_name(workload: Workload) -> str:
    """The name of the run. It is fixed, so the API server refuses to create a second run."""
    suffix = f"-job-{workload.object_uid[:_UID_CHARS]}" + (f"-r{workload.replica}" if workload.replica else "")
    return workload.meta.name[: _NAME_MAX - len(suffix)].rstrip("-.").replace(".", "-") + suffix


def resource_of(workload: Workload) -> Resource[Any]:
    """The kind of its run."""
    return resources.DEPLOYMENT if workload.serves else resources.JOB


def build_labels(workload: Workload) -> dict[str, str]:
    name = workload.label_name
    result = {
        "app": name,
        metadata_keys.MANAGED_BY: metadata_keys.CONTROLLER_NAME,
        metadata_keys.NAME_LABEL: name,
        metadata_keys.UID_LABEL: workload.meta.uid,
        metadata_keys.TYPE_LABEL: workload.workload_type,
    }
    if workload.model_name:
        result |= {"gpu.warp.dev/workload": name, "gpu.warp.dev/controller": metadata_keys.CONTROLLER_NAME}
        if model := label_value(workload.model_name):
            result["gpu.warp.dev/model"] = model
    return result


def label_value(text: str) -> str:
    """A model name as a label value: at most 63 characters, others become dashes. An annotation has the whole name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)[:63].strip("-._")


def owner_reference(workload: Workload) -> dict[str, Any]:
    return {
        "apiVersion": workload.kind.resource.api_version,
        "kind": workload.kind.resource.kind,
        "name": workload.meta.name,
        "uid": workload.object_uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
