"""What runs a workload: its Job, or for inference its Deployment; and the Service its ranks find each other by.

Where each pod goes is written down once, in the plan annotation of the Job or Deployment, seat by seat; a restarted
scheduler rebuilds every reservation from it. A single pod is pinned by required node affinity in its template:
kube-scheduler then looks at that node alone, still checks everything it always checks, and binds. Pods of a gang share
one template, so theirs has a scheduling gate instead, and each pod is pinned as its gate is taken away (`seating`).
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from kgwe import errors
from kgwe.cluster.workload import placement_annotations, plan_text, relocation
from kgwe.cluster.workload.manifests import dra_claims, rendezvous
from kgwe.cluster.workload.workload import Details
from kgwe.kube.api import core, resources
from kgwe.kube.translate import podrequest, podspec
from kgwe.kube.translate.nodes import CLAIMS_LABEL, Cards
from kgwe.kube.transport import nesting
from kgwe.model.devices import shares
from kgwe.model.units import amounts
from kgwe.placement.fleet.constraints import Constraints
from kgwe.placement.fleet.node import Gpus, Request, share_milli
from kgwe.placement.fleet.taints import Toleration
from kgwe.placement.planning.ask import Ask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kgwe.cluster.workload.manifests.dra_claims import Naming
    from kgwe.cluster.workload.workload import Workload
    from kgwe.kube.api.resources import Resource
    from kgwe.model.units.amounts import Amounts
    from kgwe.placement.gang.site import GangLocation
    from kgwe.placement.planning.plan import Plan

MANAGED_BY = "app.kubernetes.io/managed-by"
CONTROLLER_NAME = "kgwe-scheduler"
UID_LABEL = "kgwe.nvidia.io/workload-uid"
NAME_LABEL = "kgwe.nvidia.io/workload"
TYPE_LABEL = "kgwe.nvidia.io/workload-type"
GENERATION_ANNOTATION = "kgwe.nvidia.io/generation"
MODEL_ANNOTATION = "kgwe.nvidia.io/model"
DETAILS_ANNOTATION = "kgwe.nvidia.io/plan-details"
#: what each pod takes of its node, as it was planned
AMOUNTS_ANNOTATION = "kgwe.nvidia.io/plan-amounts"
#: on Deployments and their pods: tells the pods of one Deployment from those of its predecessor of the same name
RUN_LABEL = "kgwe.nvidia.io/run"
SELECTOR = f"{MANAGED_BY}={CONTROLLER_NAME}"

# Pod names add "-" and 5 characters (and an index) to the Job's; the Job's name is also a label value: 63 at most.
_NAME_MAX = 52
_UID_CHARS = 8
_REASON_CHARS = 1024
# Kubernetes' own default for pods that restart.
_RESTARTS = 6
# Times that a pod is replaced by its Job alone; the scheduler acts after fewer (`rejections`).
_REJECTIONS = 6
# Exit code of a container that ended by SIGTERM: its pod was deleted.
_TERMINATED = 143
# Written on pods by KGWE only; removed from the templates of users.
_OURS = (
    placement_annotations.SEAT_ANNOTATION,
    placement_annotations.CARDS_ANNOTATION,
    placement_annotations.SLICES_ANNOTATION,
    placement_annotations.SIGNATURE_ANNOTATION,
    placement_annotations.SEATED_LABEL,
    relocation.ROUND_ANNOTATION,
    RUN_LABEL,
)


def job_name(workload: Workload) -> str:
    """Always the same for one workload object, so creating twice is refused by the API server."""
    suffix = f"-job-{workload.meta.uid[:_UID_CHARS]}"
    return workload.meta.name[: _NAME_MAX - len(suffix)].rstrip("-.").replace(".", "-") + suffix


def resource_of(workload: Workload) -> Resource[Any]:
    """What its pods are made by."""
    return resources.DEPLOYMENT if workload.serves else resources.JOB


def build_ask(workload: Workload, template: dict[str, Any], avoid: frozenset[str]) -> Ask:
    """What the workload asks for; Permanent when the template makes no sense."""
    try:
        spec = msgspec.convert(template["spec"], core.PodSpec, strict=False)
        affinity = podspec.required_affinity(spec.affinity)
    except (msgspec.ValidationError, ValueError) as exc:
        raise errors.Permanent(str(exc)) from exc
    selector, tolerations = tuple(sorted(spec.nodeSelector.items())), podspec.read_tolerations(spec)
    if workload.claims:
        selector = (*selector, (CLAIMS_LABEL, "true"))
        tolerations = (*tolerations, Toleration(CLAIMS_LABEL, "Exists"))
    wanted = podspec.sum_requests(spec)
    workload = _counted(workload, wanted)
    needs = workload.needs
    return Ask(
        owner=workload.meta.uid,
        request=Request(
            _gpus(workload),
            cpu_milli=wanted.get(amounts.CPU, 0),
            memory_bytes=wanted.get(amounts.MEMORY, 0),
            preference=needs.preference,
            min_bandwidth_gbps=needs.min_bandwidth_gbps,
            min_memory_gb=needs.min_memory_gb,
            model=needs.gpu_model,
            architecture=needs.architecture,
            constraints=Constraints(selector, affinity, tolerations, avoid),
            spot=podrequest.spot_policy(
                template.get("metadata", {}).get("annotations", {}),
                policy=needs.spot_policy,
                preemptible=workload.preemptible,
                strategy=workload.strategy,
            ),
        ),
        amounts=wanted,
        pods=workload.pods,
        divisible=workload.divisible and workload.pods == 1 and not requests_gpus_itself(workload),
        ranks=workload.world_size,
        nearness=workload.nearness,
        strategy=workload.strategy,
        priority=workload.priority,
        preemptible=workload.preemptible,
        since=workload.meta.creationTimestamp or "",
        namespace=workload.meta.namespace,
        name=workload.meta.name,
        expected_s=workload.expected_s,
        serves=workload.serves,
    )


def _gpus(workload: Workload) -> Gpus:
    """What each of its pods wants of GPUs."""
    if workload.resource == amounts.GPU:
        return Gpus(count=workload.per_pod)
    if workload.resource == amounts.SHARED:
        try:
            return Gpus(milli=share_milli(shares.shares_of_fraction(workload.share)))
        except ValueError as exc:
            raise errors.Permanent(f"gpuRequirements.share: {exc}") from exc
    return Gpus(profile=workload.resource.removeprefix(amounts.MIG_PREFIX), slices=workload.per_pod)


def requests_gpus_itself(workload: Workload) -> bool:
    """Whether the user's template says how many GPUs a pod gets; otherwise its first container gets them."""
    containers = workload.template.get("spec", {}).get("containers") or ()
    return any(_asks(container) for container in containers)


