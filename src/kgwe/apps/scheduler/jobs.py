"""The Job of a workload: what is created, under which name, and what its state means.

The planned node is written as required node affinity on the node's name. kube-scheduler then looks at that
node alone, still checks everything it always checks, and binds; if it refuses, the work is planned anew.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

import msgspec

from kgwe import errors
from kgwe.kube import translate
from kgwe.kube.api import core
from kgwe.model import amounts
from kgwe.placement.taints import Ask

if TYPE_CHECKING:
    from kgwe.apps.scheduler.workload import Workload
    from kgwe.model.amounts import Amounts

MANAGED_BY = "app.kubernetes.io/managed-by"
CONTROLLER_NAME = "kgwe-controller"
UID_LABEL = "kgwe.nvidia.io/workload-uid"
NAME_LABEL = "kgwe.nvidia.io/workload"
TYPE_LABEL = "kgwe.nvidia.io/workload-type"
NODE_ANNOTATION = "kgwe.nvidia.io/node"
GENERATION_ANNOTATION = "kgwe.nvidia.io/generation"
MODEL_ANNOTATION = "kgwe.nvidia.io/model"
SELECTOR = f"{MANAGED_BY}={CONTROLLER_NAME}"

# Pod names add "-" and 5 characters (and an index) to the Job's; the Job's name is also a label value: 63 at most.
_NAME_MAX = 52
_UID_CHARS = 8
# Kubernetes' own default for pods that restart.
_RESTARTS = 6


def job_name(workload: Workload) -> str:
    """Always the same for one workload object, so creating twice is refused by the API server."""
    suffix = f"-job-{workload.meta.uid[:_UID_CHARS]}"
    return workload.meta.name[: _NAME_MAX - len(suffix)].rstrip("-.").replace(".", "-") + suffix


def ask(workload: Workload, template: dict[str, Any], avoid: frozenset[str]) -> Ask:
    """What the workload's pods need together on one node; Permanent when the template makes no sense."""
    try:
        spec = msgspec.convert(template["spec"], core.PodSpec, strict=False)
        affinity = translate.required_affinity(spec.affinity)
    except (msgspec.ValidationError, ValueError) as exc:
        raise errors.Permanent(str(exc)) from exc
    _check_gpus(workload, spec)
    return Ask(
        owner=workload.meta.uid,
        resource=workload.resource,
        count=workload.per_pod * workload.pods,
        amounts=times(translate.requested(spec), workload.pods),
        strategy=workload.strategy,
        priority=workload.priority,
        since=workload.meta.creationTimestamp or "",
        node_selector=spec.nodeSelector,
        tolerations=translate.tolerations(spec),
        affinity=affinity,
        needs=workload.needs,
        avoid=avoid,
    )


def _check_gpus(workload: Workload, spec: core.PodSpec) -> None:
    """What the template asks for is what the workload says: its spec is what users, quotas and books go by."""
    found = {name: count for name, count in translate.requested(spec).items() if amounts.is_gpu(name)}
    if found != {workload.resource: workload.per_pod}:
        asked = ", ".join(f"{count} {name}" for name, count in sorted(found.items()))
        raise errors.Permanent(
            f"its containers ask for {asked}, gpuRequirements for {workload.per_pod} {workload.resource} per pod;"
            " leave the GPUs out of the template or make both agree"
        )


def held_by(job: core.Job) -> Amounts:
    """What an unfinished Job of ours may still take on its node: the reservation it stands for."""
    if job.spec.suspend:
        return {}
    left = job.spec.parallelism
    if job.spec.completions is not None:
        left = min(left, job.spec.completions - job.status.succeeded)
    return times(translate.requested(job.spec.template.spec), max(left, 0))


def belongs_to(job: core.Job, workload: Workload) -> bool:
    """Whether the Job is the one the controller made for the workload. Labels alone anybody can set."""
    owner = job.metadata.controller
    return (
        owner is not None
        and owner.uid == workload.meta.uid
        and job.metadata.namespace == workload.meta.namespace
        and job.metadata.name == job_name(workload)
    )


