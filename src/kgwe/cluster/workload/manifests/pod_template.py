"""The pod template of a workload: the user's, with the labels, GPUs and variables that KGWE adds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from kgwe import errors
from kgwe.cluster.workload import effective_request, metadata_keys, placement_annotations
from kgwe.cluster.workload.manifests import run_metadata
from kgwe.kube.api import core
from kgwe.kube.translate import podrequest, podspec
from kgwe.kube.transport import nesting
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from kgwe.cluster.workload.workload import Workload
    from kgwe.model.units.amounts import Amounts

# Written on pods by KGWE only; removed from the templates of users.
_OURS = (
    placement_annotations.SEAT_ANNOTATION,
    placement_annotations.SEATS_ANNOTATION,
    placement_annotations.CARDS_ANNOTATION,
    placement_annotations.SLICES_ANNOTATION,
    placement_annotations.SIGNATURE_ANNOTATION,
    placement_annotations.SEATED_LABEL,
    metadata_keys.ROUND_ANNOTATION,
    metadata_keys.RUN_LABEL,
    effective_request.ORIGINAL_ANNOTATION,
)


def build_pod_template(workload: Workload, default_image: str) -> dict[str, Any]:
    """The template of the workload's pods. Its node is not known yet."""
    template: dict[str, Any] = copy_without_nulls(workload.template) or {
        "spec": {"containers": [{"name": "workload", "image": default_image}]}
    }
    meta = template.setdefault("metadata", {})
    for part in ("labels", "annotations"):
        meta[part] = {key: value for key, value in meta.get(part, {}).items() if key not in _OURS}
    ours = run_metadata.build_labels(workload)
    # `app` belongs to the user, if set: Services may select on it.
    meta["labels"] = {"app": ours["app"], **meta.get("labels", {})} | {k: v for k, v in ours.items() if k != "app"}
    if workload.model_name:
        meta["annotations"] = meta.get("annotations", {}) | {metadata_keys.MODEL_ANNOTATION: workload.model_name}
    if workload.share:
        meta["annotations"] = meta.get("annotations", {}) | {podrequest.SHARE: f"{workload.share:g}"}
    meta["annotations"] = meta.get("annotations", {}) | effective_request.build_pod_annotations(workload)
    spec = template["spec"]
    spec.setdefault("restartPolicy", "Never")
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        _quote_quantities(container)
    if not requests_gpus_itself(workload):
        set_gpus(spec["containers"][0], workload, workload.per_pod)
    if workload.model_name:
        env = {"MODEL_NAME": workload.model_name, "GPU_COUNT": str(workload.per_pod)}
        container = spec["containers"][0]
        known = {entry.get("name") for entry in container.get("env", ())}
        added = [{"name": name, "value": value} for name, value in env.items() if name not in known]
        container["env"] = [*container.get("env", ()), *added]
    return template


def copy_without_nulls(value: Any, level: int = 0) -> Any:
    """A copy without the fields that are null: to Kubernetes these are absent, and templating tools write them.

    Permanent if it is nested too deeply: such a template may have been read only in part, and cannot be encoded.
    """
    if level > nesting.MOST_IN_TEMPLATE:
        raise errors.Permanent(f"the template is nested deeper than {nesting.MOST_IN_TEMPLATE} levels")
    if isinstance(value, dict):
        return {key: copy_without_nulls(each, level + 1) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [copy_without_nulls(each, level + 1) for each in value if each is not None]
    return value


def _quote_quantities(container: dict[str, Any]) -> None:
    """Turn quantities into strings: `nvidia.com/gpu: 8` without quotes is a number in a free-form template."""
    wants = container.get("resources", {})
    for part in ("requests", "limits"):
        if part in wants:
            wants[part] = {name: str(amount) for name, amount in wants[part].items()}


def set_gpus(container: dict[str, Any], workload: Workload, count: int) -> None:
    """Request that many devices of the workload's resource."""
    wants = container.setdefault("resources", {})
    for part in ("requests", "limits"):
        wants[part] = wants.get(part, {}) | {workload.resource: str(count)}


def requests_gpus_itself(workload: Workload) -> bool:
    """Whether the user's template says how many GPUs a pod gets; otherwise its first container gets them."""
    containers = workload.template.get("spec", {}).get("containers") or ()
    return any(_requests_gpus(container) for container in containers)


def _requests_gpus(container: dict[str, Any]) -> bool:
    wants = container.get("resources") or {}
    return any(amounts.is_gpu(name) for part in ("requests", "limits") for name in wants.get(part) or ())


def specified_amounts(workload: Workload) -> Amounts | None:
    """What the spec says each pod takes of its node; None if its template is invalid."""
    try:
        return requested_amounts(build_pod_template(workload, "")["spec"])
    except (errors.Permanent, KeyError, TypeError, AttributeError, ValueError, RecursionError):
        return None


def requested_amounts(spec: dict[str, Any]) -> Amounts:
    """What a pod with this spec takes of its node."""
    return podspec.sum_requests(msgspec.convert(spec, core.PodSpec, strict=False))