def _asks(container: dict[str, Any]) -> bool:
    wants = container.get("resources") or {}
    return any(amounts.is_gpu(name) for part in ("requests", "limits") for name in wants.get(part) or ())


def _counted(workload: Workload, wanted: dict[str, int]) -> Workload:
    """What the template asks for is what the workload says: its spec is what users, quotas and books go by.

    A template that asks for a part of the count itself says how it is divided among pods.
    """
    found = {name: count for name, count in wanted.items() if amounts.is_gpu(name)}
    per_pod = found.get(amounts.GPU, 0)
    if workload.divisible and list(found) == [amounts.GPU] and per_pod and workload.per_pod % per_pod == 0:
        pods = workload.per_pod // per_pod
        if workload.world_size % pods:
            raise errors.Permanent(
                f"its containers ask for {per_pod} of {workload.per_pod} GPUs, which makes {pods} pods, over which"
                f" distributedConfig.worldSize {workload.world_size} cannot be shared out equally"
            )
        return replace(workload, per_pod=per_pod, pods=pods)
    if found != {workload.resource: workload.per_pod}:
        asked = ", ".join(f"{count} {name}" for name, count in sorted(found.items()))
        raise errors.Permanent(
            f"its containers ask for {asked}, gpuRequirements for {workload.per_pod} {workload.resource} per pod;"
            " leave the GPUs out of the template or make both agree"
        )
    return workload


def build_pod_template(workload: Workload, default_image: str) -> dict[str, Any]:
    """The user's template with what every GPU pod needs; the node is added when it is known."""
    template: dict[str, Any] = _without_nulls(workload.template) or {
        "spec": {"containers": [{"name": "workload", "image": default_image}]}
    }
    meta = template.setdefault("metadata", {})
    for part in ("labels", "annotations"):
        meta[part] = {key: value for key, value in meta.get(part, {}).items() if key not in _OURS}
    ours = build_labels(workload)
    # `app` belongs to the user, if set: Services may select on it.
    meta["labels"] = {"app": ours["app"], **meta.get("labels", {})} | {k: v for k, v in ours.items() if k != "app"}
    if workload.model_name:
        meta["annotations"] = meta.get("annotations", {}) | {MODEL_ANNOTATION: workload.model_name}
    if workload.share:
        meta["annotations"] = meta.get("annotations", {}) | {podrequest.SHARE: f"{workload.share:g}"}
    spec = template["spec"]
    spec.setdefault("restartPolicy", "Never")
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        _quote_quantities(container)
    if not requests_gpus_itself(workload):
        _give_gpus(spec["containers"][0], workload, workload.per_pod)
    if workload.model_name:
        env = {"MODEL_NAME": workload.model_name, "GPU_COUNT": str(workload.per_pod)}
        container = spec["containers"][0]
        known = {entry.get("name") for entry in container.get("env", ())}
        added = [{"name": name, "value": value} for name, value in env.items() if name not in known]
        container["env"] = [*container.get("env", ()), *added]
    return template