def generation(job: core.Job) -> int:
    """The generation of the workload it was made from; 0 when somebody took the annotation away."""
    text = job.metadata.annotations.get(GENERATION_ANNOTATION, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def times(one: Amounts, count: int) -> Amounts:
    return {name: amount * count for name, amount in one.items()}


def outcome(job: core.Job) -> core.Condition | None:
    """The condition that ended the Job, or None while it is not finished."""
    return next((c for c in job.status.conditions if c.type in ("Complete", "Failed") and c.status == "True"), None)


def pod_template(workload: Workload, default_image: str) -> dict[str, Any]:
    """The user's template with what every GPU pod needs; the node is added when it is known."""
    template: dict[str, Any] = _without_nulls(workload.template) or {
        "spec": {"containers": [{"name": "workload", "image": default_image}]}
    }
    meta = template.setdefault("metadata", {})
    ours = labels(workload)
    # `app` belongs to the user if he uses it: Services may select on it.
    meta["labels"] = {"app": ours["app"], **meta.get("labels", {})} | {k: v for k, v in ours.items() if k != "app"}
    if workload.model_name:
        meta["annotations"] = meta.get("annotations", {}) | {MODEL_ANNOTATION: workload.model_name}
    spec = template["spec"]
    spec.setdefault("restartPolicy", "Never")
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        _quote_quantities(container)
    _give_gpus(spec["containers"], workload)
    if workload.model_name:
        env = {"MODEL_NAME": workload.model_name, "GPU_COUNT": str(workload.per_pod)}
        container = spec["containers"][0]
        known = {entry.get("name") for entry in container.get("env", ())}
        added = [{"name": name, "value": value} for name, value in env.items() if name not in known]
        container["env"] = [*container.get("env", ()), *added]
    return template


def _without_nulls(value: Any) -> Any:
    """A copy in which null means absent, as Kubernetes reads manifests (and templating tools write them)."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value if each is not None]
    return value


def _quote_quantities(container: dict[str, Any]) -> None:
    """`nvidia.com/gpu: 8` without quotes is a number in a free-form template; quantities are text from here on."""
    wants = container.get("resources", {})
    for part in ("requests", "limits"):
        if part in wants:
            wants[part] = {name: str(amount) for name, amount in wants[part].items()}


def _give_gpus(containers: list[dict[str, Any]], workload: Workload) -> None:
    """Ask for the GPUs in the first container, unless the template spread them over containers itself."""
    for container in containers:
        wants = container.get("resources", {})
        if any(amounts.is_gpu(name) for part in ("requests", "limits") for name in wants.get(part, {})):
            return
    wants = containers[0].setdefault("resources", {})
    for part in ("requests", "limits"):
        wants[part] = wants.get(part, {}) | {workload.resource: str(workload.per_pod)}


def labels(workload: Workload) -> dict[str, str]:
    name = workload.meta.name[:63].rstrip("-.")
    result = {
        "app": name,
        MANAGED_BY: CONTROLLER_NAME,
        NAME_LABEL: name,
        UID_LABEL: workload.meta.uid,
        TYPE_LABEL: workload.workload_type,
    }
    if workload.model_name:
        result |= {"gpu.warp.dev/workload": name, "gpu.warp.dev/controller": CONTROLLER_NAME}
        if model := label_value(workload.model_name):
            result["gpu.warp.dev/model"] = model
    return result


def label_value(text: str) -> str:
    """A model name as a label value: other characters become dashes; it is cut at 63. The whole is an annotation."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)[:63].strip("-._")


def build(workload: Workload, template: dict[str, Any], node: str) -> dict[str, Any]:
    """The Job to create for `workload` on `node`."""
    template = copy.deepcopy(template)
    _pin(template["spec"], node)
    restarts = template["spec"]["restartPolicy"] != "Never"
    spec: dict[str, Any] = {
        # A pod that restarts its containers itself counts each restart against this limit.
        "backoffLimit": _RESTARTS if restarts else 0,
        "completions": workload.pods,
        "parallelism": workload.pods,
        "template": template,
    }
    if workload.pods > 1:
        spec["completionMode"] = "Indexed"
    if not restarts:
        # Being evicted is not the work's own failure: the Job may start its pod again.
        ignore = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        spec["podFailurePolicy"] = {"rules": [ignore]}
    return {
        "metadata": {
            "name": job_name(workload),
            "namespace": workload.meta.namespace,
            "labels": labels(workload),
            "annotations": {
                NODE_ANNOTATION: node,
                GENERATION_ANNOTATION: str(workload.meta.generation),
                "gpu.warp.dev/created-by": CONTROLLER_NAME,
            },
            "ownerReferences": [
                {
                    "apiVersion": workload.kind.resource.api_version,
                    "kind": workload.kind.resource.kind,
                    "name": workload.meta.name,
                    "uid": workload.meta.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": spec,
    }


def _pin(spec: dict[str, Any], node: str) -> None:
    """Require `node` besides whatever affinity the template has: terms are alternatives, so each gets it."""
    affinity = spec["affinity"] = dict(spec.get("affinity") or {})
    node_affinity = affinity["nodeAffinity"] = dict(affinity.get("nodeAffinity") or {})
    required = dict(node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {})
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = required.get("nodeSelectorTerms") or [{}]
    required["nodeSelectorTerms"] = [
        {**term, "matchFields": [*(term.get("matchFields") or ()), here]} for term in terms
    ]
    node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = required