def _without_nulls(value: Any, level: int = 0) -> Any:
    """A copy in which null means absent, as Kubernetes reads manifests (and templating tools write them).

    Permanent if it is too deep: such a template may have been read only in part, and cannot be encoded.
    """
    if level > nesting.MOST_IN_TEMPLATE:
        raise errors.Permanent(f"the template is nested deeper than {nesting.MOST_IN_TEMPLATE} levels")
    if isinstance(value, dict):
        return {key: _without_nulls(each, level + 1) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each, level + 1) for each in value if each is not None]
    return value


def _quote_quantities(container: dict[str, Any]) -> None:
    """`nvidia.com/gpu: 8` without quotes is a number in a free-form template; quantities are text from here on."""
    wants = container.get("resources", {})
    for part in ("requests", "limits"):
        if part in wants:
            wants[part] = {name: str(amount) for name, amount in wants[part].items()}


def _give_gpus(container: dict[str, Any], workload: Workload, count: int) -> None:
    wants = container.setdefault("resources", {})
    for part in ("requests", "limits"):
        wants[part] = wants.get(part, {}) | {workload.resource: str(count)}


def build_labels(workload: Workload) -> dict[str, str]:
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


def _unnamed(_node: str) -> Cards:
    return Cards({}, {})


def build_run(
    workload: Workload, template: dict[str, Any], plan: Plan, run_id: str = "", names: Naming = _unnamed
) -> dict[str, Any]:
    """The Job or Deployment to create for `workload` where `plan` says; no two Deployments have one `run_id`."""
    template = _without_nulls(template)
    pods = len(plan.seats)
    spec = template["spec"]
    if plan.gpus_per_pod and not requests_gpus_itself(workload):
        # The plan may have divided the GPUs among pods.
        _give_gpus(spec["containers"][0], workload, plan.gpus_per_pod)
    wanted = _requested(spec)
    if workload.claims:
        dra_claims.convert_to_claims(spec, dra_claims.template_name(job_name(workload), plan.seats, names))
    if pods == 1:
        placement_annotations.pin_to_node(spec, plan.seats[0].node)
        said = template.setdefault("metadata", {})
        said["annotations"] = (said.get("annotations") or {}) | placement_annotations.device_annotations(plan.seats[0])
    else:
        spec["schedulingGates"] = [*(spec.get("schedulingGates") or ()), {"name": placement_annotations.GATE}]
    if pods > 1 and not workload.serves:
        rendezvous.add_environment(
            spec,
            job_name(workload),
            pods=pods,
            gpus=plan.gpus_per_pod,
            ranks=workload.world_size,
            framework=workload.framework,
        )
    meta: dict[str, Any] = {
        "name": job_name(workload),
        "namespace": workload.meta.namespace,
        "labels": build_labels(workload),
        "annotations": {
            placement_annotations.PLAN_ANNOTATION: placement_annotations.encode(
                plan.seats, plan_text.MOST_BYTES_AT_START
            ),
            DETAILS_ANNOTATION: encode_details(_details(plan)),
            AMOUNTS_ANNOTATION: encode_amounts(wanted),
            GENERATION_ANNOTATION: str(workload.meta.generation),
            "gpu.warp.dev/created-by": CONTROLLER_NAME,
        },
        "ownerReferences": [owner_reference(workload)],
    }
    if not workload.serves:
        return {"metadata": meta, "spec": _job(template, pods)}
    meta["labels"][RUN_LABEL] = template["metadata"]["labels"][RUN_LABEL] = run_id
    return {"metadata": meta, "spec": _deployment(workload, template, pods)}


def _details(plan: Plan) -> Details:
    return Details(
        score=round(plan.score),
        parts=tuple((name, round(points, 1)) for name, points in plan.parts.items()),
        gb_per_s=None if plan.gb_per_s is None else round(plan.gb_per_s, 1),
        domain=f"{plan.level}/{plan.domain}" if plan.level else "",
        reasons=plan.message[:_REASON_CHARS],
    )


def moved_details(site: GangLocation | None, note: str) -> Details:
    """Why a plan is as it is after recovery changed it; what is not known of the new place is left out."""
    why = f"changed by recovery: {note}"
    if site is None:
        return Details(reasons=f"domain and bandwidth are not known\n{why}"[:_REASON_CHARS])
    rate = 0.0 if site.ring is None else site.ring.gb_per_s
    return Details(
        gb_per_s=None if math.isinf(rate) else round(rate, 1),
        domain=f"{site.level}/{site.domain}",
        reasons=f"{site.describe()}\n{why}"[:_REASON_CHARS],
    )


def encode_details(found: Details) -> str:
    return msgspec.json.encode(found).decode()


def decode_details(annotations: Mapping[str, str]) -> Details | None:
    """The details stored with a plan; None if they are missing or cannot be read."""
    try:
        return msgspec.json.decode(annotations.get(DETAILS_ANNOTATION, "null"), type=Details | None)
    except (msgspec.DecodeError, RecursionError):
        return None


def encode_amounts(found: Amounts) -> str:
    return msgspec.json.encode(found, order="sorted").decode()


def planned_amounts(annotations: Mapping[str, str]) -> Amounts | None:
    """What each pod takes of its node, as stored with the plan; None when the plan does not say."""
    try:
        return msgspec.json.decode(annotations.get(AMOUNTS_ANNOTATION) or "null", type=dict[str, int] | None)
    except msgspec.DecodeError:
        return None


def specified_amounts(workload: Workload) -> Amounts | None:
    """What the spec says each pod takes of its node; None when its template makes no sense."""
    try:
        return _requested(build_pod_template(workload, "")["spec"])
    except (errors.Permanent, KeyError, TypeError, AttributeError, ValueError, RecursionError):
        return None


def _requested(spec: dict[str, Any]) -> Amounts:
    return podspec.sum_requests(msgspec.convert(spec, core.PodSpec, strict=False))


def owner_reference(workload: Workload) -> dict[str, Any]:
    return {
        "apiVersion": workload.kind.resource.api_version,
        "kind": workload.kind.resource.kind,
        "name": workload.meta.name,
        "uid": workload.meta.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _job(template: dict[str, Any], pods: int) -> dict[str, Any]:
    restarts = template["spec"]["restartPolicy"] != "Never"
    spec: dict[str, Any] = {
        # A pod that restarts its containers itself counts each restart against this limit. Of the others only those
        # count that never started: a node may reject all its pods of the Job at once.
        "backoffLimit": _RESTARTS if restarts else _REJECTIONS * pods,
        "completions": pods,
        "parallelism": pods,
        "template": template,
    }
    if pods > 1:
        spec["completionMode"] = "Indexed"
    if not restarts:
        # A container that fails by itself fails the Job. A pod that is evicted, that its kubelet rejects before any
        # container starts, or that is deleted (exit code 143) is replaced.
        ignore = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        failed = {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0, _TERMINATED]}}
        spec["podFailurePolicy"] = {"rules": [ignore, failed]}
    return spec


def _deployment(workload: Workload, template: dict[str, Any], pods: int) -> dict[str, Any]:
    template["spec"]["restartPolicy"] = "Always"
    return {
        "replicas": pods,
        "selector": {
            "matchLabels": {UID_LABEL: workload.meta.uid, RUN_LABEL: template["metadata"]["labels"][RUN_LABEL]}
        },
        # A second pod beside the first would need GPUs that were not planned.
        "strategy": {"type": "Recreate"},
        "template": template,
    }


def build_companions(workload: Workload, plan: Plan, names: Naming) -> Iterator[tuple[Resource[Any], dict[str, Any]]]:
    """Objects that must exist before the pods; an existing object of that name is reused."""
    if len(plan.seats) > 1 and not workload.serves:
        yield resources.SERVICE, build_service(workload)
    if workload.claims:
        body = dra_claims.build_template(job_name(workload), plan.seats, names)
        body["metadata"] |= {"labels": build_labels(workload), "ownerReferences": [owner_reference(workload)]}
        yield resources.RESOURCE_CLAIM_TEMPLATE, body


def build_service(workload: Workload) -> dict[str, Any]:
    """The headless Service under which the ranks of a gang find each other, before they are ready."""
    return {
        "metadata": {
            "name": rendezvous.service_name(job_name(workload)),
            "namespace": workload.meta.namespace,
            "labels": build_labels(workload),
            "ownerReferences": [owner_reference(workload)],
        },
        "spec": rendezvous.service_spec({UID_LABEL: workload.meta.uid}),
    }
